# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of netlink (linux/netlink.h), in which the kernel tells of routes, filters and connections."""

from __future__ import annotations

import struct
from collections.abc import Iterator

#: The family of filters and connections. Python has no name for it.
NETFILTER = 12
#: Flags of what is asked, and kinds of messages that end an answer.
REQUEST, ACK, DUMP, ERROR, DONE = 1, 4, 0x300, 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")


def message(kind: int, flags: int, content: bytes) -> bytes:
    """One to the kernel."""
    return _HEADER.pack(_HEADER.size + len(content), kind, flags, 1, 0) + content


def messages(said: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each message its kind, and where its content begins and ends."""
    at = 0
    while at + _HEADER.size <= len(said):
        length, kind, _flags, _number, _sender = _HEADER.unpack_from(said, at)
        yield kind, at + _HEADER.size, at + length
        at += max(_HEADER.size, aligned(length))


def attributes(said: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Number to where the attribute's content begins and ends."""
    found = {}
    while at + _ATTRIBUTE.size <= end:
        length, number = _ATTRIBUTE.unpack_from(said, at)
        found[number & 0x3FFF] = (at + _ATTRIBUTE.size, at + length)
        at += max(_ATTRIBUTE.size, aligned(length))
    return found


def aligned(size: int) -> int:
    """Bytes until what comes next."""
    return (size + 3) & ~3
