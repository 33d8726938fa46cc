# SPDX-License-Identifier: GPL-3.0-or-later
"""A real Keystone behind ``services.Identity``: tokens are validated there, with a token of our own. HTTP is the
standard library's: two requests of plain JSON need no further package."""

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
from magnetar_control.services.service_client import opened
from magnetar_control.settings import Settings
from magnetar_core.errors import InvalidSettings, Unavailable

#: Seconds for which an answer is believed: a revoked token lives that much longer here.
BELIEVED = 5.0
#: Remembered answers; when there are more, all are forgotten.
REMEMBERED = 20_000
#: Our own token is renewed so many seconds before its end.
EARLY = 60.0


class KeystoneUser:
    """Tokens of one user. *url*: with /v3 (``https://keystone:5000/v3``). *login*: the body of Identity API v3's
    authentication. *trust*: whom we speak to. *timeout* in seconds. Raises ``ValueError`` for a URL that is none."""

    def __init__(self, url: str, login: dict[str, Any], trust: ssl.SSLContext, timeout: float = 10.0) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"the URL of Keystone is {url}; it must begin with http:// or https://")
        self.url = url.rstrip("/").removesuffix("/v3") + "/v3"
        self.timeout, self._login = timeout, login
        self._open = opened(trust)
        self._lock = threading.Lock()
        self._own, self._own_ends = "", 0.0

    def token(self, fresh: bool = False) -> str:
        """The user's token; with *fresh*, one that was not given before. Raises ``Unavailable``."""
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
    """*username*, *password*: of a user that may validate tokens (role admin or service) on *project*. *ca*:
    certificates to trust."""

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
        """Who bears *token*; ``None`` when Keystone does not know it. Raises ``Unavailable`` when Keystone is away."""
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
        """Keystone is asked with the caller's own token, so that its policy decides who may know."""
        status, _headers, body = self._request("GET", f"/projects?name={urllib.parse.quote(name, safe='')}",
                                               {"X-Auth-Token": context.token})
        return {one["id"]: one["domain_id"] for one in body["projects"]} if status == 200 else {}

    def _ask(self, token: str) -> Context | None:
        if not token or not token.isascii() or not token.isprintable():
            return None
        status, _headers, body = self._as_ourselves("GET", "/auth/tokens?nocatalog", {"X-Subject-Token": token})
        return borne(body["token"], token) if status == 200 else None

    def _as_ourselves(self, method: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        """Ask with our own token, a new one when the old one is refused."""
        for fresh in (False, True):
            answer = self._request(method, path, {**(headers or {}), "X-Auth-Token": self.token(fresh)})
            if answer[0] != 401:
                break
        if answer[0] in (200, 404):
            return answer
        raise Unavailable(f"Keystone answered {answer[0]} when the compute service asked it about a token. An operator "
                          "must see to it that the service's user has the role admin or service there.")


def of(settings: Settings) -> Keystone:
    """The Keystone of the *settings*. Raises ``InvalidSettings`` that says what is missing."""
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


def borne(token: dict[str, Any], text: str) -> Context:
    """The document of a token (Identity API v3, "Validate and show information for token") as a context."""
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
