# SPDX-License-Identifier: GPL-3.0-or-later
"""Authentication at the targets of dynamic vendordata: the Keystone user, and the certificates.

The options are Nova's ``[vendordata_dynamic_auth]``, with the same names, except secrets, which are in files."""

from __future__ import annotations

import difflib
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnetar_control.services.identity.keystone import KeystoneUser
from magnetar_core.errors import InvalidSettings

log = logging.getLogger(__name__)
SETTING = "vendordata_dynamic_auth"
#: Values of ``auth_type``; the first two mean the same.
PASSWORD, APPLICATION_CREDENTIAL = ("password", "v3password"), "v3applicationcredential"
#: Options for both types, for users with a password, for application credentials, and for TLS; with their value types.
USER: Mapping[str, type] = dict.fromkeys((
    "auth_type", "auth_url", "user_id", "username", "user_domain_id", "user_domain_name", "default_domain_id",
    "default_domain_name"), str)
SCOPES = ("project_id", "project_name", "domain_id", "domain_name", "system_scope", "trust_id")
OF_PASSWORD: Mapping[str, type] = dict.fromkeys((
    "password_file", *SCOPES, "project_domain_id", "project_domain_name"), str)
OF_CREDENTIAL: Mapping[str, type] = dict.fromkeys((
    "application_credential_id", "application_credential_name", "application_credential_secret_file"), str)
SESSION: Mapping[str, type] = {"cafile": str, "certfile": str, "keyfile": str, "insecure": bool, "timeout": float}
KNOWN: Mapping[str, type] = {**USER, **OF_PASSWORD, **OF_CREDENTIAL, **SESSION}
#: Options of Nova that do nothing here, and their replacements.
ABSENT: Mapping[str, str] = {
    "password": "is not written here, where others may read it: put it into a file, and name that as password_file",
    "application_credential_secret": "is not written here, where others may read it: put it into a file, and name that "
                                     "as application_credential_secret_file",
    "auth_section": "names a section of nova.conf, which this file has not: write its options here",
    "collect_timing": "would do nothing: no times of requests are collected; the log says which targets are late",
    "split_loggers": "would do nothing: there is one log", "tenant_id": "is the old name of project_id",
    "tenant_name": "is the old name of project_name"}
#: Default of ``timeout``: seconds until Keystone must have answered.
TIMEOUT = 10.0


