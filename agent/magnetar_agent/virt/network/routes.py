# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 routes of the host in all its tables, addresses of its own among them, as the kernel tells them (rtnetlink)."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from . import netlink

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW_ROUTE, _GET_ROUTE = 24, 26
#: rtmsg: family, length of the destination, …, type, flags.
_ROUTE = struct.Struct("=8BI")
_DESTINATION, _DEVICE = 1, 4
_BROADCAST, _MULTICAST = 3, 5
#: Shorter prefixes are ways to everywhere, as a VPN has them: default routes by other names.
_SHORTEST = 8


def routes() -> list[tuple[str, IPv4Network]]:
    """Device ("" without one) and network of each route but the default. Nothing where the kernel does not say."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
            link.send(netlink.message(_GET_ROUTE, netlink.REQUEST | netlink.DUMP,
                                      _ROUTE.pack(socket.AF_INET, *[0] * 7, 0)))
            found = list(dict.fromkeys(_answers(link)))
    except OSError:
        return []
    return [(_name(device), net) for device, net in found]


def _answers(link: socket.socket) -> Iterator[tuple[int, IPv4Network]]:
    while True:
        said = link.recv(1 << 17)
        for kind, begin, end in netlink.messages(said):
            if kind in (netlink.DONE, netlink.ERROR):
                return
            if kind == _NEW_ROUTE and (route := _parsed(said, begin, end)):
                yield route


def _parsed(said: bytes, begin: int, end: int) -> tuple[int, IPv4Network] | None:
    """Number of the device (0: none) and network of one route that leads somewhere in particular."""
    _family, length, _source, _tos, _table, _protocol, _scope, kind, _flags = _ROUTE.unpack_from(said, begin)
    if length < _SHORTEST or kind in (_BROADCAST, _MULTICAST):
        return None
    found = netlink.attributes(said, begin + _ROUTE.size, end)
    destination, device = (said[slice(*found[name])] if name in found else bytes(4) for name in (_DESTINATION, _DEVICE))
    return struct.unpack("=I", device)[0], IPv4Network((destination, length))


def _name(device: int) -> str:
    try:
        return socket.if_indextoname(device) if device else ""
    except OSError:  # it went away
        return ""
