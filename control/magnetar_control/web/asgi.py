# SPDX-License-Identifier: GPL-3.0-or-later
"""The ASGI application. It reads requests, passes them to the mounted applications in threads, and sends the
answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from magnetar_core.errors import MagnetarError, TooSlow
from magnetar_core.http.connections import Connections, ConnectionSlot, counted_address, without_port

from .answer import JSON, Answer, Fault, LiveBody
from .application import Application
from .bodies import BufferedBytes, IncomingBody, RequestBytes
from .fair_threads import FairThreads
from .protocol import WHOLE, SendWhole
from .quick import RunIn, Together
from .request import Request
from .secret_paths import without_secrets
from .transfers import LATER, Clock, Pace, Transfers
from .websocket import WebSocket, cut_connection

log = logging.getLogger(__name__)
access = logging.getLogger("magnetar.access")
#: Limit of the query string, in bytes: lists build statements from it.
QUERY_LIMIT = 1 << 14
#: Bytes of content in one send: few, to notice early whether the client reads.
PIECE = 1 << 17
#: Threads for downloads. Threads for uploads of services and for refused uploads, in addition to those for users.
STREAMS, MORE = 32, 32
#: Statuses of a refused upload that close its connection, so that the client sends no more content.
ENDING = (408, 429, 503)
#: Threads of requests that may wait for hosts (``compute.waiting`` has the shares of projects and hosts).
WAITING = 64
#: Threads of requests about the health of the cloud, the share of one address, and the number of its requests that may
#: wait.
HEALTH, HEALTH_SHARE, HEALTH_WAITING = 2, 1, 64
#: Threads of logins, which compute; the share of one address or user, and the number of its logins that may wait.
LOGINS, LOGIN_SHARE, LOGINS_WAITING = 4, 3, 64
#: The answer to a request that is in progress when the server stops.
STOPPING = ("The API is stopping and has not waited for the result of this request. Try again in a few seconds; a "
            "request that changes something may have taken effect.")
Observe = Callable[[str, str, str, int, float], None]


class AsgiServer:
    """The ASGI application of the API server. It passes each request to the application that is mounted at the longest
    matching prefix of its path.

    *mounts*: applications by path prefix. *trusted*: whether a proxy sets X-Forwarded-For, -Proto and -Host. *url*: the
    URL that clients use; by default links begin with the host of the request, or of X-Forwarded-Host. *observe* is
    called after each request with prefix, method, pattern of the route (empty for none), status and seconds. *on_stop*
    is called when the process begins to stop.
    """

    def __init__(self, mounts: Mapping[str, Application], threads: int = 16, trusted: bool = False,
                 lifespan: Callable[[bool], None] | None = None, observe: Observe | None = None,
                 url: str | None = None, transfers: Transfers | None = None,
                 connections: Connections | None = None, on_stop: Callable[[], None] = lambda: None) -> None:
        self.mounts = sorted(mounts.items(), key=lambda mount: -len(mount[0]))
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="api")
        self.transfers, self.connections = transfers or Transfers(), connections or Connections(0)
        # Separate threads, so that slow uploads delay no other request. A download uses one only to read its file.
        self.uploads = ThreadPoolExecutor(self.transfers.uploads.most + MORE, thread_name_prefix="upload")
        self.downloads = ThreadPoolExecutor(STREAMS, thread_name_prefix="download")
        self.apart = {RunIn.WAIT: ThreadPoolExecutor(WAITING, thread_name_prefix="wait")}
        self.health = FairThreads("health", HEALTH, HEALTH_SHARE, HEALTH_WAITING)
        self.logins = FairThreads("login", LOGINS, LOGIN_SHARE, LOGINS_WAITING)
        self.buffered = BufferedBytes()
        self.quick = Together(ThreadPoolExecutor(threads, thread_name_prefix="quick"))
        self.trusted, self.lifespan, self.observe = trusted, lifespan, observe
        self.url = url.rstrip("/") if url else None
        self.stopping, self._on_stop = False, on_stop

    def begin_stop(self) -> None:
        """From now on, close each connection after its next response, so that its client connects to another API
        process."""
        self.stopping = True
        self._on_stop()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        slot = self._slot(scope)
        try:
            if scope["type"] == "http":
                await self._http(scope, receive, send, slot.refused)
            elif scope["type"] == "websocket":
                await self._websocket(scope, receive, send, slot.refused)
        finally:
            slot.free()

    def _slot(self, scope: dict[str, Any]) -> ConnectionSlot:
        """Count a connection for the client's address if a trusted proxy reports that address; all other connections
        were counted when they were accepted (``Admitting``, a base class of the HTTP protocol). Return the connection's
        slot in the limits of connections."""
        headers = _headers(scope) if self.trusted else {}
        return self.connections.take(self._address(scope, headers) if "x-forwarded-for" in headers else "")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            begins = message["type"] == "lifespan.startup"
            if self.lifespan:
                await asyncio.get_running_loop().run_in_executor(None, self.lifespan, begins)
            await send({"type": message["type"] + ".complete"})
            if not begins:
                return

    async def _http(self, scope: dict[str, Any], receive: Any, send: Any, refused: MagnetarError | None) -> None:
        started = time.perf_counter()
        headers = _headers(scope)
        # A client may send one id with many requests (Nova's global request id); each request needs an id of its own.
        theirs = headers.pop("x-openstack-request-id", None)
        raw = _path(scope)
        prefix, application = self._mounted(raw)
        request = Request(scope["method"], raw[len(prefix):] or "/", scope["query_string"].decode("latin-1"), headers,
                          root=self._root(scope, headers))
        request.base, request.address = request.root + prefix, self._address(scope, headers)
        request.transfers = self.transfers
        slot, share = scope.get("state", {}).get("slot"), self.buffered.share(request.address)
        try:
            answer = await self._answer(application, request, receive, (slot, share), refused)
            if slot is not None and request.context is None:
                slot.lend()
            await self._send(answer, request, receive, send, scope.get("extensions", {}).get(WHOLE))
        finally:
            share.free()
        if self.observe:
            self.observe(prefix, request.method, request.extra.get("route", ""), answer.status,
                         time.perf_counter() - started)
        if access.isEnabledFor(logging.INFO):
            access.info("%s %s %d", request.method, without_secrets(raw), answer.status, extra={
                "request_id": request.id, "global_request_id": theirs and theirs[:40], "status": answer.status,
                "milliseconds":
                round((time.perf_counter() - started) * 1000, 2), "user": getattr(request.context, "user_id", None),
                "project": getattr(request.context, "project_id", None)})

    async def _websocket(self, scope: dict[str, Any], receive: Any, send: Any, refused: MagnetarError | None) -> None:
        headers, raw = _headers(scope), _path(scope)
        prefix, application = self._mounted(raw)
        socket = WebSocket(scope, receive, send, headers, raw[len(prefix):] or "/", self._root(scope, headers),
                           self._address(scope, headers))
        if (slot := scope.get("state", {}).get("slot")) is not None:
            slot.keep()
        scope["query_string"] = b""  # it may contain a token, which uvicorn must not log
        if refused:
            await socket.refuse(Answer({"error": {"code": refused.status, "message": refused.message}}, refused.status,
                                       refused.details["headers"]))
            return
        try:
            await application.websocket(socket)
        except Exception:
            log.exception("WebSocket %s failed", raw)
            raise

    async def _answer(self, application: Application, request: Request, receive: Any,
                      holds: tuple[ConnectionSlot | None, RequestBytes], refused: MagnetarError | None) -> Answer:
        """Read the request's body, unless the handler does so itself, and return the response. *holds*: the
        connection's slot in the limit of connections, and the counter of the request's bytes in memory. *refused*: the
        error if the connection exceeds its limit."""
        try:
            if refused:
                raise Fault(refused.status, refused.message, **refused.details)
            if len(request.query_string) > QUERY_LIMIT:
                raise Fault(400, f"The query of the URL has {len(request.query_string)} bytes; at most {QUERY_LIMIT} "
                                 "are taken. Ask for less at once.")
            refusal = await self._body(application, request, receive, holds[1])
            if holds[0] is not None:
                holds[0].keep()
            answer = refusal or await self._handled(application, request, receive)
            answer.content = body = answer.body()  # made once
            if request.method == "GET" and isinstance(body, bytes) and len(body) > PIECE:
                holds[1].add(len(body))
            return answer
        except Fault as fault:  # the body or the query is too large
            return application.refused(request, fault)
        except asyncio.CancelledError:  # only a server that stops cancels requests; it waits no longer
            return application.refused(request, Fault(503, STOPPING, LATER))
        except Exception:
            log.exception("%s %s failed", request.method, without_secrets(request.path),
                          extra={"request_id": request.id})
            return application.refused(request, Fault(500, "The service failed to answer; its log says why under "
                                                           f"{request.id}."))

    async def _body(self, application: Application, request: Request, receive: Any,
                    share: RequestBytes) -> Answer | None:
        """Read the body of a request into ``request.content``, and count its bytes in *share*. Return an error response
        if *application* does not admit the request, otherwise ``None``. Raises ``Fault``."""
        if not ("content-length" in request.headers or "transfer-encoding" in request.headers) or (
                application.streams(request.method, request.path)):
            return None
        body = IncomingBody(receive, request.headers, share)
        try:
            if not await body.prompt():
                refusal = await asyncio.get_running_loop().run_in_executor(self.threads, application.admit, request)
                if refusal is not None:
                    return refusal
                await body.rest()
        finally:
            body.end()
        request.content = body.content()
        return None

    async def _handled(self, application: Application, request: Request, receive: Any) -> Answer:
        """Call the application's handler in the thread pool or event loop that the request's ``RunIn`` names, and
        return the response."""
        loop = asyncio.get_running_loop()
        if application.streams(request.method, request.path):
            request._chunks = _incoming(receive, loop, self.transfers.pace)  # noqa: SLF001 - the other half of Request
            answer = await loop.run_in_executor(self.uploads, application.handle, request)
            answer.headers.update({"Connection": "close"} if answer.status in ENDING else {})
            return answer
        run_in = application.run_in(request)
        if run_in is RunIn.LOGIN:
            return await self._login(application, request)
        if run_in is RunIn.HEALTH:
            return await self.health.run(counted_address(request.address), lambda: application.handle(request))
        if run_in in self.apart or run_in is RunIn.THREAD:
            return await loop.run_in_executor(self.apart.get(run_in, self.threads), application.handle, request)
        return await self.quick.answer(run_in, application.handle, request)

    async def _login(self, application: Application, request: Request) -> Answer:
        """Return the response to a login, or to another request that needs much computation. The handler runs in the
        thread pool for logins. One user (or one client address, if the request has no user) may occupy only some of
        these threads."""
        if "x-auth-token" in request.headers:
            refusal = await asyncio.get_running_loop().run_in_executor(self.threads, application.admit, request)
            if refusal is not None:
                return refusal
        key = counted_address(request.address) if request.context is None else f"user {request.context.user_id}"
        return await self.logins.run(key, lambda: application.handle(request))

    def _mounted(self, path: str) -> tuple[str, Application]:
        for prefix, application in self.mounts:
            if path.startswith(prefix) and (len(path) == len(prefix) or path[len(prefix)] == "/" or not prefix):
                return prefix, application
        raise LookupError("something must be mounted at the empty prefix")

    def _root(self, scope: dict[str, Any], headers: Mapping[str, str]) -> str:
        if self.url:
            return self.url
        scheme, host = scope["scheme"].replace("ws", "http"), headers.get("host", "localhost")
        if self.trusted:
            scheme = headers.get("x-forwarded-proto", scheme)
            host = headers.get("x-forwarded-host", host)
        return f"{scheme}://{host}"

    def _address(self, scope: dict[str, Any], headers: Mapping[str, str]) -> str:
        """Return the client's IP address. With a trusted proxy, this is the last entry of X-Forwarded-For, which the
        proxy has added."""
        peer = str((scope.get("client") or ("",))[0])
        return without_port(headers.get("x-forwarded-for", peer).rpartition(",")[2].strip()) if self.trusted else peer

    async def _send(self, answer: Answer, request: Request, receive: Any, send: Any,
                    whole: SendWhole | None = None) -> None:
        body = answer.body()
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
                   for name, value in answer.headers.items()]
        headers.append((b"x-openstack-request-id", request.id.encode()))
        if (body or answer.media_type != JSON) and "content-type" not in answer.headers:
            headers.append((b"content-type", answer.media_type.encode()))
        if self.stopping and "Connection" not in answer.headers:
            headers.append((b"connection", b"close"))
        if isinstance(body, bytes):
            if answer.status != 204:
                headers.append((b"content-length", str(len(body)).encode()))
            body = body if request.method != "HEAD" else b""
            if whole is not None and len(body) <= PIECE:
                await whole(answer.status, headers, body)
                return
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await _in_pieces(send, body)
            return
        disconnected = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if isinstance(body, LiveBody):
                await self._live(body, send, disconnected)
            else:
                await self._pieces(body, send, disconnected)
        except TooSlow:
            access.warning("an answer was ended: its client did not read", extra={"request_id": request.id})
            await cut_connection(send)
        finally:
            disconnected.cancel()
            if (close := getattr(body, "close", None)) is not None:
                close()

    async def _pieces(self, body: Iterable[bytes], send: Any, disconnected: asyncio.Future[None]) -> None:
        """Send the chunks of *body* until the body ends or the client has *disconnected*. Raises ``TooSlow`` if the
        client reads too slowly."""
        end: Any = object()
        loop, pieces, clock = asyncio.get_running_loop(), iter(body), self.transfers.pace.clock()
        while (piece := await loop.run_in_executor(self.downloads, next, pieces, end)) is not end:
            for at in range(0, len(piece), PIECE):
                if disconnected.done():
                    return
                part = piece[at:at + PIECE]
                await _sent(send({"type": "http.response.body", "body": part, "more_body": True}), clock, len(part))
        await _sent(send({"type": "http.response.body", "body": b""}), clock, 0)

    async def _live(self, body: LiveBody, send: Any, disconnected: asyncio.Future[None]) -> None:
        """Send the chunks of *body* as they come, until the client has *disconnected* or the server stops. *body*
        yields an empty chunk when nothing happens. Raises ``TooSlow`` if the client does not read."""
        clock = self.transfers.pace.clock()
        async with contextlib.aclosing(body.pieces()) as pieces:
            async for piece in pieces:
                if disconnected.done() or self.stopping:
                    break
                if piece:
                    await _sent(send({"type": "http.response.body", "body": piece, "more_body": True}), clock,
                                len(piece))
        if not disconnected.done():
            await _sent(send({"type": "http.response.body", "body": b""}), clock, 0)


async def _in_pieces(send: Any, body: bytes) -> None:
    """Send *body* in chunks. Each ``send`` waits until the client has read most of the previous chunk."""
    for at in range(0, len(body) - PIECE, PIECE):
        await send({"type": "http.response.body", "body": body[at:at + PIECE], "more_body": True})
    last = max(0, (len(body) - 1) // PIECE * PIECE)
    await send({"type": "http.response.body", "body": body[last:]})


async def _gone(receive: Any) -> None:
    """Wait until the client has closed the connection. *receive*: the callable ``receive`` of ASGI."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(scope: Mapping[str, Any]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _path(scope: Mapping[str, Any]) -> str:
    """Return the path of the request as the client wrote it: still percent-encoded, and without the query string."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").partition("?")[0]


async def _sent(sending: Any, clock: Clock, size: int) -> None:
    """Wait until *sending*, a coroutine that sends *size* bytes to the client, is done. *clock* measures the time.
    Raises ``TooSlow`` if the client reads too slowly."""
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            began = time.monotonic()
            await asyncio.wait((task,), timeout=clock.left)
            clock.note(time.monotonic() - began, size if task.done() else 0)
        task.result()
    finally:
        task.cancel()


def _incoming(receive: Any, loop: asyncio.AbstractEventLoop, pace: Pace) -> Callable[[], Iterator[bytes]]:
    """Return a function that a handler in a thread calls to read the request's body. That function returns an iterator
    over chunks. The iterator raises ``Fault`` 400 when the client disconnects, and ``TooSlow`` when the client is
    slower than *pace*. *receive*: the callable ``receive`` of ASGI. *loop*: the event loop that runs *receive*."""

    def chunks() -> Iterator[bytes]:
        clock = pace.clock()
        while True:
            message = _received(asyncio.run_coroutine_threadsafe(receive(), loop), clock)
            if message["type"] == "http.disconnect":
                raise Fault(400, "The client ended the connection before all of the content had arrived.")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    return chunks


def _received(coming: Future[dict[str, Any]], clock: Clock) -> dict[str, Any]:
    """Wait for the next ASGI message of a client, the result of *coming*, and return it. *clock* measures the time.
    Raises ``TooSlow`` if the client is too slow."""
    while True:
        began = time.monotonic()
        try:
            message = coming.result(clock.left)
        except TimeoutError:
            message = {}
        try:
            clock.note(time.monotonic() - began, len(message.get("body", b"")))
        except TooSlow:
            coming.cancel()
            raise
        if message:
            return message
