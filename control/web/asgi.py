# SPDX-License-Identifier: GPL-3.0-or-later
"""The ASGI application: reads requests, has the mounted applications answer them in threads, sends the answers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import orjson

from .answer import Answer, Fault
from .application import Application
from .quick import Together, Way
from .request import Request

log = logging.getLogger(__name__)
access = logging.getLogger("magnetar.access")
#: Largest body that is taken, in bytes; streams have no such limit.
BODY_LIMIT = 1 << 20
_PIECE_WAIT = 300.0
#: Streams that come in or go out at the same moment; more of them wait.
STREAMS = 32
#: Threads of requests that may wait for hosts, and of those about the health of the cloud.
WAITING, HEALTH = 64, 2
Observe = Callable[[str, str, str, int, float], None]


class Server:
    """Mounts by prefix, longest first. *trusted*: believe X-Forwarded-Proto and -Host; a proxy sets them. *observe* is
    told of each request: prefix, method, pattern of the route (empty for none), status, seconds."""

    def __init__(self, mounts: Mapping[str, Application], threads: int = 16, trusted: bool = False,
                 lifespan: Callable[[bool], None] | None = None, observe: Observe | None = None) -> None:
        self.mounts = sorted(mounts.items(), key=lambda mount: -len(mount[0]))
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="api")
        # Of their own, so that slow uploads and downloads keep nobody else waiting.
        self.streams = ThreadPoolExecutor(STREAMS, thread_name_prefix="stream")
        self.apart = {Way.WAIT: ThreadPoolExecutor(WAITING, thread_name_prefix="wait"),
                      Way.HEALTH: ThreadPoolExecutor(HEALTH, thread_name_prefix="health")}
        self.quick = Together(ThreadPoolExecutor(threads, thread_name_prefix="quick"))
        self.trusted, self.lifespan, self.observe = trusted, lifespan, observe

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            begins = message["type"] == "lifespan.startup"
            if self.lifespan:
                await asyncio.get_running_loop().run_in_executor(None, self.lifespan, begins)
            await send({"type": message["type"] + ".complete"})
            if not begins:
                return

    async def _http(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        # A client may send one id with many requests (Nova's global request id); what it asks for needs ids of its own.
        theirs = headers.pop("x-openstack-request-id", None)
        raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
        prefix, application = self._mounted(raw)
        request = Request(scope["method"], raw[len(prefix):] or "/", scope["query_string"].decode("latin-1"), headers,
                          root=self._root(scope, headers))
        request.base = request.root + prefix
        try:
            answer = await self._answer(application, request, receive, loop)
        except Fault as fault:  # the body is too large
            answer = application.refused(request, fault)
        except Exception:
            log.exception("%s %s failed", request.method, raw, extra={"request_id": request.id})
            answer = application.refused(request, Fault(500, "The service failed to answer; its log says why under "
                                                             f"{request.id}."))
        await self._send(answer, request, send, loop)
        if self.observe:
            self.observe(prefix, request.method, request.extra.get("route", ""), answer.status,
                         time.perf_counter() - started)
        if access.isEnabledFor(logging.INFO):
            access.info("%s %s %d", request.method, raw, answer.status, extra={
                "request_id": request.id, "global_request_id": theirs and theirs[:40], "status": answer.status,
                "milliseconds":
                round((time.perf_counter() - started) * 1000, 2), "user": getattr(request.context, "user_id", None),
                "project": getattr(request.context, "project_id", None)})

    async def _answer(self, application: Application, request: Request, receive: Any,
                      loop: asyncio.AbstractEventLoop) -> Answer:
        threads, headers = self.threads, request.headers
        if application.streams(request.method, request.path):
            threads = self.streams
            request._chunks = _incoming(receive, loop)  # noqa: SLF001 - the other half of Request
        elif "content-length" in headers or "transfer-encoding" in headers:
            request.content = await _body(receive, headers)
        way = application.way(request)
        if way is Way.THREAD or way in self.apart:
            return await loop.run_in_executor(self.apart.get(way, threads), application.handle, request)
        return await self.quick.answer(way, application.handle, request)

    def _mounted(self, path: str) -> tuple[str, Application]:
        for prefix, application in self.mounts:
            if path.startswith(prefix) and (len(path) == len(prefix) or path[len(prefix)] == "/" or not prefix):
                return prefix, application
        raise LookupError("something must be mounted at the empty prefix")

    def _root(self, scope: dict[str, Any], headers: Mapping[str, str]) -> str:
        scheme, host = scope["scheme"], headers.get("host", "localhost")
        if self.trusted:
            scheme = headers.get("x-forwarded-proto", scheme)
            host = headers.get("x-forwarded-host", host)
        return f"{scheme}://{host}"

    async def _send(self, answer: Answer, request: Request, send: Any, loop: asyncio.AbstractEventLoop) -> None:
        body = answer.body()
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
                   for name, value in answer.headers.items()]
        headers.append((b"x-openstack-request-id", request.id.encode()))
        if body or answer.media_type != "application/json":
            headers.append((b"content-type", answer.media_type.encode()))
        if isinstance(body, bytes):
            if answer.status != 204:
                headers.append((b"content-length", str(len(body)).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": body if request.method != "HEAD" else b""})
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await _pieces(body, send, loop, self.streams)


async def _pieces(body: Iterable[bytes], send: Any, loop: asyncio.AbstractEventLoop,
                  threads: ThreadPoolExecutor) -> None:
    pieces, end = iter(body), object()
    while (piece := await loop.run_in_executor(threads, next, pieces, end)) is not end:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _body(receive: Any, headers: Mapping[str, str]) -> bytes:
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > BODY_LIMIT:
        raise Fault(413, f"The body has {length} bytes; at most {BODY_LIMIT} are taken.")
    content: bytes = b""
    while True:
        message = await receive()
        content += message.get("body", b"")
        if len(content) > BODY_LIMIT:
            raise Fault(413, f"The body has more than {BODY_LIMIT} bytes.")
        if not message.get("more_body"):
            return content


def _incoming(receive: Any, loop: asyncio.AbstractEventLoop) -> Callable[[], Iterator[bytes]]:
    """The content for a handler's thread, piece by piece. Ends with ``Fault`` 400 when the client goes away."""

    def chunks() -> Iterator[bytes]:
        while True:
            message = asyncio.run_coroutine_threadsafe(receive(), loop).result(_PIECE_WAIT)
            if message["type"] == "http.disconnect":
                raise Fault(400, "The client ended the connection before all of the content had arrived.")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    return chunks


class JsonLog(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the request's id where there is one."""

    FIELDS = ("request_id", "global_request_id", "server", "host", "action", "status", "milliseconds", "user",
              "project", "cell")

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        found: dict[str, Any] = {"time": _second(int(record.created)),
                                 "level": record.levelname.lower(), "logger": record.name,
                                 "message": record.getMessage()}
        found.update((name, value) for name in self.FIELDS if (value := getattr(record, name, None)) is not None)
        if record.exc_info:
            found["trace"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(found).decode()
        except TypeError:  # text that is no Unicode, such as names of files
            return json.dumps(found, default=str)


@lru_cache(maxsize=4)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))
