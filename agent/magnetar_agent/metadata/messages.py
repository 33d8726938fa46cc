# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages between the agent and the process that speaks with guests: a length and JSON, on pairs of unix sockets.

Each side parses what the other sends as JSON, and trusts no content. *commands* go one at a time from the agent, each
with an answer, which may carry a descriptor; *questions* come from the process, with a number that the answer repeats.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

#: Longest message in bytes; all data of a guest, in base64, takes far less.
LONGEST = 64 << 20
_LENGTH = struct.Struct("!I")

Message = dict[str, Any]


def encode_message(message: Message) -> bytes:
    """Return *message* encoded for the socket: the length in four bytes, then JSON."""
    text = json.dumps(message).encode()
    return _LENGTH.pack(len(text)) + text


def send_message(end: socket.socket, message: Message, descriptor: int | None = None) -> None:
    """Send *message* over the unix socket *end*, together with an open file *descriptor* if there is one."""
    data = encode_message(message)
    if descriptor is None:
        end.sendall(data)
        return
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]).tobytes())]
    sent = end.sendmsg([data], rights)
    end.sendall(data[sent:])


def receive_message(end: socket.socket) -> tuple[Message, int | None]:
    """Return the next message from the unix socket *end*, and the file descriptor that came with it, or ``None``. The
    caller must close the descriptor. Raises ``EOFError`` if the connection is closed."""
    head, descriptor = _first(end)
    head += _exactly(end, _LENGTH.size - len(head))
    return json.loads(_exactly(end, message_length(head))), descriptor


def message_length(head: bytes) -> int:
    """Return the length in bytes of a message from its first four bytes, *head*. Raises ``EOFError`` if it is too long.
    """
    size: int = _LENGTH.unpack(head)[0]
    if size > LONGEST:
        raise EOFError("a message is too long")
    return size


def _first(end: socket.socket) -> tuple[bytes, int | None]:
    data, descriptors, _flags, _address = socket.recv_fds(end, _LENGTH.size, 1)
    if not data:
        raise EOFError("the other side is gone")
    return data, descriptors[0] if descriptors else None


def _exactly(end: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = end.recv(min(size - len(received), 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        received += part
    return bytes(received)
