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
MOST_REFUSALS, PATIENCE = 16, 10.0
#: Seconds for a client's TLS handshake, and for the end of a connection.
HANDSHAKE, FAREWELL = 20.0, 1.0
#: Seconds after which a refused client may try again.
LATER = 10
#: Seconds that a server keeps an idle connection. Clients poll every 2 to 10 s over one connection, playbooks keep
#: theirs for the length of a task, and a client that sends into a closing connection fails.
KEEP_ALIVE = 75


def raise_file_limit() -> int:
    """Raise this process's limit of open files and sockets to ``OPEN``, or to its hard limit if that is lower. Return
    the new limit.
    """
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN if hard_limit == resource.RLIM_INFINITY else min(OPEN, hard_limit)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
    return limit


class ConnectionSlot:
    """The slot that a connection occupies in the limit of connections per client address, until ``free`` is called.
    *counted*: the number of connections by address; ``None``: not limited. *source*: the client address. *refused*: the
    error for a connection beyond the limit. *send_refusal*: whether the client gets this error as a response. *ended*:
    called when the last connection of the address ends.
    """

    def __init__(self, counted: Optional[Counter[str]], source: str, refused: Optional[TooManyRequests] = None,
                 send_refusal: bool = True, ended: Callable[[str], None] = lambda _whose: None) -> None:
        self._counted, self._whose, self.refused, self.send_refusal = counted, source, refused, send_refusal
        self._ended = ended
        self._unknown: dict[ConnectionSlot, Callable[[], object]] = {}
        self._end: Callable[[], object] = lambda: None

    def begin(self, unknown: dict[ConnectionSlot, Callable[[], object]], end: Callable[[], object]) -> None:
        """Allow a new connection of the same address to replace the slot's connection, until ``keep`` is called.
        *unknown*: the address's slots that may be replaced, oldest first, each with a function that closes its
        connection. *end*: the function that closes the slot's connection.
        """
        self._unknown, self._end = unknown, end
        self.lend()

    def lend(self) -> None:
        """Allow a new connection of the same address to replace the slot's connection, because the client is not
        authenticated.
        """
        if self._counted is not None:
            self._unknown.setdefault(self, self._end)

    def keep(self) -> None:
        """Do not allow other connections to replace the slot's connection, because the client is authenticated or has a
        running request. The method may be called several times.
        """
        self._unknown.pop(self, None)

    def free(self) -> None:
        """Release the slot when the connection ends. Repeated calls do nothing."""
        self.keep()
        counted, self._counted = self._counted, None
        if counted is not None:
            counted[self._whose] -= 1
            if counted[self._whose] <= 0:
                del counted[self._whose]
                self._ended(self._whose)


