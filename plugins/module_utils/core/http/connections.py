# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections that a server takes: how many of all, and how many of one address, as nobody has said who he is yet."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import resource
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, Optional

from ..errors import TooManyRequests
from .deadline import Deadline
from .stalled import StalledReader

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)
#: Files and connections that a process may have open, where its host lets it. Programs start with 1,024, which as many
#: clients that say nothing would use up.
OPEN = 65536
#: One address has a quarter of them at most, whatever the settings say.
SHARE = 4
#: Connections of an address beyond its own that are told why they are refused, and the seconds that they have to ask.
#: Further ones end without a word.
TOLD, PATIENCE = 16, 10.0
#: Seconds in which a client has to agree on TLS, and to its end.
HANDSHAKE, FAREWELL = 20.0, 1.0
#: Who is refused may ask again after so many seconds.
LATER = 10
#: Seconds for which a server keeps an idle connection. Clients poll every 2 to 10 s over one connection, playbooks keep
#: theirs for the length of a task, and a client that sends into a closing connection fails.
KEEP_ALIVE = 75


def open_more() -> int:
    """Let this process have ``OPEN`` files and connections, or as many as it may; how many that are."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN if most == resource.RLIM_INFINITY else min(OPEN, most)
    if least != resource.RLIM_INFINITY and least < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


class ConnectionPlace:
    """What a connection has until ``free``. *refused*: there is none left; *told*: whether its client is told so."""

    def __init__(self, counted: Optional[Counter[str]], whose: str, refused: Optional[TooManyRequests] = None,
                 told: bool = True, ended: Callable[[str], None] = lambda _whose: None) -> None:
        self._counted, self._whose, self.refused, self.told = counted, whose, refused, told
        self._ended = ended
        self._unknown: dict[ConnectionPlace, Callable[[], object]] = {}
        self._end: Callable[[], object] = lambda: None

    def begin(self, unknown: dict[ConnectionPlace, Callable[[], object]], end: Callable[[], object]) -> None:
        """Lend the place from now on. *unknown*: the lent places of the address, the oldest first, and what ends the
        connection of each; *end*: what ends this one."""
        self._unknown, self._end = unknown, end
        self.lend()

    def lend(self) -> None:
        """Lend the place to a client that has not said who it is: another client of the address may need it."""
        if self._counted is not None:
            self._unknown.setdefault(self, self._end)

    def keep(self) -> None:
        """Keep the place until ``free``: the client has said who it is, or its request is at work. May be called again.
        """
        self._unknown.pop(self, None)

    def free(self) -> None:
        """May be called again."""
        self.keep()
        counted, self._counted = self._counted, None
        if counted is not None:
            counted[self._whose] -= 1
            if counted[self._whose] <= 0:
                del counted[self._whose]
                self._ended(self._whose)


class Connections:
    """The places of each address, *most*; 0 for no limit. What counts as one address: an IPv4 address, the /64 of an
    IPv6 address, as a client may have all of it. It is asked in the event loop alone.

    When an address has all of its places, a new connection takes that of the oldest one whose client has not said who
    it is: who is silent keeps nobody out who shares the address."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: Counter[str] = Counter()
        #: Addresses that the log has named; each once until all its connections have ended.
        self._logged: set[str] = set()
        self._unknown: dict[str, dict[ConnectionPlace, Callable[[], object]]] = {}

    def take(self, address: str, end: Optional[Callable[[], object]] = None) -> ConnectionPlace:
        """A place for a connection of *address*, which is empty for a unix socket. *end* closes the connection: its
        place is lent until ``ConnectionPlace.keep``."""
        if not self.most or not address:
            return ConnectionPlace(None, "")
        whose = whole(address)
        if end is not None and self._open[whose] >= self.most:
            self._take_back(whose)
        place = self._next(address, whose)
        if end is not None and place.refused is None:
            place.begin(self._unknown.setdefault(whose, {}), end)
        return place

    def _take_back(self, whose: str) -> None:
        """Free the place of the oldest connection of an address whose client has not said who it is."""
        unknown = self._unknown.get(whose)
        if unknown:
            place, end = next(iter(unknown.items()))
            place.free()
            end()

    def _forget(self, whose: str) -> None:
        """Forget an address that has no connection left."""
        self._logged.discard(whose)
        self._unknown.pop(whose, None)

    def _next(self, address: str, whose: str) -> ConnectionPlace:
        count = self._open[whose]
        if count >= self.most + TOLD:
            return ConnectionPlace(None, whose, self._refusal(whose), told=False)
        self._open[whose] += 1
        if count < self.most:
            return ConnectionPlace(self._open, whose, ended=self._forget)
        if whose not in self._logged:
            self._logged.add(whose)
            log.warning("%s has all %s connections that one address may have; further ones are refused", whose,
                        self.most, extra={"address": address})
        return ConnectionPlace(self._open, whose, self._refusal(whose), ended=self._forget)

    def _refusal(self, whose: str) -> TooManyRequests:
        return TooManyRequests(
            f"{whose} has {self.most} connections to this service open, and one address may have no more (its setting "
            "connections_per_address). Ask several things over one connection, or try again when others have ended.",
            headers={"Retry-After": str(LATER)})


