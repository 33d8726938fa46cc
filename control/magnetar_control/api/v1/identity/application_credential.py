# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the kind application_credential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.api.v1.driver import CloudDriver
from magnetar_control.api.values import to_second
from magnetar_control.compute.accounts.projects import DRAWN
from magnetar_control.compute.caller import Caller
from magnetar_control.services.identity import application_credentials, assignments, lookup, passwords, tables
from magnetar_control.services.identity.resources import PROJECTS, USERS, fetch_identity_row
from magnetar_control.services.identity.times import parse_expiry
from magnetar_control.services.identity.tokens import Token
from magnetar_control.store.engine.database import parse_moment
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidField, NotFound, Unauthenticated
from magnetar_core.kinds import ApplicationCredential
from magnetar_core.operations import Operation
from magnetar_core.plan import Result

from .identity_driver import embedded_identity


class ApplicationCredentials(CloudDriver):
    """The driver of the v1 API for application credentials. Users manage their own credentials; administrators may also
    see and remove credentials of other users, by id. A credential is created or removed, never changed."""

    kind = ApplicationCredential
    takes_id = False

    def __init__(self) -> None:
        #: The id and the secret of the credential that this driver has created last.
        self._created = ("", "")

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: use a new driver object for each request, because the driver object stores
        the secret of a new credential, and no other request may read this secret."""
        operation.private = True
        return CloudDriver.ensure(ApplicationCredentials(), caller, key, want, permissions, dry_run, operation)

    # Credentials that exist

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the caller's application credentials. Administrators may use the filter ``user_id`` to get another
        user's credentials."""
        user_id = filters.get("user_id", caller.context.user_id)
        check_own_user(caller, user_id)
        with embedded_identity(caller, self.kind.noun).database.read() as connection:
            columns = tables.credentials.c
            rows = connection.execute(select(tables.credentials).filter_by(user_id=user_id).order_by(
                columns.name)).mappings().all()
            return self._shown(connection, rows)

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the application credential with the id or name *key*; ``None`` if the caller may see no such
        credential."""
        own = {"user_id": caller.context.user_id}
        with embedded_identity(caller, self.kind.noun).database.read() as connection:
            row = fetch_identity_row(connection, tables.credentials, id=key, **({} if caller.context.is_admin else own)
                                     ) or fetch_identity_row(connection, tables.credentials, name=key, **own)
            return self._shown(connection, [row])[0] if row else None

    def _shown(self, connection: Connection, rows: Any) -> list[Document]:
        """Return *rows* of application credentials in the format of the v1 API. ``secret`` is ``None``, except for the
        credential that this driver object has created."""
        users, projects = (lookup.fetch_names(connection, resource, {row[f"{resource.name}_id"] for row in rows})
                           for resource in (USERS, PROJECTS))
        roles = {role["id"]: role["name"] for role in assignments.fetch_role_names(
            connection, {id for row in rows for id in row["roles"]})}
        return [{**{name: row[name] for name in ("id", "name", "unrestricted", "user_id", "project_id")},
                 "description": row["description"] or "",
                 "roles": sorted(roles[id] for id in row["roles"] if id in roles),
                 "expires_at": row["expires_at"] and to_second(row["expires_at"]), "user": users.get(row["user_id"]),
                 "project": projects.get(row["project_id"]), "_hash": row["secret"],
                 "secret": self._created[1] if row["id"] == self._created[0] else None} for row in rows]

    # Requests

    def given(self, key: str, want: Document) -> Document:
        """Return the desired state *want* after a check. *key*: the last part of the URL, either the credential's name
        or the id of an existing credential. Raises ``InvalidField``."""
        named = {"id": key} if DRAWN.fullmatch(key) and "name" not in want else {"name": key}
        document: Document = self.kind.check({**named, **want}, partial=True)
        return {**document, "_key": key}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with names of roles in place of ids, and with the expiry time in normal form.
        Raises ``InvalidField`` for a role that the caller's token lacks, for an invalid time, and for a name that
        differs from the key in the URL."""
        want = dict(want)
        key = want.pop("_key")
        if have is not None and key == have["id"]:
            want.setdefault("name", have["name"])
        elif want["name"] != key:
            raise InvalidField("name", f"differs from the key {key!r} of the request", want["name"])
        if want.get("expires_at") is not None and want["expires_at"] != (have or {}).get("expires_at"):
            want["expires_at"] = _expiry(want["expires_at"])
        if want.get("roles") is not None and want["roles"] != (have or {}).get("roles"):
            want["roles"] = requested_roles(want["roles"], self._token(caller).roles)
        secret = want.get("secret")
        same = have is not None and secret is not None and passwords.password_matches(secret, have["_hash"])
        return {**want, "secret": None if same else secret, "_secret": secret}

    def _token(self, caller: Caller) -> Token:
        token = embedded_identity(caller, self.kind.noun).tokens.find(caller.context.token)
        if token is None:
            raise Unauthenticated("The login has ended meanwhile. Log in again.")
        if token.claims.trust_id:
            raise Forbidden("Cannot manage application credentials with a token issued via delegation: yours is for a "
                            "trust.")
        return token

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        application_credentials.check_unrestricted(self._token(caller))
        parse_expiry(want.get("expires_at"), "nobody could log in with the credential")

    def predicted(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Override ``CloudDriver.predicted``: hide the secret. If the request names no roles, predict the roles of the
        caller's token."""
        document = super().predicted(caller, want, have)
        roles = [role["name"] for role in self._token(caller).roles]
        return {**document, "secret": None, "roles": document.get("roles") or sorted(roles)}

    # Changes

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        self.check_make(caller, want, None)
        token = self._token(caller)
        roles = None if want.get("roles") is None else [{"name": name} for name in want["roles"]]
        made = application_credentials.create_application_credential(
            embedded_identity(caller, self.kind.noun).tokens, token, token.context.user_id,
            {**{name: want.get(name) for name in ("name", "description", "unrestricted", "expires_at")},
             "secret": want["_secret"], "roles": roles})
        self._created = str(made["id"]), str(made["secret"])
        return self._created[0]

    def removal(self, caller: Caller, have: Document | None, dry_run: bool, operation: Operation) -> Result:
        """Remove the application credential, unless this is a dry run, and return the result. Raises ``Forbidden`` if
        the caller's token comes from a restricted application credential."""
        application_credentials.check_unrestricted(self._token(caller))
        return super().removal(caller, have, dry_run, operation)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        application_credentials.delete_application_credential(
            embedded_identity(caller, self.kind.noun).tokens, self._token(caller), have["user_id"], have["id"])


def check_own_user(caller: Caller, user_id: str) -> None:
    """Raise ``NotFound`` if *user_id* is another user's id and the caller is not an administrator."""
    if user_id != caller.context.user_id and not caller.context.is_admin:
        raise NotFound(f"Could not find user: {user_id}.")


def requested_roles(requested: list[Any], granted: tuple[dict[str, str], ...]) -> list[str]:
    """Return the names of the *requested* roles, each given as a name, an id or a mapping with ``name`` or ``id``.
    *granted*: the roles of the caller's token, as mappings with ``id`` and ``name``. Raises ``InvalidField`` for a role
    that is not among them."""
    names = set()
    for at, role in enumerate(requested):
        keys = {role} if isinstance(role, str) else {role.get("id"), role.get("name")} - {None}
        matches = [one["name"] for one in granted if keys & {one["id"], one["name"]}]
        if not matches:
            raise InvalidField(f"roles[{at}]", "is not among the roles of the login: " + ", ".join(
                one["name"] for one in granted), ", ".join(sorted(keys)) or "nothing")
        names.update(matches)
    return sorted(names)


def _expiry(text: str) -> str:
    """Return the time *text* in the format of the v1 API. Raises ``InvalidField`` for an invalid time."""
    try:
        return to_second(parse_moment(text))
    except ValueError:
        raise InvalidField("expires_at", "must be a time such as 2030-01-31T12:00:00", text) from None
