# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections that the kernel follows: read and ended by netlink (linux/netfilter/nfnetlink_conntrack.h). Those of
TCP are left out: without its acknowledgements a sender stops. So are those in zones: Open vSwitch follows them for OVN,
whose networks may have any addresses, also those of guests on bridges."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import NamedTuple

from . import netlink

#: How much is read at once, and seconds until an answer comes.
READ, PATIENCE = 1 << 18, 10.0
_GET, _DELETE, _FAMILY = 0x101, 0x102, struct.Struct("=BBH")
#: Attributes of a connection: how its packets look, as it began and back; its zone. Of a packet: addresses, protocol.
_BEGAN, _BACK, _ZONE, _ADDRESSES, _PROTOCOL = 1, 2, 18, 1, 2
#: Attributes of addresses and of protocols.
_FROM, _TO, _NUMBER, _FROM_PORT, _TO_PORT, _TYPES, _CODES = (1, 3), (2, 4), 1, 2, 3, (5, 8), (6, 9)
TCP = 6
#: Where the number of the protocol is in a message's content, by family: the kernel says the first packet before all
#: else.
_PROTOCOL_AT: dict[int, int] = {socket.AF_INET: 36, socket.AF_INET6: 60}


class FlowEnd(NamedTuple):
    """A connection as seen from one of its ends: the address *here*, the one *there*, and the *port* that it goes to
    (of ICMP: the type, and the *code*)."""

    here: str
    there: str
    port: int
    code: int = 0


class Flow(NamedTuple):
    """A connection: its *protocol*, as who began it sees it (*sent*), and as the other end does (*heard*): the host may
    translate addresses in between. *key*: by which the kernel finds it."""

    protocol: int
    sent: FlowEnd
    heard: FlowEnd
    key: bytes


class _Packet(NamedTuple):
    source: str
    target: str
    protocol: int
    ports: tuple[int, int]
    icmp: tuple[int, int]


def flows() -> Iterator[Flow]:
    """All but those of TCP and those in zones. Raises ``OSError``."""
    with _socket() as line:
        line.send(_message(_GET, netlink.DUMP, socket.AF_UNSPEC, b""))
        while True:
            said = line.recv(READ)
            for kind, begin, end in netlink.messages(said):
                if kind == netlink.DONE:
                    return
                _check(kind, said, begin)
                place = _PROTOCOL_AT.get(said[begin])
                if place is not None and said[begin + place] != TCP and (found := _flow(said, begin, end)):
                    yield found


def end(found: Iterable[Flow]) -> int:
    """Have the kernel forget them; gone is fine. Returns how many there were. Raises ``OSError``."""
    count = 0
    with _socket() as line:
        for flow in found:
            family = socket.AF_INET6 if ":" in flow.sent.here else socket.AF_INET
            line.send(_message(_DELETE, netlink.ACK, family, flow.key))
            said = line.recv(READ)
            for kind, begin, _end in netlink.messages(said):
                try:
                    _check(kind, said, begin)
                    count += 1
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        raise
    return count


@contextmanager
def _socket() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETFILTER) as line:
        line.bind((0, 0))
        line.settimeout(PATIENCE)
        yield line


def _message(kind: int, flags: int, family: int, attributes: bytes) -> bytes:
    return netlink.message(kind, netlink.REQUEST | flags, _FAMILY.pack(family, 0, 0) + attributes)


def _check(kind: int, said: bytes, begin: int) -> None:
    if kind == netlink.ERROR and (code := struct.unpack_from("=i", said, begin)[0]):
        raise OSError(-code, os.strerror(-code))


def _flow(said: bytes, begin: int, end: int) -> Flow | None:
    found = netlink.attributes(said, begin + _FAMILY.size, end)
    if not {_BEGAN, _BACK} <= found.keys() or _ZONE in found:
        return None
    began, back = _packet(said, *found[_BEGAN]), _packet(said, *found[_BACK])
    sent, heard = (began.ports[1], 0), (back.ports[0], 0)
    if began.protocol in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6):
        sent = heard = began.icmp
    key = said[found[_BEGAN][0] - 4:netlink.aligned(found[_BEGAN][1])]
    return Flow(began.protocol, FlowEnd(began.source, began.target, *sent),
                FlowEnd(back.source, back.target, *heard), key)


def _packet(said: bytes, begin: int, end: int) -> _Packet:
    parts = netlink.attributes(said, begin, end)
    addresses, protocol = (netlink.attributes(said, *parts[name]) for name in (_ADDRESSES, _PROTOCOL))

    def address(names: tuple[int, int]) -> str:
        return next(str(ip_address(said[slice(*addresses[name])])) for name in names if name in addresses)

    def number(*names: int) -> int:
        return next((int.from_bytes(said[slice(*protocol[name])], "big") for name in names if name in protocol), 0)

    return _Packet(address(_FROM), address(_TO), number(_NUMBER), (number(_FROM_PORT), number(_TO_PORT)),
                   (number(*_TYPES), number(*_CODES)))
