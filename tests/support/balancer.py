# SPDX-License-Identifier: GPL-3.0-or-later
"""A small HTTP balancer, as HAProxy in ``mode http`` with ``option http-server-close``: clients keep their connections,
and each request goes to one of the backends over a connection of its own.

A backend whose ``/healthz`` is not 200, or that was told to drain, gets no further requests. A request is sent again,
to another backend, only where nothing can happen twice: when no connection was made, so that no byte of it was sent
(``refused``), and when it only reads and its connection ended without an answer (``repeated``). Any other request
without an answer gets a 502 (``lost``).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, Self

from .ports import free_port

#: Seconds between two health checks of a backend, and that it has to answer one.
INTERVAL, PATIENCE = 0.2, 10.0
READING = ("GET", "HEAD")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOST = (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")
NOBODY = (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")


class Head:
    """The first line and the headers of a request or an answer."""

    def __init__(self, content: bytes) -> None:
        self.first, _end, rest = content.partition(b"\r\n")
        self.lines = [line for line in rest.split(b"\r\n") if line]
        pairs = (line.partition(b":") for line in self.lines)
        self.headers = {name.strip().lower(): value.strip() for name, _colon, value in pairs}

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.first.split()[0].decode()

    @property
    def length(self) -> int | None:
        """The length of the body; ``None`` if the end of the connection is its end."""
        given = self.headers.get(b"content-length")
        return None if given is None else int(given)

    def with_connection(self, word: bytes) -> bytes:
        """Return the head with another header Connection."""
        kept = [line for line in self.lines if not line.lower().startswith(b"connection:")]
        return b"\r\n".join([self.first, *kept, b"connection: " + word, b"", b""])


class Balancer:
    """A balancer on ``port`` before *backends*: ports by name. Use it as a context manager."""

    def __init__(self, backends: Mapping[str, int]) -> None:
        self.backends, self.port = dict(backends), free_port()
        self.up: dict[str, bool] = dict.fromkeys(backends, False)
        self.draining: set[str] = set()
        #: Requests by backend: in progress, and all so far.
        self.busy: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.refused, self.repeated = 0, 0
        self.lost: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="balancer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_exc: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def drain(self, name: str, seconds: float = 60.0) -> None:
        """Send no more requests to a backend, and wait until it has answered those in progress."""
        self._call(asyncio.wait_for(self._drain(name), seconds))

    def enable(self, name: str) -> None:
        """Send requests to a backend again, once its health check succeeds."""
        self.up[name] = False
        self.draining.discard(name)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _drain(self, name: str) -> None:
        self.draining.add(name)
        while self.busy[name]:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self._checks = [asyncio.ensure_future(self._check(name)) for name in self.backends]

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _check(self, name: str) -> None:
        while True:
            try:
                self.up[name] = await asyncio.wait_for(self._healthy(self.backends[name]), PATIENCE)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                self.up[name] = False
            await asyncio.sleep(INTERVAL)

    async def _healthy(self, port: int) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: balancer\r\nconnection: close\r\n\r\n")
            return (await reader.readuntil(b"\r\n")).split()[1] == b"200"
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one request on. Return whether the client's connection can have another one."""
        head = Head(await reader.readuntil(b"\r\n\r\n"))
        assert b"transfer-encoding" not in head.headers, "the balancer takes no chunked requests"
        sent = head.with_connection(b"close") + await reader.readexactly(head.length or 0)
        for name in self._order():
            if name in self.draining:
                continue
            async with self._connection(name) as streams:
                if streams is not None and (answer := await self._ask(name, head, sent, streams)) is not None:
                    return await _relay(answer, streams[0], writer, head.method)
            if streams is not None and head.method not in READING:
                self.lost.append(f"{name}: {head.first.decode()}")
                writer.write(LOST)
                return True
        self.lost.append(f"nobody: {head.first.decode()}")
        writer.write(NOBODY)
        return True

    @contextlib.asynccontextmanager
    async def _connection(self, name: str) -> AsyncIterator[Streams | None]:
        """Yield a connection to a backend; ``None`` if it refuses. Its request is in progress meanwhile."""
        self.busy[name] += 1
        try:
            streams = await asyncio.open_connection("127.0.0.1", self.backends[name])
        except OSError:
            self.refused, self.up[name], streams = self.refused + 1, False, None
        try:
            yield streams
        finally:
            self.busy[name] -= 1
            if streams is not None:
                streams[1].close()

    async def _ask(self, name: str, head: Head, sent: bytes, streams: Streams) -> Head | None:
        """Send a request, and return the head of the answer; ``None`` if the connection ends without one."""
        self.served[name] += 1
        try:
            streams[1].write(sent)
            return Head(await streams[0].readuntil(b"\r\n\r\n"))
        except (OSError, asyncio.IncompleteReadError):
            self.repeated += head.method in READING
            return None

    def _order(self) -> list[str]:
        """The backends to try: those that are up, the one with the fewest requests first."""
        fit = [name for name in self.backends if self.up[name] and name not in self.draining]
        return sorted(fit, key=lambda name: (self.busy[name], self.served[name]))


async def _relay(answer: Head, server: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str) -> bool:
    """Send an answer to the client. Return whether its end is known without the end of the connection."""
    status = int(answer.first.split()[1])
    length = 0 if method == "HEAD" or status in (204, 304) else answer.length
    writer.write(answer.with_connection(b"close" if length is None else b"keep-alive"))
    if length is not None:
        writer.write(await server.readexactly(length))
        await writer.drain()
        return True
    while piece := await server.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    return False
