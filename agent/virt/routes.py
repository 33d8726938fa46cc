# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 routes of the host in all its tables, addresses of its own among them, as the kernel tells them (rtnetlink)."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DONE, _ERROR, _NEW_ROUTE, _GET_ROUTE = 3, 2, 24, 26
_REQUEST_DUMP = 0x301
#: nlmsghdr; rtmsg: family, length of the destination, …, type, flags; rtattr.
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=8BI"), struct.Struct("=HH")
_DESTINATION, _DEVICE = 1, 4
_BROADCAST, _MULTICAST = 3, 5
#: Shorter prefixes are ways to everywhere, as a VPN has them: default routes by other names.
_SHORTEST = 8


def routes() -> list[tuple[str, IPv4Network]]:
    """Device ("" without one) and network of each route but the default. Nothing where the kernel does not say."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
            link.send(_HEADER.pack(_HEADER.size + _ROUTE.size, _GET_ROUTE, _REQUEST_DUMP, 1, 0)
                      + _ROUTE.pack(socket.AF_INET, *[0] * 7, 0))
            found = list(dict.fromkeys(_answers(link)))
    except OSError:
        return []
    return [(_name(device), net) for device, net in found]


def _answers(link: socket.socket) -> Iterator[tuple[int, IPv4Network]]:
    while True:
        data = link.recv(1 << 17)
        while data:
            size, kind, *_rest = _HEADER.unpack_from(data)
            if kind in (_DONE, _ERROR):
                return
            if kind == _NEW_ROUTE and (route := _parsed(data[_HEADER.size:size])):
                yield route
            data = data[_aligned(size):]


def _parsed(message: bytes) -> tuple[int, IPv4Network] | None:
    """Number of the device (0: none) and network of one route that leads somewhere in particular."""
    _family, length, _source, _tos, _table, _protocol, _scope, kind, _flags = _ROUTE.unpack_from(message)
    if length < _SHORTEST or kind in (_BROADCAST, _MULTICAST):
        return None
    at, values = _ROUTE.size, {_DESTINATION: b"\0\0\0\0", _DEVICE: b"\0\0\0\0"}
    while at + _ATTRIBUTE.size <= len(message):
        size, name = _ATTRIBUTE.unpack_from(message, at)
        values[name] = message[at + _ATTRIBUTE.size:at + size]
        at += _aligned(max(size, _ATTRIBUTE.size))
    return struct.unpack("=I", values[_DEVICE])[0], IPv4Network((values[_DESTINATION], length))


def _name(device: int) -> str:
    try:
        return socket.if_indextoname(device) if device else ""
    except OSError:  # it went away
        return ""


def _aligned(size: int) -> int:
    return (size + 3) & ~3
