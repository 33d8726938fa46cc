# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of a Keystone, as a ``services.Identity``. It validates users' tokens with a token of the compute
service's own user. HTTP uses the standard library: two requests of plain JSON need no further package."""

from __future__ import annotations

import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import orjson

from magnetar_control.services import Context
from magnetar_control.services.service_client import request_opener
from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings, Unavailable

#: Seconds that an answer is cached: a revoked token is accepted that much longer.
BELIEVED = 5.0
#: Number of cached answers; when it is exceeded, the cache is emptied.
REMEMBERED = 20_000
#: Seconds before its end that the service's own token is renewed.
EARLY = 60.0


class KeystoneUser:
    """A client of Keystone that gets tokens for one user.

    *url*: of Keystone, with or without ``/v3``. *login*: the request body for ``POST /v3/auth/tokens``. *trust*: the
    TLS context. *timeout*: in seconds. Raises ``ValueError`` for an invalid URL.
    """

    def __init__(self, url: str, login: dict[str, Any], trust: ssl.SSLContext, timeout: float = 10.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"the URL of Keystone is {url}; it must begin with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v3") + "/v3"
        self.timeout, self._login = timeout, login
        self._open = request_opener(trust)
        self._lock = threading.Lock()
        self._own, self._own_ends = "", 0.0

    def token(self, fresh: bool = False) -> str:
        """Return a token of the user, which may be cached; with *fresh*, a new one. Raises ``Unavailable``."""
        with self._lock:
            if fresh or self._own_ends <= time.time():
                status, headers, body = self._request("POST", "/auth/tokens?nocatalog", {}, self._login)
                if status != 201:
                    raise Unavailable(f"The compute service cannot log in to Keystone: it answered {status}. An "
                                      "operator must see to the user name and the password in its settings.")
                self._own = headers["X-Subject-Token"]
                self._own_ends = _seconds(body["token"]["expires_at"]) - EARLY
            return self._own

    def _request(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any, Any]:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked when the URL was given
            self.url + path, None if body is None else orjson.dumps(body),
            {**headers, "Accept": "application/json", "Content-Type": "application/json"}, method=method)
        try:
            with self._open(request, timeout=self.timeout) as answer:
                return answer.status, answer.headers, orjson.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, None
        except (OSError, HTTPException, orjson.JSONDecodeError) as error:
            raise Unavailable(f"Keystone does not answer ({type(error).__name__}), so nobody can be let in. Try again "
                              "in a moment.") from error


class Keystone(KeystoneUser):
    """A client of an external Keystone that validates tokens, an implementation of ``services.Identity``. *username*,
    *password*: of a user whose role on *project* (admin or service) allows validating tokens. *ca*: a file with the CA
    certificates to trust. *believed*: seconds for which a validated token is cached."""

    def __init__(self, url: str, username: str, password: str, project: str = "service", ca: Path | None = None,
                 timeout: float = 10.0, believed: float = BELIEVED) -> None:
        domain = {"name": "Default"}
        super().__init__(url, {"auth": {
            "identity": {"methods": ["password"], "password": {
                "user": {"name": username, "domain": domain, "password": password}}},
            "scope": {"project": {"name": project, "domain": domain}}}},
            ssl.create_default_context(cafile=str(ca) if ca else None), timeout)
        self.believed = believed
        self._known: dict[str, tuple[float, Context | None]] = {}

    def validate(self, token: str) -> Context | None:
        """Return the caller whom *token* identifies; ``None`` if Keystone does not accept the token. Raises
        ``Unavailable`` if Keystone does not answer."""
        moment = time.monotonic()
        until, context = self._known.get(token, (0.0, None))
        if until <= moment:
            context = self._ask(token)
            with self._lock:
                if len(self._known) >= REMEMBERED:
                    self._known = {}
                self._known[token] = (moment + self.believed, context)
        return context if context is not None and context.expires > time.time() else None

    def project_exists(self, context: Context, project_id: str) -> bool:
        return self._as_ourselves("GET", f"/projects/{urllib.parse.quote(project_id, safe='')}")[0] == 200

    def projects_named(self, context: Context, name: str) -> Mapping[str, str]:
        """Return {id of the project: id of its domain} for the projects called *name*. The request uses the caller's
        own token, so that Keystone checks the caller's permissions."""
        status, _headers, body = self._request("GET", f"/projects?name={urllib.parse.quote(name, safe='')}",
                                               {"X-Auth-Token": context.token})
        return {project["id"]: project["domain_id"] for project in body["projects"]} if status == 200 else {}

    def _ask(self, token: str) -> Context | None:
        if not token or not token.isascii() or not token.isprintable():
            return None
        status, _headers, body = self._as_ourselves("GET", "/auth/tokens?nocatalog", {"X-Subject-Token": token})
        return context_of_token(body["token"], token) if status == 200 else None

    def _as_ourselves(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        """Send a request to Keystone with this client's own token. If Keystone refuses the token, get a new one and
        repeat the request. Return (status, headers, decoded body) for the statuses 200 and 404. Raises ``Unavailable``
        for any other status."""
        for fresh in (False, True):
            answer = self._request(method, path, {**(headers or {}), "X-Auth-Token": self.token(fresh)})
            if answer[0] != 401:
                break
        if answer[0] in (200, 404):
            return answer
        raise Unavailable(f"Keystone answered {answer[0]} when the compute service asked it about a token. An operator "
                          "must see to it that the service's user has the role admin or service there.")


def keystone_of_settings(settings: Settings) -> Keystone:
    """Return a client of the Keystone that *settings* name. Raises ``InvalidSettings`` with the reason."""
    path = settings.keystone_password_file
    if path is None:
        raise InvalidSettings("keystone_url is set, and keystone_password_file is not. Tokens are validated by a user "
                              "whom Keystone knows: name the file with that user's password.")
    try:
        password = path.read_text(encoding="utf-8").strip()
        return Keystone(str(settings.keystone_url), settings.keystone_username, password, settings.keystone_project,
                        ca=settings.keystone_ca_cert)
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"Keystone cannot be asked with these settings: {error}") from None


def context_of_token(token: dict[str, Any], text: str) -> Context:
    """Return the caller that a validated token describes. *token*: the object ``token`` in Keystone's response to ``GET
    /v3/auth/tokens``. *text*: the token itself."""
    user, project, roles = token["user"], token.get("project") or {}, token.get("roles", ())
    return Context(
        user_id=user["id"], user_name=user["name"], user_domain_id=user["domain"]["id"],
        project_id=project.get("id"), project_name=project.get("name", ""),
        project_domain_id=project["domain"]["id"] if project else "default",
        roles=frozenset() if "domain" in token else frozenset(role["name"] for role in roles),
        expires=_seconds(token["expires_at"]), token=text,
        scope=next((scope for scope in ("project", "domain", "system") if scope in token), ""))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
