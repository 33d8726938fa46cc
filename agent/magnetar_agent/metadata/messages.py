# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages between the agent and the process that speaks with guests: a length and JSON, on pairs of unix sockets.

Neither side believes the other more than JSON says. *commands* go one at a time from the agent, each with an answer,
which may carry a descriptor; *questions* come from the process, with a number that the answer has too.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

#: Longest message in bytes: all that a guest is told, in base64, is far below.
LONGEST = 64 << 20
_LENGTH = struct.Struct("!I")

Message = dict[str, Any]


def packed(message: Message) -> bytes:
    """A message as it goes over the socket."""
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def send(end: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send a message, and with it a descriptor."""
    data = packed(message)
    if descriptor is None:
        end.sendall(data)
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]).tobytes())]
    sent = end.sendmsg([data], rights)
    end.sendall(data[sent:])


def receive(end: socket.socket) -> tuple[Message, int | None]:
    """The next message and its descriptor, which is the caller's to close. ``EOFError``: the other side is gone."""
    head, descriptor = _first(end)
    head += _exactly(end, _LENGTH.size - len(head))
    return json.loads(_exactly(end, length(head))), descriptor


def length(head: bytes) -> int:
    """How long the message is whose first four bytes are *head*."""
    found: int = _LENGTH.unpack(head)[0]
    if found > LONGEST:
        raise EOFError("a message is too long")
    return found


def _first(end: socket.socket) -> tuple[bytes, int | None]:
    data, descriptors, _flags, _address = socket.recv_fds(end, _LENGTH.size, 1)
    if not data:
        raise EOFError("the other side is gone")
    return data, descriptors[0] if descriptors else None


def _exactly(end: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = end.recv(min(size - len(found), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        found += part
    return bytes(found)
