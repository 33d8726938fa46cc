# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendor data of a cloud: the operator's data for guests. Static data is a file; dynamic data is fetched from targets
when a server is built, rebuilt, resized or moved while it is off.

Targets may hang, lie or redirect: their answers are limited in time and size, redirects are not followed, and logs
contain neither requests nor answers."""

from __future__ import annotations

import logging
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any

import orjson

from magnetar_control import http_client
from magnetar_control.settings import Settings
from magnetar_core import vendordata
from magnetar_core.errors import Conflict, InvalidSettings, MagnetarError

from .vendordata_auth import VendordataAuth

log = logging.getLogger(__name__)
#: Most bytes of an answer, and greatest depth of its objects.
MOST, DEPTH = 64 * 1024, 64
AGENT = "magnetar-vendordata"


class VendordataFailed(Conflict):
    """A dynamic vendordata target failed, and the settings say that the server is not built then."""


class _Failed(Exception):
    """The error that a vendordata target gave no usable answer. Its text is the reason, without secrets."""


class _TokenRefused(_Failed):
    """The error that a vendordata target answered with status 401 (unauthorized)."""


@dataclass(frozen=True)
class VendordataTarget:
    """A target of dynamic vendordata: the *name* of its answer in vendor_data2.json, and its *url*."""

    name: str
    url: urllib.parse.SplitResult


class Vendordata:
    """The operator's vendor data for guests, as *settings* configure it. *token*: a function that returns a token of a
    service user for requests to the targets. Called with ``True``, it returns a new token. Raises ``InvalidSettings``.
    """

    def __init__(self, settings: Settings, token: Callable[[bool], str]) -> None:
        self.path, self.fatal = settings.vendordata_jsonfile_path, settings.vendordata_dynamic_failure_fatal
        self.times = settings.vendordata_dynamic_connect_timeout, settings.vendordata_dynamic_read_timeout
        auth = VendordataAuth(settings.vendordata_dynamic_auth)
        if auth.user and settings.vendordata_dynamic_service_token:
            raise InvalidSettings("vendordata_dynamic_auth names a user, and vendordata_dynamic_service_token asks for "
                                  "another one's token to be sent. Set one of the two.")
        self.token = auth.user.token if auth.user else token if settings.vendordata_dynamic_service_token else None
        self.targets = list(vendordata_targets(settings))
        if self.path is not None:
            try:
                vendordata.read_vendor_data(self.path)
            except ValueError as error:
                raise InvalidSettings(f"vendordata_jsonfile_path: {error}.") from None
        self.tls = auth.context(settings.vendordata_dynamic_ssl_certfile, "vendordata_dynamic_ssl_certfile")

    def static(self) -> dict[str, Any]:
        """Return the static vendor data from its file; empty if the file has become unreadable, as in Nova."""
        try:
            return vendordata.read_vendor_data(self.path) if self.path else {}
        except ValueError as error:
            log.warning("guests are told no static vendordata: %s", error)
            return {}

    def dynamic(self, server_facts: Mapping[str, Any], confirm: Callable[[], object]) -> dict[str, Any]:
        """Send *server_facts* (the request body of Nova's dynamic vendordata) to each target. Return the answers by
        name of the target; ``{}`` for a target that fails. *confirm*: a function that is called before each request,
        such as ``RunningAction.progress``; its errors are raised. Raises ``VendordataFailed`` if the settings make
        failures fatal."""
        answers: dict[str, Any] = {}
        for target in self.targets:
            confirm()
            try:
                answers[target.name] = self._answer(target, orjson.dumps(server_facts))
            except _Failed as error:
                log.warning("vendordata target %s of server %s: %s", target.name, server_facts["instance-id"], error)
                if self.fatal:
                    raise VendordataFailed(f"The dynamic vendordata target {target.name} failed ({error}), without "
                                           "which no server is built or resized here. An operator must see to "
                                           "it.") from None
                answers[target.name] = {}
        return answers

    def _answer(self, target: VendordataTarget, body: bytes) -> Any:
        """Send the request *body* (JSON) to one target, and return the decoded JSON of its response. Raises ``_Failed``
        if there is no usable response."""
        try:
            return self._asked(target, body, fresh=False)
        except _TokenRefused:
            if self.token is None:
                raise
            return self._asked(target, body, fresh=True)  # the token may have been revoked

    def _asked(self, target: VendordataTarget, body: bytes, fresh: bool) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": AGENT}
        try:
            if self.token is not None:
                headers["X-Auth-Token"] = self.token(fresh)
            with http_client.timed_connection(target.url, self.tls, *self.times) as connection:
                connection.request("POST", http_client.request_target(target.url), body, headers)
                return _content(connection.getresponse())
        except MagnetarError as error:
            raise _Failed(f"there is no token to ask it with: {error.message}") from None
        except (OSError, HTTPException, ValueError) as error:
            raise _Failed(f"it does not answer properly or in time ({type(error).__name__})") from None


def _content(answer: HTTPResponse) -> Any:
    """Return the decoded JSON of a target's response. Raises ``_Failed`` if the response is not usable."""
    if 300 <= answer.status < 400:
        raise _Failed(f"it redirects (status {answer.status}), which is not followed")
    if answer.status == 401:
        raise _TokenRefused("it answered status 401")
    if answer.status not in (200, 201, 202, 203, 204):
        raise _Failed(f"it answered status {answer.status}")
    content = answer.read(MOST + 1)
    if len(content) > MOST:
        raise _Failed(f"its answer has more than {MOST // 1024} KiB")
    if answer.length:
        raise _Failed("its answer broke off")
    if not content:
        return {}
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise _Failed("its answer is not JSON") from None
    if not _shallow(document, DEPTH):
        raise _Failed(f"its answer is deeper than {DEPTH} objects")
    return document


def _shallow(value: Any, depth: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_shallow(child, depth - 1) for child in inside)


def vendordata_targets(settings: Settings) -> Iterator[VendordataTarget]:
    """Yield the vendordata targets in the settings, where each is written NAME@URL. Raises ``InvalidSettings``."""
    sends = settings.vendordata_dynamic_service_token or settings.vendordata_dynamic_auth.get("auth_type")
    names = set()
    for text in settings.vendordata_dynamic_targets:
        name, at, url = str(text).partition("@")
        try:
            parts = urllib.parse.urlsplit(url)
            good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not (name and at and good) or len(name) > 255:
            which = "one of them" if "/" in name else f"the target {name!r}"  # a URL without NAME may contain a secret
            raise InvalidSettings(f"vendordata_dynamic_targets: {which} must be NAME@URL with an http or https URL.")
        if parts.username or parts.password:
            raise InvalidSettings(f"vendordata_dynamic_targets: the URL of {name!r} must be without user and password; "
                                  "set vendordata_dynamic_service_token, or vendordata_dynamic_auth, to have "
                                  "targets know who asks.")
        if name in names:
            raise InvalidSettings(f"vendordata_dynamic_targets: there are two called {name!r}.")
        if sends and parts.scheme != "https":
            raise InvalidSettings(f"vendordata_dynamic_targets: {name!r} must be https, since it is sent a token "
                                  "(vendordata_dynamic_service_token, or vendordata_dynamic_auth).")
        names.add(name)
        yield VendordataTarget(name, parts)