class Connections:
    """The limit of connections per client address: *most*, or no limit if *most* is 0. IPv6 addresses of the same /64
    network count as one address, except link-local and loopback addresses. Call the methods only in the event loop.

    At the limit, a new connection replaces the oldest connection whose client is not authenticated. Thus a silent
    client cannot lock out others at the same address.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: Counter[str] = Counter()
        #: Addresses that were logged; each once until all its connections have ended.
        self._logged: set[str] = set()
        self._unknown: dict[str, dict[ConnectionSlot, Callable[[], object]]] = {}

    def take(self, address: str, end: Optional[Callable[[], object]] = None) -> ConnectionSlot:
        """Return the slot for a new connection from *address* ("" for a unix socket). Beyond the limit, the slot's
        attribute ``refused`` is an error. *end*: a function that closes the connection; if given, a later connection
        may replace the new connection until ``ConnectionSlot.keep`` is called.
        """
        if not self.most or not address:
            return ConnectionSlot(None, "")
        source = counted_address(address)
        if end is not None and self._open[source] >= self.most:
            self._take_back(source)
        slot = self._next(address, source)
        if end is not None and slot.refused is None:
            slot.begin(self._unknown.setdefault(source, {}), end)
        return slot

    def _take_back(self, source: str) -> None:
        """Close the oldest unauthenticated connection from the address *source*, if there is one, and release its slot.
        """
        unknown = self._unknown.get(source)
        if unknown:
            slot, end = next(iter(unknown.items()))
            slot.free()
            end()

    def _forget(self, source: str) -> None:
        """Forget everything that is stored about *source*, an address without open connections."""
        self._logged.discard(source)
        self._unknown.pop(source, None)

    def _next(self, address: str, source: str) -> ConnectionSlot:
        count = self._open[source]
        if count >= self.most + MOST_REFUSALS:
            return ConnectionSlot(None, source, self._refusal(source), send_refusal=False)
        self._open[source] += 1
        if count < self.most:
            return ConnectionSlot(self._open, source, ended=self._forget)
        if source not in self._logged:
            self._logged.add(source)
            log.warning("%s has all %s connections that one address may have; further ones are refused", source,
                        self.most, extra={"address": address})
        return ConnectionSlot(self._open, source, self._refusal(source), ended=self._forget)

    def _refusal(self, source: str) -> TooManyRequests:
        return TooManyRequests(
            f"{source} has {self.most} connections to this service open, and one address may have no more (its setting "
            "connections_per_address). Ask several things over one connection, or try again when others have ended.",
            headers={"Retry-After": str(LATER)})


def without_port(address: str) -> str:
    """Return *address*, from a header of a proxy, without port and brackets: ``192.0.2.1`` for ``192.0.2.1:5000``,
    ``2001:db8::1`` for ``[2001:db8::1]:5000``.
    """
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


@lru_cache(maxsize=1000)
def counted_address(address: str) -> str:
    """Return the address that the limit counts for a connection from *address*: the /64 network of an IPv6 address,
    otherwise the address itself. IPv6 loopback and link-local addresses count by themselves, and IPv4-mapped ones as
    IPv4 addresses."""
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
    """A mixin for uvicorn's HTTP protocols that applies the limit of connections. It counts each connection before the
    TLS handshake, because clients can also occupy connections by not completing the handshake.
    """

    slots: Connections
    tls: Optional[ssl.SSLContext]
    transport: Any
    loop: asyncio.AbstractEventLoop
    #: Whether uvicorn's protocol has the connection, and the bytes received before that.
    _begun = False
    _early: bytes = b""
    slot: ConnectionSlot
    _refusing: Optional[Deadline] = None
    #: State that requests know of their connection; from uvicorn's protocol.
    app_state: dict[str, Any]
    #: Minimum rate in bytes per second at which a client must read its answers.
    slowest: int = 1024
    _stalled: Optional[StalledReader] = None

    def connection_made(self, transport: Any) -> None:
        """Override asyncio's method: count the connection for the limit of connections per client address, then start
        TLS if it is configured, otherwise HTTP. Abort the connection instead if it is beyond the limit and gets no
        error response.
        """
        peer = transport.get_extra_info("peername")
        self.slot = self.slots.take(str(peer[0]) if isinstance(peer, tuple) and peer else "", transport.abort)
        if not self.slot.send_refusal:
            transport.abort()
            return
        self._stalled = StalledReader(self.loop, transport, self.slowest)
        if self.tls is None:
            self._begin(transport)
        else:
            self._securing = self.loop.create_task(self._secure(transport, self.tls))

    async def _secure(self, transport: Any, tls: ssl.SSLContext) -> None:
        """Perform the TLS handshake, then start HTTP. The handshake first gets the bytes that arrived before it
        (``_early``).
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
        if self.slot.refused:
            self.transport = transport
            self._refusing = Deadline(transport.abort)
            self._refusing.begin(self.loop, PATIENCE)
        else:
            self._begun = True
            self.app_state = {**self.app_state, "slot": self.slot}
            tls = transport.get_extra_info("ssl_object")
            if tls is not None and tls.getpeercert():
                self.slot.keep()
            super().connection_made(transport)
            other = transport.get_protocol()
            if other is not self and self._stalled is not None:
                self._stalled.stop()  # the memory or disk of a guest may pause
            self._follow(other)  # a link between agents frees its slot once its peer is admitted
        early, self._early = self._early, b""
        _give(transport.get_protocol(), early)

    def data_received(self, data: bytes) -> None:
        """Override asyncio's method: pass *data* to HTTP, or store *data* until TLS starts. To a refused client, send
        the error instead.
        """
        if self._begun:
            super().data_received(data)
        elif self._refusing is None:
            self._early += data
        elif self.slot.refused and not self.transport.is_closing():
            self.transport.write(_answer(self.slot.refused))
            self.transport.close()
            self.loop.call_later(FAREWELL, self.transport.abort)

    def handle_websocket_upgrade(self, *arguments: Any) -> None:
        """Override uvicorn's method: release the ``ConnectionSlot`` only when the WebSocket is closed."""
        super().handle_websocket_upgrade(*arguments)  # type: ignore[misc]
        self._follow(self.transport.get_protocol())

    def _follow(self, other: Any) -> None:
        """Release the ``ConnectionSlot`` when the connection ends, although another protocol, *other*, handles it now.
        """
        lost = other.connection_lost

        def ended(error: Optional[Exception]) -> None:
            self._freed()
            lost(error)

        if other is not self:
            other.connection_lost = ended

    def connection_lost(self, exc: Optional[Exception]) -> None:
        """Override asyncio's method: release the ``ConnectionSlot``."""
        self._freed()
        if self._begun:
            super().connection_lost(exc)

    def _freed(self) -> None:
        if self._refusing is not None:
            self._refusing.end()
        if self._stalled is not None:
            self._stalled.stop()
        self.slot.free()


def _give(protocol: Any, data: bytes) -> None:
    """Pass *data* to *protocol*, an asyncio ``Protocol`` or ``BufferedProtocol``, as if it arrived on the connection.
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
