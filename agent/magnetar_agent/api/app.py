# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP application: its front (request ids, admission, errors, metrics), its table of routes, and its docs."""

from __future__ import annotations

import logging
import re
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
from magnetar_agent.servers.diagnostics import collect_diagnostics
from magnetar_agent.volumes.existing import list_content
from magnetar_agent.volumes.pools import DEFAULT
from magnetar_core.errors import (
    InvalidField,
    InvalidRequest,
    MagnetarError,
    MethodNotAllowed,
    NotFound,
    mask_unforeseen_error,
)
from magnetar_core.http.endpoint import CLOUD
from magnetar_core.http.reach import is_host_reached
from magnetar_core.kinds import KINDS, Host, Image, Server
from magnetar_core.kinds.volume import POOL
from magnetar_core.query import read_number, read_text
from magnetar_core.version import API, installed_version

from . import access, audit, openapi
from .guest import GuestRoute
from .metrics import AgentMetrics
from .routes import Json, Resources, Tasks, path_key, read_query
from .streams import Streams
from .watch import Feed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar_agent.agent import ManagedHost

log = logging.getLogger(__name__)
#: Threads for requests that a guest must answer, and for health checks.
GUEST_THREADS, HEALTH_THREADS = 12, 4

_NEVER = re.compile(r"(?!)")
REQUEST_ID = re.compile(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def failure_response(error: MagnetarError, request_id: str) -> Json:
    """Return *error* as a JSON response with *request_id*, the error's HTTP status, and the header that status 401 or
    405 requires."""
    headers = {"www-authenticate": 'Bearer realm="magnetar"'} if error.status == 401 else {}
    headers.update({"allow": error.details["allow"]} if "allow" in error.details else {})
    return Json({"error": {**error.as_dict(), "request_id": request_id}}, error.status, headers)


class Front:
    """An ASGI middleware around the agent's FastAPI application. It gives each request an id, checks the caller's
    permission, and converts every exception into a response. A traceback goes to the log, never to the caller."""

    def __init__(self, app: ASGIApp, agent: ManagedHost, tokens: access.BearerTokens, metrics: AgentMetrics,
                 consoles: ASGIApp) -> None:
        self.app, self.agent, self.tokens, self.metrics, self.consoles = app, agent, tokens, metrics, consoles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection: an HTTP request, or the WebSocket of a console."""
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
            await failure_response(error, request_id)(scope, receive, send)
            return
        try:
            await self.app(scope, receive, send)
        except Exception:  # FastAPI has answered already, by `handle_unexpected_error`
            log.exception("%s %s failed", scope["method"], scope["path"])

    def _admit(self, scope: Scope, method: str, headers: dict[bytes, bytes], request_id: str) -> None:
        """Check that the caller may use the HTTP *method*; store the caller and *request_id* in *scope*. A rejected
        change is written to the audit log. Raises ``MagnetarError`` for a caller without permission."""
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        caller = state.get("peer", access.NOBODY)
        try:
            scope["path"] = decode_path(scope)
            if scope["path"] != "/healthz" or caller.via != "socket":
                caller = access.admit_caller(caller, method, headers, self.tokens)
            if slot := state.get("slot"):
                slot.keep()
            state["caller"], state["scope"] = caller.name, caller.scope
            state["cloud"] = headers.get(b"user-agent") == CLOUD.encode()
        except MagnetarError as error:
            if method not in access.SAFE:
                audit.write_audit_line(method, None, scope["path"].replace("\x00", "/"), caller.name, request_id,
                                       "refused", error={"code": error.code, "message": error.message})
            raise

    async def _console(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the WebSocket of a console. If the console is rejected, send an HTTP error response, as for other
        requests."""
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        token = audit.request_id.set(request_id)
        try:
            self._admit(scope, access.WEBSOCKET, headers, request_id)
            await self.consoles(scope, receive, send)
        except MagnetarError as error:
            await failure_response(error, request_id)(scope, receive, send)
        finally:
            audit.request_id.reset(token)


def _request_id(headers: dict[bytes, bytes]) -> str:
    """Return the caller's request id if it is valid; otherwise a new one."""
    requested_id = headers.get(b"x-request-id", b"").decode("latin-1")
    return requested_id if REQUEST_ID.fullmatch(requested_id) else f"req-{uuid.uuid4()}"


def decode_path(scope: Scope) -> str:
    """Return the percent-decoded path of a request. A slash inside of a path segment (%2F) becomes NUL, because names
    of resources may contain slashes; ``routes.path_key`` converts it back."""
    raw = scope.get("raw_path") or scope["path"].encode()
    if b"%00" in raw or b"\x00" in raw:
        raise InvalidRequest("The path has a NUL character, which no name may have.")
    if b"%2f" not in raw.lower():
        return str(scope["path"])
    parts = (unquote_to_bytes(part).decode("utf-8", "replace").replace("/", "\x00") for part in raw.split(b"/"))
    return "/".join(parts)


async def handle_refusal(request: Request, error: Any) -> Json:
    """Return the JSON response for *error*, a ``MagnetarError``. An exception handler of FastAPI."""
    return failure_response(error, request.state.request_id)


async def handle_unexpected_error(request: Request, error: Exception) -> Json:
    """Return a response with status 500 that hides the details of *error*, which ``Front`` logs. An exception handler
    of FastAPI."""
    return failure_response(mask_unforeseen_error(error), request.state.request_id)


async def handle_unknown_route(request: Request, error: Any) -> Json:
    """Return the response for a path or method that does not exist. An exception handler of FastAPI."""
    where = request.scope["path"]
    shown = where.replace("\x00", "/")  # not request.url, which cannot read every query
    if error.status_code == 405:
        methods = {method for route in request.app.routes if getattr(route, "path_regex", _NEVER).match(where)
                   for method in route.methods}
        allow = ", ".join(sorted(methods))
        refusal: MagnetarError = MethodNotAllowed(f"{shown} does not know {request.method}; it knows {allow}.",
                                                  allow=allow)
    elif error.status_code == 404:
        nouns = ", ".join(kind.noun for kind in KINDS)
        refusal = NotFound(f"There is no {shown}. Resources are at /v1/KIND and /v1/KIND/KEY, where KIND is "
                           f"one of {nouns}; /docs shows all routes.")
    else:
        refusal = InvalidRequest(str(error.detail))
    return failure_response(refusal, request.state.request_id)


class Pages:
    """The HTTP handlers for the agent and its host: inventory, health, metrics, API documentation."""

    def __init__(self, agent: ManagedHost, metrics: AgentMetrics) -> None:
        self.agent, self.metrics, self.version = agent, metrics, installed_version()
        # Separate threads: waiting for a guest must not block other requests, and nothing may block health checks.
        self._guest_threads, self._health_threads = CapacityLimiter(GUEST_THREADS), CapacityLimiter(HEALTH_THREADS)

    async def root(self, request: Request) -> Json:
        """Return facts about this agent: its host, the version of the API, the resource types, and the agent's version.
        """
        read_query(request)
        return Json({"host": self.agent.host.name, "api": API, "kinds": [kind.noun for kind in KINDS],
                     "version": self.version})

    async def host(self, request: Request) -> Json:
        """Return the host's facts, inventory and usage, and the objects on it (such as domains) that belong to no
        resource."""
        read_query(request)
        return Json(await run_in_threadpool(inventory.host_resource, self.agent.drivers))

    async def uptime(self, request: Request) -> Json:
        """Return the host's uptime and load averages. Runs no other checks, so it is fast."""
        read_query(request)
        return Json(await run_in_threadpool(self.agent.host.hypervisor.uptime))

    async def load(self, request: Request) -> Json:
        """Return how much CPU and memory the host and its guests use, averaged over the last ten minutes."""
        read_query(request)
        return Json(await run_in_threadpool(inventory.host_load, self.agent.host))

    async def content(self, request: Request) -> Json:
        """Return the content of a storage pool, for a cloud that imports existing disks as volumes."""
        pool = read_query(request, pool=lambda name, value: POOL.check(value, name)).get("pool", DEFAULT)
        return Json({"content": await run_in_threadpool(list_content, self.agent.host, pool)})

    async def reach(self, request: Request) -> Json:
        """Return whether another host is alive. A host is alive if it accepts or refuses a TCP connection from this
        host; a dead host does not react to the attempt. Needs the scope ``operate``, because the agent connects to any
        address that the caller names."""
        access.require_operate(request.state.caller, request.state.scope, "this connects to another host")
        query = read_query(request, address=read_text, port=read_number)
        if missing := [name for name in ("address", "port") if name not in query]:
            raise InvalidField(missing[0], "is required")
        return Json({"reached": await run_in_threadpool(is_host_reached, query["address"], query["port"])})

    async def diagnostics(self, request: Request) -> Json:
        """Return a server's resource usage since it was started, as its hypervisor counts it; empty while the server is
        off."""
        read_query(request)
        return Json(await to_thread.run_sync(collect_diagnostics, self.agent.drivers, path_key(request),
                                             limiter=self._guest_threads))

    async def health(self, _request: Request) -> Json:
        """Return status 200 while libvirt answers, and 503 while it does not."""
        connected = await to_thread.run_sync(self.agent.host.hypervisor.connected, limiter=self._health_threads)
        return Json({"status": "ok" if connected else "libvirt does not answer", "libvirt": connected},
                    200 if connected else 503)

    async def metrics_text(self, _request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(await run_in_threadpool(self.metrics.text), media_type="text/plain; version=0.0.4")

    async def docs(self, request: Request) -> HTMLResponse:
        """Return an HTML page that describes all routes of the API. It is generated here, and loads nothing from other
        sites."""
        return HTMLResponse(openapi.render_docs_page(request.app.openapi()))


class AgentApplication(Front):
    """The agent's HTTP application (ASGI). *feed*: the source of events for ``GET /v1/watch``; by default a new
    ``Feed``."""

    def __init__(self, agent: ManagedHost, feed: Feed | None = None) -> None:
        tokens, metrics = access.BearerTokens(agent.host.settings.tokens_file), AgentMetrics(agent.host)
        self.feed = feed or Feed(agent.host)
        api = FastAPI(title="Magnetar host agent", version=installed_version(), docs_url=None, redoc_url=None,
                      redirect_slashes=False, description="Makes one libvirt host be what its documents say.")
        self._routes(api, agent, metrics)
        api.add_exception_handler(MagnetarError, handle_refusal)
        api.add_exception_handler(HTTPException, handle_unknown_route)
        api.add_exception_handler(Exception, handle_unexpected_error)
        openapi.extend_openapi_document(api)
        super().__init__(api, agent, tokens, metrics, OpenConsoles(agent))
        self.api = api

    def admit_connection(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether to serve the new connection *transport*: always true, except in the simulator of hosts, which
        overrides this method. Called in the server's event loop."""
        return True

    def accept_link(self, transport: asyncio.BaseTransport, admitted: Callable[[], None]) -> None:
        """Take over a TLS connection on which another agent has requested a link, a direct connection between agents.
        *admitted* is called once the other agent is authorized; see ``Links.accept``."""
        self.agent.host.links.accept(transport, admitted)

    def _routes(self, api: FastAPI, agent: ManagedHost, metrics: AgentMetrics) -> None:
        pages, tasks, streams, guest = Pages(agent, metrics), Tasks(agent), Streams(agent), GuestRoute(agent)
        for method, where, endpoint, extra in (
            ("GET", "/v1", pages.root, {}),
            ("GET", "/healthz", pages.health, {}),
            ("GET", "/metrics", pages.metrics_text, openapi.describe_text_route("Prometheus' text format")),
            ("GET", "/docs", pages.docs, {"include_in_schema": False}),
            ("GET", "/v1/host", pages.host, openapi.describe_show_route(Host)),
            ("GET", "/v1/host/uptime", pages.uptime, openapi.describe_uptime_route()),
            ("GET", "/v1/host/load", pages.load, openapi.describe_load_route()),
            ("GET", "/v1/host/content", pages.content, openapi.describe_content_route()),
            ("GET", "/v1/host/reach", pages.reach, openapi.describe_reach_route()),
            ("GET", "/v1/watch", self.feed.watch, openapi.describe_watch_route()),
            ("GET", "/v1/operations", tasks.list, openapi.describe_operations_route()),
            ("GET", "/v1/operations/{key}", tasks.show, openapi.describe_operation_route("wait")),
            ("DELETE", "/v1/operations/{key}", tasks.cancel, openapi.describe_operation_route()),
            ("PUT", f"/v1/{Image.noun}/{{key}}/data", streams.upload, openapi.describe_upload_route(Image)),
            ("GET", f"/v1/{Image.noun}/{{key}}/data", streams.download, openapi.describe_download_route(Image)),
            ("GET", f"/v1/{Server.noun}/{{key}}/console", streams.console, openapi.describe_console_route()),
            ("POST", f"/v1/{Server.noun}/{{key}}/guest", guest.command, openapi.describe_guest_route()),
            ("GET", f"/v1/{Server.noun}/{{key}}/diagnostics", pages.diagnostics, openapi.describe_diagnostics_route()),
        ):
            api.add_api_route(where, endpoint, methods=[method], response_class=Json, **{"tags": ["agent"], **extra})
        for kind in KINDS:
            if kind is Host:
                continue
            resources = Resources(agent, kind)
            for method, where, endpoint, extra in (
                ("GET", f"/v1/{kind.noun}", resources.list, openapi.describe_list_route(kind, resources.filters)),
                ("PUT", f"/v1/{kind.noun}", resources.ensure_many, openapi.describe_batch_route(kind)),
                ("GET", f"/v1/{kind.noun}/{{key}}", resources.show, openapi.describe_show_route(kind)),
                ("PUT", f"/v1/{kind.noun}/{{key}}", resources.ensure, openapi.describe_ensure_route(kind)),
                ("DELETE", f"/v1/{kind.noun}/{{key}}", resources.remove, openapi.describe_remove_route(kind)),
                ("POST", f"/v1/{kind.noun}/{{key}}/events", resources.event, openapi.describe_event_route(kind)),
            ):
                api.add_api_route(where, endpoint, methods=[method], response_class=Json, **extra,
                                  operation_id=f"{endpoint.__name__}_{kind.noun}")
