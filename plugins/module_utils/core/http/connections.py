# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of a server's connections, in total and per client address. They apply before clients are authenticated."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import resource
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Optional

from ..errors import TooManyRequests
from .deadline import Deadline
from .stalled import StalledReader

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)
#: Limit of open files and sockets of a process, where its hard limit allows it. With the usual limit of 1,024, as many
#: silent clients would lock out all others.
OPEN = 65536
#: The largest limit of connections for one client address: a quarter of ``OPEN``, whatever the settings are.
SHARE = 4
#: Connections of an address beyond its limit that are refused with a reason, and the seconds that they have for their
#: request. Further ones are closed without an answer.
TOLD, PATIENCE = 16, 10.0
#: Seconds for a client's TLS handshake, and for the end of a connection.
HANDSHAKE, FAREWELL = 20.0, 1.0
#: Seconds after which a refused client may try again.
LATER = 10
#: Seconds that a server keeps an idle connection. Clients poll every 2 to 10 s over one connection, playbooks keep
#: theirs for the length of a task, and a client that sends into a closing connection fails.
KEEP_ALIVE = 75


def raise_file_limit() -> int:
    """Raise this process's limit of open files and sockets to ``OPEN``, or to the hard limit if that is lower. Return
    the limit.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN if hard_limit == resource.RLIM_INFINITY else min(OPEN, hard_limit)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    return limit


class ConnectionPlace:
    """One connection's slot in the connection limit of its client's address, held until ``free``. *refused*: the error
    if the limit is reached, otherwise ``None``. *send_refusal*: whether to send the client this error as an answer.
    """

    def __init__(self, counted: Optional[Counter[str]], source: str, refused: Optional[TooManyRequests] = None,
                 send_refusal: bool = True, ended: Callable[[str], None] = lambda _whose: None) -> None:
        self._counted, self._whose, self.refused, self.send_refusal = counted, source, refused, send_refusal
        self._ended = ended
        self._unknown: dict[ConnectionPlace, Callable[[], object]] = {}
        self._end: Callable[[], object] = lambda: None

    def begin(self, unknown: dict[ConnectionPlace, Callable[[], object]], end: Callable[[], object]) -> None:
        """Let a new connection of the same address take this slot, until ``keep``. *unknown*: the slots of
        unauthenticated clients of the address, oldest first, each with the function that closes its connection. *end*:
        the function that closes this connection.
        """
        self._unknown, self._end = unknown, end
        self.lend()

    def lend(self) -> None:
        """Let a new connection of the same address take this slot, because the client of this one has not
        authenticated.
        """
        if self._counted is not None:
            self._unknown.setdefault(self, self._end)

    def keep(self) -> None:
        """Let no other connection take this slot, because the client has authenticated, or its request runs. May be
        repeated.
        """
        self._unknown.pop(self, None)

    def free(self) -> None:
        """Release the slot for another connection of the address. Repeated calls do nothing."""
        self.keep()
        counted, self._counted = self._counted, None
        if counted is not None:
            counted[self._whose] -= 1
            if counted[self._whose] <= 0:
                del counted[self._whose]
                self._ended(self._whose)


class Connections:
    """The limit of connections: at most *most* for each client address; 0: no limit. One address is an IPv4 address or
    the /64 of an IPv6 address, as a client may own all of it. Use only in the event loop.

    At the limit, a new connection takes the ``ConnectionPlace`` of the oldest connection without authentication. So a
    silent client does not lock out others at the same address.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: Counter[str] = Counter()
        #: Addresses that were logged; each once until all its connections have ended.
        self._logged: set[str] = set()
        self._unknown: dict[str, dict[ConnectionPlace, Callable[[], object]]] = {}

    def take(self, address: str, end: Optional[Callable[[], object]] = None) -> ConnectionPlace:
        """Return a ``ConnectionPlace`` for a connection of *address* (empty for a unix socket); its ``refused`` is the
        error at the limit. *end* closes the connection; with *end*, a new connection of the address may replace this
        one until ``ConnectionPlace.keep``.
        """
        if not self.most or not address:
            return ConnectionPlace(None, "")
        source = counted_address(address)
        if end is not None and self._open[source] >= self.most:
            self._take_back(source)
        place = self._next(address, source)
        if end is not None and place.refused is None:
            place.begin(self._unknown.setdefault(source, {}), end)
        return place

    def _take_back(self, source: str) -> None:
        """Close the oldest unauthenticated connection of the address *source*, if there is one, and free its slot."""
        unknown = self._unknown.get(source)
        if unknown:
            place, end = next(iter(unknown.items()))
            place.free()
            end()

    def _forget(self, source: str) -> None:
        """Remove the records of *source*, an address that has no connections left."""
        self._logged.discard(source)
        self._unknown.pop(source, None)

    def _next(self, address: str, source: str) -> ConnectionPlace:
        count = self._open[source]
        if count >= self.most + TOLD:
            return ConnectionPlace(None, source, self._refusal(source), send_refusal=False)
        self._open[source] += 1
        if count < self.most:
            return ConnectionPlace(self._open, source, ended=self._forget)
        if source not in self._logged:
            self._logged.add(source)
            log.warning("%s has all %s connections that one address may have; further ones are refused", source,
                        self.most, extra={"address": address})
        return ConnectionPlace(self._open, source, self._refusal(source), ended=self._forget)

    def _refusal(self, source: str) -> TooManyRequests:
        return TooManyRequests(
            f"{source} has {self.most} connections to this service open, and one address may have no more (its setting "
            "connections_per_address). Ask several things over one connection, or try again when others have ended.",
            headers={"Retry-After": str(LATER)})


