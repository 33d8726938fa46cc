# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of netlink (linux/netlink.h), the kernel's interface for routes, filters and connections."""

from __future__ import annotations

import struct
from collections.abc import Iterator

#: The family of filters and connections. Python has no name for it.
NETFILTER = 12
#: Flags of requests, and kinds of messages that end an answer.
REQUEST, ACK, DUMP, ERROR, DONE = 1, 4, 0x300, 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")


def pack_message(kind: int, flags: int, content: bytes) -> bytes:
    """Return a netlink message to the kernel: a header with the message type *kind* and *flags*, then *content*."""
    return _HEADER.pack(_HEADER.size + len(content), kind, flags, 1, 0) + content


def unpack_messages(reply: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (type, start of content, end of content) of each netlink message in *reply*."""
    at = 0
    while at + _HEADER.size <= len(reply):
        length, kind, _flags, _number, _sender = _HEADER.unpack_from(reply, at)
        yield kind, at + _HEADER.size, at + length
        at += max(_HEADER.size, aligned_size(length))


def unpack_attributes(reply: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Return ``{attribute number: (start, end)}`` of the contents of the netlink attributes in *reply* between the
    offsets *at* and *end*."""
    places = {}
    while at + _ATTRIBUTE.size <= end:
        length, number = _ATTRIBUTE.unpack_from(reply, at)
        places[number & 0x3FFF] = (at + _ATTRIBUTE.size, at + length)
        at += max(_ATTRIBUTE.size, aligned_size(length))
    return places


def aligned_size(size: int) -> int:
    """Return *size* rounded up to a multiple of 4, netlink's alignment."""
    return (size + 3) & ~3
