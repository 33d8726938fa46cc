# SPDX-License-Identifier: GPL-3.0-or-later
"""uvicorn's protocol for HTTP, with limits for everything before a body: the client is not authenticated yet."""

from __future__ import annotations

import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from magnetar_core.http.connections import KEEP_ALIVE, Admitting, Connections
from magnetar_core.http.deadline import Deadline

from .websocket import OPTIONS

#: Limit in bytes of a request's line and headers, and seconds in which they must arrive. One read of the connection may
#: exceed it.
HEAD, PATIENCE = 1 << 16, 60.0
#: Minimum bytes per second of the rest of a body whose answer is sent; the length of such a body is not limited.
RATE = 1024
#: The ASGI extension that sends head and body in one write, as a function of status, headers and body.
WHOLE = "magnetar.response.whole"
SendWhole = Callable[[int, Sequence[tuple[bytes, bytes]], bytes], Awaitable[None]]
#: Bytes that a name or value of a header cannot have.
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
MESSAGE = f"The line and the headers of the request have more than {HEAD} bytes."


class LimitedHttp(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a size limit for a request's line and headers. Without the limit, headers that never
    end would fill the memory, and parsing them would take quadratic time."""

    #: Bytes of the current head, whether a head is being received, and whether a body is.
    _size, _heading, _inside = 0, False, False
    #: Bytes of a body that arrived after its answer, since the wait began.
    _rest = 0
    _late: Deadline

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = Deadline(self._end)
        self._late.begin(self.loop, PATIENCE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._inside and self._idle():  # the rest of a body whose answer is sent
            self._rest += len(data)
            if self._rest >= RATE * PATIENCE:
                self._late.end()
                self._rest = 0
        super().data_received(data)
        if self._heading or self._idle():  # a head in one piece, as most are, needs no wait
            self._late.begin(self.loop, PATIENCE)
        if self._heading and not self.transport.is_closing():
            self._size += len(data)
            if self._size > HEAD:
                self._refuse()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope: Any = cycle.scope
        scope["extensions"] = {WHOLE: partial(send_whole_answer, cycle)}
        super()._start_asgi_task(cycle, app)

    def _idle(self) -> bool:
        """Return whether the connection has no request that still needs a response."""
        return self.cycle is None or self.cycle.response_complete

    def on_message_begin(self) -> None:
        self._size, self._heading = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._heading, self._inside = False, True
        self._late.end()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._inside, self._rest = False, 0
        super().on_message_complete()

    def _end(self) -> None:
        """Abort the connection without a response, because its request is incomplete."""
        self.transport.abort()

    def _refuse(self) -> None:
        body = orjson.dumps({"error": {"code": 431, "message": MESSAGE}})
        self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                             b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        self.transport.close()


async def send_whole_answer(cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]],
                            body: bytes) -> None:
    """Send the response to the request of *cycle* (uvicorn's) in one write, instead of ASGI's two messages. *headers*:
    names in lower case; must contain Content-Length if there is a body. Raises ``ValueError`` for a header with a
    control character."""
    cycle.scope.pop("extensions")  # it refers to the cycle, which would stay until the next garbage collection
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    lines = [b"%b: %b" % header for header in (*cycle.default_headers, *headers)]
    if CONTROL.search(b"".join(lines)):
        raise ValueError("a header of the answer has a control character")
    closing = next((b"close" in value.lower() for name, value in headers if name == b"connection"), False)
    if not cycle.keep_alive and not closing:
        lines.append(b"connection: close")
    cycle.keep_alive = cycle.keep_alive and not closing
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"%b%b\r\n\r\n%b" % (STATUS_LINE[status], b"\r\n".join(lines), body))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class AdmittedHttp(Admitting, LimitedHttp):
    """uvicorn's HTTP protocol with two limits: the size of a request's line and headers (``LimitedHttp``), and the
    number of open connections for each client address (``Admitting``)."""


def uvicorn_http_options(slots: Connections, tls: ssl.SSLContext | None = None, slowest: int = RATE) -> dict[str, Any]:
    """Return uvicorn's options for the API server, as keyword arguments of its ``Config``. *slots*: the limit of open
    connections. *tls*: the TLS context; the protocol class does the handshake instead of uvicorn. *slowest*: the lowest
    permitted speed of a client that reads a response, in bytes per second."""
    protocol = type("Http", (AdmittedHttp,), {"slots": slots, "tls": tls, "slowest": slowest})
    return {"http": protocol, "timeout_keep_alive": KEEP_ALIVE, **OPTIONS}
