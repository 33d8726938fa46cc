# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections in the kernel's connection tracking, listed and removed over netlink
(linux/netfilter/nfnetlink_conntrack.h).

TCP connections are left out: when the filter drops one direction, the sender gets no acknowledgements and stops.
Connections in zones are left out too: Open vSwitch tracks them for OVN, whose networks may use any addresses, also
addresses of guests on bridges.
"""

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

#: Bytes of one read, and seconds until an answer must arrive.
READ, PATIENCE = 1 << 18, 10.0
_GET, _DELETE, _FAMILY = 0x101, 0x102, struct.Struct("=BBH")
#: Attributes of a connection: its original and its reply packet; its zone. Of a packet: addresses, protocol.
_BEGAN, _BACK, _ZONE, _ADDRESSES, _PROTOCOL = 1, 2, 18, 1, 2
#: Attributes of addresses and of protocols.
_FROM, _TO, _NUMBER, _FROM_PORT, _TO_PORT, _TYPES, _CODES = (1, 3), (2, 4), 1, 2, 3, (5, 8), (6, 9)
TCP = 6
#: The offset of the protocol's number in a message's content, by family: the kernel writes the original packet first.
_PROTOCOL_AT: dict[int, int] = {socket.AF_INET: 36, socket.AF_INET6: 60}


class FlowEnd(NamedTuple):
    """The addresses of a tracked connection as one of its two ends sees them. *here*: the address of this end. *there*:
    the address of the other end. *port*: the destination port of the connection. For ICMP, *port* and *code* are type
    and code."""

    here: str
    there: str
    port: int
    code: int = 0


class Flow(NamedTuple):
    """A connection that the kernel tracks (conntrack). *sent*: the addresses as the originator sees them. *heard*: the
    addresses as the other end sees them; with NAT, they differ from those in *sent*. *protocol*: IP protocol number.
    *key*: netlink attributes that identify the connection."""

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


def list_flows() -> Iterator[Flow]:
    """Yield the connections that the kernel tracks, except TCP connections and those in conntrack zones. Raises
    ``OSError``."""
    with _socket() as line:
        line.send(_message(_GET, netlink.DUMP, socket.AF_UNSPEC, b""))
        while True:
            reply = line.recv(READ)
            for kind, begin, end in netlink.unpack_messages(reply):
                if kind == netlink.DONE:
                    return
                _check(kind, reply, begin)
                place = _PROTOCOL_AT.get(reply[begin])
                if place is not None and reply[begin + place] != TCP and (flow := _flow(reply, begin, end)):
                    yield flow


def end_flows(flows: Iterable[Flow]) -> int:
    """Delete *flows* from the kernel's connection tracking. Return how many existed. Raises ``OSError``."""
    count = 0
    with _socket() as line:
        for flow in flows:
            family = socket.AF_INET6 if ":" in flow.sent.here else socket.AF_INET
            line.send(_message(_DELETE, netlink.ACK, family, flow.key))
            reply = line.recv(READ)
            for kind, begin, _end in netlink.unpack_messages(reply):
                try:
                    _check(kind, reply, begin)
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
    return netlink.pack_message(kind, netlink.REQUEST | flags, _FAMILY.pack(family, 0, 0) + attributes)


def _check(kind: int, reply: bytes, begin: int) -> None:
    if kind == netlink.ERROR and (code := struct.unpack_from("=i", reply, begin)[0]):
        raise OSError(-code, os.strerror(-code))


def _flow(reply: bytes, begin: int, end: int) -> Flow | None:
    attributes = netlink.unpack_attributes(reply, begin + _FAMILY.size, end)
    if not {_BEGAN, _BACK} <= attributes.keys() or _ZONE in attributes:
        return None
    began, back = _packet(reply, *attributes[_BEGAN]), _packet(reply, *attributes[_BACK])
    sent, heard = (began.ports[1], 0), (back.ports[0], 0)
    if began.protocol in (socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6):
        sent = heard = began.icmp
    key = reply[attributes[_BEGAN][0] - 4:netlink.aligned_size(attributes[_BEGAN][1])]
    return Flow(began.protocol, FlowEnd(began.source, began.target, *sent),
                FlowEnd(back.source, back.target, *heard), key)


def _packet(reply: bytes, begin: int, end: int) -> _Packet:
    parts = netlink.unpack_attributes(reply, begin, end)
    addresses, protocol = (netlink.unpack_attributes(reply, *parts[name]) for name in (_ADDRESSES, _PROTOCOL))

    def address(names: tuple[int, int]) -> str:
        return next(str(ip_address(reply[slice(*addresses[name])])) for name in names if name in addresses)

    def number(*names: int) -> int:
        return next((int.from_bytes(reply[slice(*protocol[name])], "big") for name in names if name in protocol), 0)

    return _Packet(address(_FROM), address(_TO), number(_NUMBER), (number(_FROM_PORT), number(_TO_PORT)),
                   (number(*_TYPES), number(*_CODES)))
