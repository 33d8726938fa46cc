# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP application: its front (request ids, admission, errors, metrics), its table of routes, and its docs."""

from __future__ import annotations

import logging
import re
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from magnetar_agent.consoles import OpenConsoles
from magnetar_agent.host import inventory
from magnetar_agent.servers.diagnostics import diagnostics
from magnetar_core.errors import InvalidRequest, MagnetarError, MethodNotAllowed, NotFound, unforeseen
from magnetar_core.http.endpoint import CLOUD
from magnetar_core.kinds import KINDS, Host, Image, Server
from magnetar_core.version import API, version

from . import access, audit, openapi
from .metrics import AgentMetrics
from .routes import Json, Resources, Tasks, key, query
from .streams import Streams
from .watch import Feed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar_agent.agent import Agent

log = logging.getLogger(__name__)
#: Threads for requests that a guest has to answer, and for health checks.
GUEST_THREADS, HEALTH_THREADS = 12, 4

_NEVER = re.compile(r"(?!)")
REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def failure(error: MagnetarError, request_id: str) -> Json:
    """The answer for *error*."""
    headers = {"www-authenticate": 'Bearer realm="magnetar"'} if error.status == 401 else {}
    headers.update({"allow": error.details["allow"]} if "allow" in error.details else {})
    return Json({"error": {**error.as_dict(), "request_id": request_id}}, error.status, headers)


