# SPDX-License-Identifier: GPL-3.0-or-later
"""uvicorn's protocol for HTTP, with limits for what comes before a body: nobody has logged in by then."""

from __future__ import annotations

import ssl
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from magnetar_core.http.connections import KEEP_ALIVE, Admitting, Connections
from magnetar_core.http.deadline import Deadline

from .websocket import OPTIONS

#: Bytes of a request's line and headers, and seconds in which they are to come. One read of the connection may be more.
HEAD, PATIENCE = 1 << 16, 60.0
#: Bytes a second of the rest of a body that has its answer, at the least; such a body may be as long as it likes.
RATE = 1024
MESSAGE = f"The line and the headers of the request have more than {HEAD} bytes."


class LimitedHttp(HttpToolsProtocol):
    """What uvicorn keeps of a head that does not end would grow until the process has no memory, and each further part
    takes as long as all before it."""

    #: Bytes of the head that is under way, whether there is one, and whether a body is.
    _size, _heading, _inside = 0, False, False
    #: Bytes of a body that came after its answer, since the wait began.
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
        if self._inside and self._idle():  # the rest of a body that has its answer
            self._rest += len(data)
            if self._rest >= RATE * PATIENCE:
                self._late.end()
                self._rest = 0
        super().data_received(data)
        if self._heading or self._idle():  # a head that came in one piece, as most do, waits for nothing
            self._late.begin(self.loop, PATIENCE)
        if self._heading and not self.transport.is_closing():
            self._size += len(data)
            if self._size > HEAD:
                self._refuse()

    def _idle(self) -> bool:
        """Whether there is no request that is still to be answered."""
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
        """Nothing is answered to what is no request."""
        self.transport.abort()

    def _refuse(self) -> None:
        body = orjson.dumps({"error": {"code": 431, "message": MESSAGE}})
        self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                             b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body))
        self.transport.close()


class AdmittedHttp(Admitting, LimitedHttp):
    """Connections that have a place."""


def served(places: Connections, tls: ssl.SSLContext | None = None, slowest: int = RATE) -> dict[str, Any]:
    """How uvicorn is to serve the API. It does not do the TLS itself: see ``Admitting``. *slowest*: bytes a second that
    a client has to read."""
    protocol = type("Http", (AdmittedHttp,), {"places": places, "tls": tls, "slowest": slowest})
    return {"http": protocol, "timeout_keep_alive": KEEP_ALIVE, **OPTIONS}