class VendordataAuth:
    """The credentials and TLS settings with which conductors call Keystone and vendordata targets, from the setting
    ``vendordata_dynamic_auth`` (*options*). ``user``: the Keystone user; ``None`` if the options name no user. Raises
    ``InvalidSettings`` with the name of the wrong option."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = checked_auth_options(options)
        if self._options.get("insecure"):
            log.warning("%s: insecure is true: whoever answers for Keystone or a target of vendordata is believed, and "
                        "gets the password or the token", SETTING)
        self.user = self._user() if self._options.keys() - SESSION.keys() else None

    def context(self, ca: Path | None, name: str) -> ssl.SSLContext:
        """Return a TLS context that trusts the CA file *ca*, by default the system's CAs. *name*: the setting that
        names the file, for errors. Raises ``InvalidSettings`` for files that cannot be used."""
        certificate, key = self._options.get("certfile"), self._options.get("keyfile")
        if key and not certificate:
            raise _wrong("keyfile", "needs certfile, whose key it is")
        try:
            tls = ssl.create_default_context(cafile=str(ca) if ca else None)
        except OSError as error:
            raise InvalidSettings(f"{name}: {ca} cannot be used: {error}") from None
        try:
            if certificate:
                tls.load_cert_chain(certificate, key, password=lambda: "")  # do not ask for a passphrase on a terminal
        except OSError as error:
            raise _wrong("certfile",
                         f"{certificate}{f' with the key {key}' if key else ''} cannot be used: {error}") from None
        if self._options.get("insecure"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        return tls

    def _user(self) -> KeystoneUser:
        options = self._options
        type = self._needed("auth_type", f"is one of {', '.join(PASSWORD)} and {APPLICATION_CREDENTIAL}")
        if type not in (*PASSWORD, APPLICATION_CREDENTIAL):
            raise _wrong("auth_type", f"must be one of {', '.join(PASSWORD)} and {APPLICATION_CREDENTIAL}, and is "
                                      f"{type[:40]!r}")
        foreign_options = OF_CREDENTIAL if type in PASSWORD else OF_PASSWORD
        if odd := next((name for name in foreign_options if name in options), None):
            raise _wrong(odd, f"is not for auth_type {type}")
        body = self._password() if type in PASSWORD else self._credential()
        ca = Path(options["cafile"]) if "cafile" in options else None
        try:
            return KeystoneUser(self._needed("auth_url", "is the URL of Keystone, with /v3"), {"auth": body},
                                self.context(ca, f"{SETTING}: cafile"), options.get("timeout", TIMEOUT))
        except ValueError as error:
            raise _wrong("auth_url", f"cannot be used: {error}") from None

    def _password(self) -> dict[str, Any]:
        if not self._options.keys() & {"user_id", "username"}:
            raise _wrong("username", "is missing: who asks; or user_id")
        user = {**self._identity_reference("user", "user_id", "username"), "password": self._secret("password_file")}
        return {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": self._scope()}

    def _credential(self) -> dict[str, Any]:
        options, name = self._options, "application_credential_name"
        credential = {"id": options["application_credential_id"]} if "application_credential_id" in options else {
            "name": self._needed(name, "or application_credential_id says which one"),
            "user": self._identity_reference("user", "user_id", "username")}
        credential["secret"] = self._secret("application_credential_secret_file")
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}

    def _scope(self) -> dict[str, Any]:
        options = self._options
        kinds = {name.rpartition("_")[0] for name in SCOPES if name in options}
        if len(kinds) != 1:
            raise _wrong("project_name", "must be what the token is good for, or one of "
                         f"{', '.join(scope for scope in SCOPES if scope != 'project_name')}; {len(kinds)} are said")
        kind = kinds.pop()
        if kind == "trust":
            return {"OS-TRUST:trust": {"id": options["trust_id"]}}
        if kind == "domain":
            return {"domain": {"id": options["domain_id"]} if "domain_id" in options
                    else {"name": options["domain_name"]}}
        if kind == "project":
            return {"project": self._identity_reference("project", "project_id", "project_name")}
        if options["system_scope"] != "all":
            raise _wrong("system_scope", f"must be all, and is {options['system_scope'][:40]!r}")
        return {"system": {"all": True}}

    def _identity_reference(self, kind: str, id: str, name: str) -> dict[str, Any]:
        """Return the JSON object that identifies a user or project in a Keystone request. *kind*: ``user`` or
        ``project``. *id*, *name*: names of options. If the option *id* is set, the object contains its value, otherwise
        the value of the option *name* and the domain. Raises ``InvalidSettings``."""
        options = self._options
        if id in options:
            return {"id": options[id]}
        label = self._needed(name, f"or {id} is needed")
        for prefix in (kind, "default"):
            for how in ("id", "name"):
                if f"{prefix}_domain_{how}" in options:
                    return {"name": label, "domain": {how: options[f"{prefix}_domain_{how}"]}}
        raise _wrong(name, f"needs {kind}_domain_name, {kind}_domain_id, or a default domain")

    def _needed(self, name: str, hint: str) -> str:
        if name not in self._options:
            raise _wrong(name, f"is missing: it {hint}")
        return str(self._options[name])

    def _secret(self, name: str) -> str:
        path = Path(self._needed(name, "names the file with the secret"))
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise _wrong(name, f"cannot be read: {type(error).__name__}") from None


def checked_auth_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, each converted to its type. Reads no file. Raises ``InvalidSettings``."""
    return {name: _checked(name, value) for name, value in options.items() if value is not None and value is not False}


def _checked(name: str, value: Any) -> Any:
    """Return *value*, the value of the option *name*, converted to the option's type. Raises ``InvalidSettings``."""
    if name in ABSENT:
        raise _wrong(name, ABSENT[name])
    if name not in KNOWN:
        near = difflib.get_close_matches(str(name), KNOWN, 1)
        raise _wrong(str(name)[:80], f"is not an option of it{f'; did you mean {near[0]}?' if near else ''}")
    kind = KNOWN[name]
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value <= 300:
            raise _wrong(name, "must be seconds, more than 0 and 300 at most")
        return float(value)
    if not isinstance(value, kind) or value == "":
        raise _wrong(name, f"must be {'true or false' if kind is bool else 'seconds' if kind is float else 'a text'}")
    return value


def _wrong(name: str, why: str) -> InvalidSettings:
    return InvalidSettings(f"{SETTING}: {name} {why}.")
