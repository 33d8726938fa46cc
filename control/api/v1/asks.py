# SPDX-License-Identifier: GPL-3.0-or-later
"""The cloud's own APIs asked inside of the process, as the caller of a request, with the core's errors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.cloud import Cloud
from magnetar_control.web import Request
from magnetar_control.web.asgi import Application
from magnetar_core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    MagnetarError,
    NotFound,
    TooLarge,
    Unauthenticated,
    Unreachable,
)

#: The microversion of the Compute API that is spoken here.
VERSION = "2.96"
#: Of volumes: the first that lets volumes grow that are in use.
VOLUME = "3.42"
#: Namespace of request ids that follow from another one.
FURTHER = uuid.UUID("7d3f7c0e-6c1c-5a39-9d0e-3f0f6f0c7a11")
Document = dict[str, Any]
STATUS: Mapping[int, type[MagnetarError]] = {
    400: InvalidRequest, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 405: InvalidRequest, 406: InvalidRequest,
    409: Conflict, 410: NotFound, 413: TooLarge, 415: InvalidRequest, 503: Unreachable}


def error_of(status: int, message: str) -> MagnetarError:
    """The core's error for an HTTP *status* of one of the APIs."""
    return STATUS.get(status, MagnetarError)(message or None)


def further(request_id: str, *words: object) -> str:
    """A request id that follows from another one, always the same."""
    return f"req-{uuid.uuid5(FURTHER, ' '.join([request_id, *map(str, words)]))}"


class Asks(Caller):
    """One caller of the native API, and what it may ask of the cloud."""

    def __init__(self, cloud: Cloud, mounts: Mapping[str, Application], request: Request) -> None:
        super().__init__(cloud, request.context, request.id)
        self.mounts, self.request = mounts, request
        #: What a list is asked for; what its noun has seen to is taken out.
        self.filters: dict[str, str] = {}

    @property
    def caller(self) -> str:
        """Who asks, for people."""
        return f"{self.context.user_name or self.context.user_id}@{self.context.project_name or self.project}"

    def ask(self, method: str, mount: str, path: str, body: Any = None, request_id: str | None = None,
            query: Mapping[str, Any] | None = None, media_type: str = "application/json") -> Any:
        """The JSON answer of the API mounted at *mount* (``""`` is compute). Raises the core's errors."""
        request = self.inner(method, path, body, request_id, query, media_type)
        request.base = request.root + mount
        answer = self.mounts[mount].handle(request)
        content = answer.body()
        raw = content if isinstance(content, bytes) else b"".join(content)
        found = orjson.loads(raw) if raw else {}
        if answer.status >= 400:
            raise error_of(answer.status, _message(found))
        return found

    def inner(self, method: str, path: str, body: Any = None, request_id: str | None = None,
              query: Mapping[str, Any] | None = None, media_type: str = "application/json") -> Request:
        """A request of this caller; its context is set."""
        headers = {"x-auth-token": self.context.token or self.request.extra.get("token", ""),
                   "content-type": media_type, "openstack-api-version": f"compute {VERSION}, volume {VOLUME}",
                   "x-openstack-request-id": request_id or self.request_id}
        request = Request(method, path, urlencode(query or {}, quote_via=quote), headers,
                          b"" if body is None else orjson.dumps(body), self.request.root)
        request.context = self.context
        return request

    def compute(self, method: str, path: str, body: Any = None, request_id: str | None = None,
                **query: Any) -> Any:
        """The Compute API; *path* below the version."""
        return self.ask(method, "", "/v2.1" + path, body, request_id, query)

    def act(self, id: str, action: str, args: Any = None, request_id: str | None = None) -> Any:
        """A server action."""
        return self.compute("POST", f"/servers/{id}/action", {action: args}, request_id)

    def image(self, method: str, path: str, body: Any = None, media_type: str = "application/json",
              **query: Any) -> Any:
        """The image API."""
        return self.ask(method, "/image", "/v2" + path, body, None, query, media_type)

    def network(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The network API."""
        return self.ask(method, "/network", "/v2.0" + path, body, None, query)

    def volume(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The volume API."""
        return self.ask(method, "/volume", f"/v3/{self.project}{path}", body, None, query)


def paged(ask: Callable[..., Any], path: str, name: str, /, **query: str) -> list[Document]:
    """The *name* of all pages of a list. *ask*: ``compute``, ``image``, … of ``Asks``."""
    found: list[Document] = []
    while True:
        page = ask("GET", path, **query)
        found += page[name]
        following = dict(parse_qsl(urlsplit(_next(page, name)).query))
        if not following or following == query:  # actions are marked by their requests, and one may ask for several
            return found
        query = following


def _next(page: Mapping[str, Any], name: str) -> str:
    """Where the next page is; empty at the last one. Glance says it in a field, the others in links of their own."""
    links = page.get(f"{name}_links") or page.get("links") or ()
    return str(page.get("next") or next((one["href"] for one in links if one["rel"] == "next"), ""))


def _message(found: Any) -> str:
    """The message of any of the services' error forms."""
    if not isinstance(found, dict):
        return ""
    if isinstance(found.get("message"), str):
        return str(found["message"])
    for value in found.values():
        if isinstance(value, dict) and isinstance(value.get("message"), str):
            return str(value["message"])
    return ""
