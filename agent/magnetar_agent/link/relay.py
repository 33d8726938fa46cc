# SPDX-License-Identifier: GPL-3.0-or-later
"""A relay of bytes between a TLS connection and a local socket. When one end is slow, the other end stops reading."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import MagnetarError

if TYPE_CHECKING:
    from collections.abc import Coroutine

#: The ALPN name of a TLS client that asks for a link instead of HTTP.
ALPN = "magnetar-link/1"
#: The most bytes of the first line, and the seconds until it must have arrived.
LINE, PATIENCE = 4096, 10.0
#: Bytes that may be buffered in an end before the other end stops reading.
BUFFER = 1 << 20
#: Bytes of one read.
SPACE = 1 << 18
#: Options of TCP connections between agents and to clients. Small writes are sent immediately: asyncio ensures that
#: only for a socket that was made with a protocol number. A peer whose host is gone is noticed after 10 + 3 * 5 seconds
#: without traffic, and after 30 s (in ms below) with traffic.
TCP = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
       (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
       (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
       (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30000))


def common_name(tls: ssl.SSLObject | None) -> str:
    """Return the common name in the peer's verified certificate, from the TLS connection *tls*; empty if the peer has
    sent no certificate."""
    shown: Any = tls.getpeercert() if tls else None
    names = [value for part in (shown or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return names[-1] if names else ""


class RelayEnd(asyncio.BufferedProtocol):
    """One of the two ends of a relay, which copies bytes between two connections. Bytes received at this end are
    written to the end *other*."""

    def __init__(self) -> None:
        self.other: RelayEnd | None = None
        self.transport: asyncio.Transport | None = None
        self.closed = False
        #: Bytes that arrived before *other* was set.
        self.early = bytearray()
        self._space = memoryview(bytearray(SPACE))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Override asyncio's callback: store the transport of the new connection."""
        self.transport = transport  # type: ignore[assignment]
        assert self.transport is not None
        self.transport.set_write_buffer_limits(BUFFER)
        if self.closed:
            self.transport.abort()

    def join(self, other: RelayEnd) -> None:
        """Connect this end with *other*, and start copying bytes in both directions. If one of the two ends is closed
        already, close both."""
        self.other, other.other = other, self
        for end in (self, other):
            if end.closed:
                self.close()
                other.close()
                return
        for end in (self, other):
            if end.transport:
                end.transport.resume_reading()
            if end.early:
                end.came(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Override asyncio's callback: return the buffer for the next received bytes. It is reused, because allocating
        a buffer costs more than filling it."""
        return self._space  # a view: asyncio's TLS fills slices of it

    def buffer_updated(self, nbytes: int) -> None:
        """Override asyncio's callback: handle the *nbytes* bytes that were received into the buffer."""
        self.came(self._space[:nbytes])

    def came(self, data: bytes | memoryview) -> None:
        """Write the received *data* to the other end. While there is no other end, buffer the data and stop reading."""
        if self.early or not self.other:
            self.early += data
            data = bytes(self.early)
        if self.other and self.other.transport:
            self.early.clear()
            self.other.transport.write(data)
            if self.other.transport.get_write_buffer_size():
                self._space = memoryview(bytearray(SPACE))  # the transport may still write from the old one
        elif self.transport:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """Override asyncio's callback: make the other end stop reading, because this end is slow."""
        if self.other and self.other.transport:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Override asyncio's callback: make the other end read again, because this end has caught up."""
        if self.other and self.other.transport and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Override asyncio's callback: close the other end, after it has sent its buffered data."""
        self.closed = True
        if self.other:
            self.other.close()

    def close(self) -> None:
        """Close this end after its buffered data has been sent."""
        self.closed = True
        if self.transport and not self.transport.is_closing():  # asyncio's TLS cannot abort after two closes
            self.transport.close()

    def abort(self) -> None:
        """Close both ends immediately and discard their buffered data."""
        self.closed = True
        for end in (self, self.other):
            if end and end.transport:
                end.transport.abort()


class LocalEnd(RelayEnd):
    """The end of a relay at a unix socket of this host; the other end is a TLS connection to another agent.

    *peer*: the other agent. *accepted*: whether that agent opened the TLS connection. *endpoint*: the name of the
    endpoint that the relay leads to. *on_closed*: called when the connection has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_closed: Callable[[LocalEnd], None], peer: str = "",
                 endpoint: str = "", accepted: bool = False) -> None:
        super().__init__()
        self.loop, self._gone, self.peer, self.endpoint, self.accepted = loop, on_closed, peer, endpoint, accepted

    def connection_lost(self, exc: Exception | None) -> None:
        """Override asyncio's callback: close the other end, and call *on_closed*."""
        super().connection_lost(exc)
        self._gone(self)


class _TlsEnd(RelayEnd):
    """The TLS end of a relay. The first line that it receives is a message between the agents; all later bytes are
    copied to the other end."""

    _heard = False

    def came(self, data: bytes | memoryview) -> None:
        """Handle received *data*: collect the first line and pass it to ``spoken``, then copy all later bytes to the
        other end."""
        if self._heard:
            super().came(data)
            return
        self.early += data
        line, newline, remainder = bytes(self.early).partition(b"\n")
        if len(line) > LINE:
            self.abort()
        elif newline:
            self._heard = True
            self.early = bytearray(remainder)
            self.spoken(line)

    def spoken(self, line: bytes) -> None:
        """Handle *line*, the first line from the other agent."""
        raise NotImplementedError


class AcceptedEnd(_TlsEnd):
    """The end of a relay that faces another agent, over a TLS connection which that agent has opened. The agent asks
    for an endpoint of this host; the relay's other end (``LocalEnd``) is connected to it. *admit(peer, link,
    endpoint)*: returns a coroutine that connects to the *endpoint* of the link with the id *link*, or raises an error.
    *admitted*: called when that connection is established."""

    def __init__(self, peer: str, admit: Callable[[str, str, str], Coroutine[Any, Any, LocalEnd]],
                 admitted: Callable[[], None]) -> None:
        super().__init__()
        self.peer, self._admit, self._admitted = peer, admit, admitted
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Override asyncio's callback: start the time limit within which the peer must send its first line."""
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(PATIENCE, self._time_out)

    def _time_out(self) -> None:
        if not self.other and not self._tasks:
            self.abort()

    def spoken(self, line: bytes) -> None:
        """Start to connect to the endpoint that the other agent requests. *line*: the first line from that agent, a
        JSON object with ``link`` (the id of the link) and ``door`` (the name of the endpoint)."""
        task = asyncio.get_running_loop().create_task(self._open(line))
        self._tasks.add(task)

    async def _open(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            end = await self._admit(self.peer, str(request["link"]), str(request["door"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            self.abort()
        except MagnetarError as error:
            self._say({"error": error.as_dict()})
            self.close()
        else:
            self._admitted()
            self._say({})
            self.join(end)

    def _say(self, answer: Any) -> None:
        if self.transport and not self.transport.is_closing():
            self.transport.write(json.dumps(answer).encode() + b"\n")


class DialledEnd(_TlsEnd):
    """The TLS end of a connection that this host has opened to another agent. *answered*: a future for the answer:
    ``None`` if the agent accepts the connection, otherwise its error as a dict."""

    def __init__(self, peer: str, hello: bytes, end: LocalEnd) -> None:
        super().__init__()
        self.peer, self._hello, self._end = peer, hello, end
        self.answered: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Override asyncio's callback: check the peer's certificate, then send the first line. If the certificate has
        another common name than the expected agent's, close the connection without sending anything."""
        super().connection_made(transport)
        for option in TCP:
            transport.get_extra_info("socket").setsockopt(*option)
        tls = transport.get_extra_info("ssl_object")
        if common_name(tls) != self.peer:
            self._end_with(ssl.SSLError(f"its certificate is for {common_name(tls)!r}"))
        elif tls.selected_alpn_protocol() != ALPN:
            self._end_with(ssl.SSLError("it knows no links; is it an agent of this version?"))
        elif self.transport:
            self.transport.write(self._hello)

    def _end_with(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)
        self.abort()

    def spoken(self, line: bytes) -> None:
        """Set the result of *answered* from *line*, the other agent's answer to the first line."""
        try:
            error = json.loads(line).get("error")
        except (ValueError, AttributeError):
            self._end_with(ssl.SSLError("its answer makes no sense"))
            return
        if error is None:
            self.join(self._end)
        if not self.answered.done():
            self.answered.set_result(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Override asyncio's callback: set an error as the result of *answered*, if the peer has not answered yet."""
        super().connection_lost(exc)
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError(None, "it closed the connection"))
