# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 routes of the host in all tables, including those to its own addresses, from the kernel (rtnetlink)."""

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
#: Routes with shorter prefixes, as VPNs set them (0.0.0.0/1), are default routes in another form.
_SHORTEST = 8


def list_ip_routes() -> list[tuple[str, IPv4Network]]:
    """Return pairs (device, destination) of the host's IPv4 routes, without default, broadcast and multicast routes.
    The device is "" for a route without a device. Empty if the kernel does not respond."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
            link.send(netlink.pack_message(_GET_ROUTE, netlink.REQUEST | netlink.DUMP,
                                           _ROUTE.pack(socket.AF_INET, *[0] * 7, 0)))
            destinations = list(dict.fromkeys(_answers(link)))
    except OSError:
        return []
    return [(_name(device), net) for device, net in destinations]


def _answers(link: socket.socket) -> Iterator[tuple[int, IPv4Network]]:
    while True:
        reply = link.recv(1 << 17)
        for kind, begin, end in netlink.unpack_messages(reply):
            if kind in (netlink.DONE, netlink.ERROR):
                return
            if kind == _NEW_ROUTE and (route := _parsed(reply, begin, end)):
                yield route


def _parsed(reply: bytes, begin: int, end: int) -> tuple[int, IPv4Network] | None:
    """Parse the netlink route message in *reply* between the offsets *begin* and *end*. Return (device index,
    destination); the index is 0 for a route without a device. Return ``None`` for default, broadcast and multicast
    routes. Any prefix shorter than 8 bits counts as a default route."""
    _family, length, _source, _tos, _table, _protocol, _scope, kind, _flags = _ROUTE.unpack_from(reply, begin)
    if length < _SHORTEST or kind in (_BROADCAST, _MULTICAST):
        return None
    attributes = netlink.unpack_attributes(reply, begin + _ROUTE.size, end)
    destination, device = (reply[slice(*attributes[name])] if name in attributes else bytes(4)
                           for name in (_DESTINATION, _DEVICE))
    return struct.unpack("=I", device)[0], IPv4Network((destination, length))


def _name(device: int) -> str:
    try:
        return socket.if_indextoname(device) if device else ""
    except OSError:  # it was removed
        return ""