def without_port(address: str) -> str:
    """An address as a proxy says it, which may add the client's port: ``192.0.2.1:5000``, ``[2001:db8::1]:5000``."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def whole(address: str) -> str:
    """What an address is counted as."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    if found.is_link_local or found.is_loopback:
        return str(found)
    return str(ipaddress.ip_network((int(found), 64), strict=False))


class Admitting(asyncio.Protocol):
    """Stands before one of uvicorn's protocols: each connection takes a place before TLS begins, as who is silent in a
    handshake holds a connection too."""

    places: Connections
    tls: Optional[ssl.SSLContext]
    transport: Any
    loop: asyncio.AbstractEventLoop
    #: Whether uvicorn's protocol knows of the connection, and what came before that.
    _begun = False
    _early: bytes = b""
    place: ConnectionPlace
    _refusing: Optional[Deadline] = None
    #: What requests know of their connection; of uvicorn's protocol.
    app_state: dict[str, Any]
    #: Bytes a second that a client has to take of what is sent to it, at the least.
    slowest: int = 1024
    _stalled: Optional[StalledReader] = None

    def connection_made(self, transport: Any) -> None:
        """Begin with TLS where there is one, else with HTTP."""
        peer = transport.get_extra_info("peername")
        self.place = self.places.take(str(peer[0]) if isinstance(peer, tuple) and peer else "", transport.abort)
        if not self.place.told:
            transport.abort()
            return
        self._stalled = StalledReader(self.loop, transport, self.slowest)
        if self.tls is None:
            self._begin(transport)
        else:
            self._securing = self.loop.create_task(self._secure(transport, self.tls))

    async def _secure(self, transport: Any, tls: ssl.SSLContext) -> None:
        """Shake hands. What the loop has read by now, as ``connection_made`` cannot keep it from that, TLS gets first.
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
                self._stalled.stop()  # the memory or disk of a guest may stand still
            self._follow(other)  # a link of agents, whose place is free once its peer is let in
        early, self._early = self._early, b""
        _give(transport.get_protocol(), early)

    def data_received(self, data: bytes) -> None:
        """What comes; who is refused is told so once it has asked."""
        if self._begun:
            super().data_received(data)
        elif self._refusing is None:
            self._early += data
        elif self.place.refused and not self.transport.is_closing():
            self.transport.write(_answer(self.place.refused))
            self.transport.close()
            self.loop.call_later(FAREWELL, self.transport.abort)

    def handle_websocket_upgrade(self, *given: Any) -> None:
        """The place is that of the WebSocket from now on."""
        super().handle_websocket_upgrade(*given)  # type: ignore[misc]
        self._follow(self.transport.get_protocol())

    def _follow(self, other: Any) -> None:
        """*other* has the connection to its end, and the place with it."""
        lost = other.connection_lost

        def ended(error: Optional[Exception]) -> None:
            self._freed()
            lost(error)

        if other is not self:
            other.connection_lost = ended

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Give the place back."""
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
    """Have a protocol take what came before it was there: one of asyncio's kinds, ``Protocol`` or ``BufferedProtocol``.
    """
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