def without_port(address: str) -> str:
    """Return an *address* from a proxy's header without its port, if it has one: ``192.0.2.1:5000``,
    ``[2001:db8::1]:5000``.
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


@lru_cache(maxsize=1000)
def counted_address(address: str) -> str:
    """Return the address under which connections of *address* are counted: itself, or the /64 of an IPv6 address."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    if ip.is_link_local or ip.is_loopback:
        return str(ip)
    return str(ipaddress.ip_network((int(ip), 64), strict=False))


class Admitting(asyncio.Protocol):
    """A mixin in front of one of uvicorn's protocols. Each connection takes a ``ConnectionPlace`` before the TLS
    handshake, because a client that is silent during the handshake holds a connection too.
    """

    places: Connections
    tls: Optional[ssl.SSLContext]
    transport: Any
    loop: asyncio.AbstractEventLoop
    #: Whether uvicorn's protocol has the connection, and the bytes received before that.
    _begun = False
    _early: bytes = b""
    place: ConnectionPlace
    _refusing: Optional[Deadline] = None
    #: State that requests know of their connection; from uvicorn's protocol.
    app_state: dict[str, Any]
    #: Minimum rate in bytes per second at which a client must read its answers.
    slowest: int = 1024
    _stalled: Optional[StalledReader] = None

    def connection_made(self, transport: Any) -> None:
        """Override asyncio's method: take a ``ConnectionPlace``, then begin with TLS, if configured, or HTTP."""
        peer = transport.get_extra_info("peername")
        self.place = self.places.take(str(peer[0]) if isinstance(peer, tuple) and peer else "", transport.abort)
        if not self.place.send_refusal:
            transport.abort()
            return
        self._stalled = StalledReader(self.loop, transport, self.slowest)
        if self.tls is None:
            self._begin(transport)
        else:
            self._securing = self.loop.create_task(self._secure(transport, self.tls))

    async def _secure(self, transport: Any, tls: ssl.SSLContext) -> None:
        """Do the TLS handshake, then begin with HTTP. The handshake first gets ``_early``, bytes that the event loop
        read before ``start_tls``.
        """
        transport.pause_reading()
        early, self._early, secured = self._early, b"", None
        try:
            if not transport.is_closing():
                shaking = self.loop.create_task(self.loop.start_tls(
                    transport, self, tls, server_side=True, ssl_handshake_timeout=HANDSHAKE))
                await asyncio.sleep(0)
                _give(transport.get_protocol(), early)
                secured = await shaking
        except OSError:  # no TLS, too late, or the client has gone; ssl.SSLError is one
            pass
        finally:
            if secured is None or secured.is_closing():
                transport.abort()
                self._freed()
        if secured is not None and not secured.is_closing():
            self._begin(secured)

    def _begin(self, transport: Any) -> None:
        if self.place.refused:
            self.transport = transport
            self._refusing = Deadline(transport.abort)
            self._refusing.begin(self.loop, PATIENCE)
        else:
            self._begun = True
            self.app_state = {**self.app_state, "place": self.place}
            tls = transport.get_extra_info("ssl_object")
            if tls is not None and tls.getpeercert():
                self.place.keep()
            super().connection_made(transport)
            other = transport.get_protocol()
            if other is not self and self._stalled is not None:
                self._stalled.stop()  # the memory or disk of a guest may pause
            self._follow(other)  # a link between agents frees its place once its peer is admitted
        early, self._early = self._early, b""
        _give(transport.get_protocol(), early)

    def data_received(self, data: bytes) -> None:
        """Override asyncio's method: pass *data* on, keep it during ``_secure``, or answer a refused client."""
        if self._begun:
            super().data_received(data)
        elif self._refusing is None:
            self._early += data
        elif self.place.refused and not self.transport.is_closing():
            self.transport.write(_answer(self.place.refused))
            self.transport.close()
            self.loop.call_later(FAREWELL, self.transport.abort)

    def handle_websocket_upgrade(self, *arguments: Any) -> None:
        """Override uvicorn's method: keep the ``ConnectionPlace`` until the WebSocket is closed."""
        super().handle_websocket_upgrade(*arguments)  # type: ignore[misc]
        self._follow(self.transport.get_protocol())

    def _follow(self, other: Any) -> None:
        """Free the ``ConnectionPlace`` at the end of the connection, which the protocol *other* handles now."""
        lost = other.connection_lost

        def ended(error: Optional[Exception]) -> None:
            self._freed()
            lost(error)

        if other is not self:
            other.connection_lost = ended

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Override asyncio's method: free the ``ConnectionPlace``."""
        self._freed()
        if self._begun:
            super().connection_lost(exc)

    def _freed(self) -> None:
        if self._refusing is not None:
            self._refusing.end()
        if self._stalled is not None:
            self._stalled.stop()
        self.place.free()


def _give(protocol: Any, data: bytes) -> None:
    """Pass *data* to *protocol*, a ``Protocol`` or ``BufferedProtocol`` of asyncio, as its transport would."""
    while data and hasattr(protocol, "get_buffer"):
        space = protocol.get_buffer(len(data))
        size = min(len(space), len(data))
        space[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
    if data:
        protocol.data_received(data)


def _answer(error: TooManyRequests) -> bytes:
    body = json.dumps({"error": {"code": error.code, "message": error.message}}).encode()
    return (f"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"retry-after: {LATER}\r\nconnection: close\r\n\r\n").encode() + body