class Front:
    """Around the application: gives each request its id, admits its caller, and turns whatever is raised into an
    answer. A trace goes to the log, never to the caller."""

    def __init__(self, app: ASGIApp, agent: Agent, tokens: access.BearerTokens, metrics: AgentMetrics,
                 consoles: ASGIApp) -> None:
        self.app, self.agent, self.tokens, self.metrics, self.consoles = app, agent, tokens, metrics, consoles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "websocket":
            await self._console(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        token = audit.request_id.set(request_id)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._admitted(scope, headers, request_id, receive, answer)
        finally:
            audit.request_id.reset(token)
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(scope["method"], route, status, time.perf_counter() - began)

    async def _admitted(self, scope: Scope, headers: dict[bytes, bytes], request_id: str, receive: Receive,
                        send: Send) -> None:
        try:
            self._admit(scope, scope["method"], headers, request_id)
        except MagnetarError as error:
            await failure(error, request_id)(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except Exception:  # FastAPI has answered by now, through `unexpected`
            log.exception("%s %s failed", scope["method"], scope["path"])

    def _admit(self, scope: Scope, method: str, headers: dict[bytes, bytes], request_id: str) -> None:
        """Note who calls. Raises ``MagnetarError`` when they may not."""
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        caller = state.get("peer", access.NOBODY)
        try:
            scope["path"] = path(scope)
            if scope["path"] != "/healthz" or caller.via != "socket":
                caller = access.admit(caller, method, headers, self.tokens)
            if place := state.get("place"):
                place.keep()
            state["caller"], state["scope"] = caller.name, caller.scope
            state["cloud"] = headers.get(b"user-agent") == CLOUD.encode()
        except MagnetarError as error:
            if method not in access.SAFE:
                audit.record(method, None, scope["path"].replace("\x00", "/"), caller.name, request_id,
                             "refused", error={"code": error.code, "message": error.message})
            raise

    async def _console(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket. One that is refused gets an answer over HTTP, as any request does."""
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        token = audit.request_id.set(request_id)
        try:
            self._admit(scope, access.WEBSOCKET, headers, request_id)
            await self.consoles(scope, receive, send)
        except MagnetarError as error:
            await failure(error, request_id)(scope, receive, send)
        finally:
            audit.request_id.reset(token)


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The caller's id of a request, if it is one; else a new one."""
    given = headers.get(b"x-request-id", b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4()}"


def path(scope: Scope) -> str:
    """The decoded path in which a slash inside of a segment (%2F) is NUL: names may have slashes."""
    raw = scope.get("raw_path") or scope["path"].encode()
    if b"%00" in raw or b"\x00" in raw:
        raise InvalidRequest("The path has a NUL character, which no name may have.")
    if b"%2f" not in raw.lower():
        return str(scope["path"])
    parts = (unquote_to_bytes(part).decode("utf-8", "replace").replace("/", "\x00") for part in raw.split(b"/"))
    return "/".join(parts)


async def refused(request: Request, error: Any) -> Json:
    """Answer for what Magnetar raised."""
    return failure(error, request.state.request_id)


async def unexpected(request: Request, error: Exception) -> Json:
    """Answer for what nobody expected; `Front` logs it."""
    return failure(unforeseen(error), request.state.request_id)


async def unknown(request: Request, error: Any) -> Json:
    """Answer for a path or a method that is not there."""
    where = request.scope["path"]
    shown = where.replace("\x00", "/")  # not request.url, which cannot read every query
    if error.status_code == 405:
        known = {method for route in request.app.routes if getattr(route, "path_regex", _NEVER).match(where)
                 for method in route.methods}
        allow = ", ".join(sorted(known))
        found: MagnetarError = MethodNotAllowed(f"{shown} does not know {request.method}; it knows {allow}.",
                                                allow=allow)
    elif error.status_code == 404:
        nouns = ", ".join(kind.noun for kind in KINDS)
        found = NotFound(f"There is no {shown}. Resources are at /v1/KIND and /v1/KIND/KEY, where KIND is "
                         f"one of {nouns}; /docs shows all routes.")
    else:
        found = InvalidRequest(str(error.detail))
    return failure(found, request.state.request_id)


class Pages:
    """The routes about the agent itself."""

    def __init__(self, agent: Agent, metrics: AgentMetrics) -> None:
        self.agent, self.metrics, self.version = agent, metrics, version()
        # Who waits for a guest keeps no thread from others, and nobody keeps one from health checks.
        self._guest_threads, self._health_threads = CapacityLimiter(GUEST_THREADS), CapacityLimiter(HEALTH_THREADS)

    async def root(self, request: Request) -> Json:
        """What this is: host, API number, kinds and version."""
        query(request)
        return Json({"host": socket.gethostname(), "api": API, "kinds": [kind.noun for kind in KINDS],
                     "version": self.version})

    async def host(self, request: Request) -> Json:
        """The host: what it is, what it has, what is used, and what no document knows."""
        query(request)
        return Json(await run_in_threadpool(inventory.host, self.agent.drivers))

    async def uptime(self, request: Request) -> Json:
        """For how long the host is up, and its load; nothing else is looked at."""
        query(request)
        return Json(await run_in_threadpool(self.agent.host.hypervisor.uptime))

    async def diagnostics(self, request: Request) -> Json:
        """What a server has used since it was started, as its hypervisor counts; empty while it is off."""
        query(request)
        return Json(await to_thread.run_sync(diagnostics, self.agent.drivers, key(request),
                                             limiter=self._guest_threads))

    async def health(self, _request: Request) -> Json:
        """200 while libvirt answers, else 503."""
        connected = await to_thread.run_sync(self.agent.host.hypervisor.connected, limiter=self._health_threads)
        return Json({"status": "ok" if connected else "libvirt does not answer", "libvirt": connected},
                    200 if connected else 503)

    async def metrics_text(self, _request: Request) -> Response:
        """Metrics in Prometheus' text format."""
        return Response(await run_in_threadpool(self.metrics.text), media_type="text/plain; version=0.0.4")

    async def docs(self, request: Request) -> HTMLResponse:
        """This page: all routes for people, made here and complete without other sites."""
        return HTMLResponse(openapi.page(request.app.openapi()))


class AgentApplication(Front):
    """The agent's HTTP application, an ASGI callable; *feed* and *tokens* are for the server around it."""

    def __init__(self, agent: Agent) -> None:
        tokens, metrics = access.BearerTokens(agent.host.settings.tokens_file), AgentMetrics(agent.host)
        self.feed = Feed(agent.host)
        api = FastAPI(title="Magnetar host agent", version=version(), docs_url=None, redoc_url=None,
                      redirect_slashes=False, description="Makes one libvirt host be what its documents say.")
        self._routes(api, agent, metrics)
        api.add_exception_handler(MagnetarError, refused)
        api.add_exception_handler(HTTPException, unknown)
        api.add_exception_handler(Exception, unexpected)
        openapi.complete(api)
        super().__init__(api, agent, tokens, metrics, OpenConsoles(agent))
        self.api = api

    def _routes(self, api: FastAPI, agent: Agent, metrics: AgentMetrics) -> None:
        pages, tasks, streams = Pages(agent, metrics), Tasks(agent), Streams(agent)
        for method, where, endpoint, extra in (
            ("GET", "/v1", pages.root, {}),
            ("GET", "/healthz", pages.health, {}),
            ("GET", "/metrics", pages.metrics_text, openapi.text("Prometheus' text format")),
            ("GET", "/docs", pages.docs, {"include_in_schema": False}),
            ("GET", "/v1/host", pages.host, openapi.shows(Host)),
            ("GET", "/v1/host/uptime", pages.uptime, openapi.uptime()),
            ("GET", "/v1/watch", self.feed.watch, openapi.watch()),
            ("GET", "/v1/operations", tasks.list, openapi.operations()),
            ("GET", "/v1/operations/{key}", tasks.show, openapi.operation("wait")),
            ("DELETE", "/v1/operations/{key}", tasks.cancel, openapi.operation()),
            ("PUT", f"/v1/{Image.noun}/{{key}}/data", streams.upload, openapi.uploads(Image)),
            ("GET", f"/v1/{Image.noun}/{{key}}/data", streams.download, openapi.downloads(Image)),
            ("GET", f"/v1/{Server.noun}/{{key}}/console", streams.console, openapi.console()),
            ("GET", f"/v1/{Server.noun}/{{key}}/diagnostics", pages.diagnostics, openapi.diagnostics()),
        ):
            api.add_api_route(where, endpoint, methods=[method], response_class=Json, **{"tags": ["agent"], **extra})
        for kind in KINDS:
            if kind is Host:
                continue
            one = Resources(agent, kind)
            for method, where, endpoint, extra in (
                ("GET", f"/v1/{kind.noun}", one.list, openapi.lists(kind, one.filters)),
                ("PUT", f"/v1/{kind.noun}", one.ensure_many, openapi.batches(kind)),
                ("GET", f"/v1/{kind.noun}/{{key}}", one.show, openapi.shows(kind)),
                ("PUT", f"/v1/{kind.noun}/{{key}}", one.ensure, openapi.ensures(kind)),
                ("DELETE", f"/v1/{kind.noun}/{{key}}", one.remove, openapi.removes(kind)),
                ("POST", f"/v1/{kind.noun}/{{key}}/events", one.event, openapi.events(kind)),
            ):
                api.add_api_route(where, endpoint, methods=[method], response_class=Json, **extra,
                                  operation_id=f"{endpoint.__name__}_{kind.noun}")
