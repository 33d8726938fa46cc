# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls between two agents through a link: one line of JSON for each call, and one for its result."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any, Self

from magnetar_core.errors import InvalidRequest, Unreachable, error_from_dict

#: The most bytes of a line.
LINE = 64 << 20


class Rpc:
    """A socket for calls to another agent, or for the answers to its calls. Closing it also ends calls of the other
    side."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._sock.close()

    def send(self, line: dict[str, Any]) -> None:
        """Send the mapping *line* as one line of JSON. Raises ``Unreachable``."""
        self.write(json.dumps(line).encode() + b"\n")
        self.flush()

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next line and return its mapping; ``None`` when the other side has closed the connection."""
        line = self._file.readline(LINE)
        if not line.endswith(b"\n"):
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise InvalidRequest("The other agent said something that makes no sense.")
        return message

    def call(self, op: str, **line: Any) -> dict[str, Any]:
        """Send the call *op* with its arguments *line*, and return the answer. Raises the error that the other side
        answers, or ``Unreachable``."""
        self.send({"op": op, **line})
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait for the answer to the last call and return it. Raises the errors of ``call``."""
        try:
            reply = self.receive()
        except OSError as error:
            raise lost_connection_error(error) from error
        if reply is None:
            raise lost_connection_error(None)
        if "error" in reply:
            raise error_from_dict(reply["error"])
        return reply

    def write(self, data: bytes) -> None:
        """Write raw bytes to the buffer; ``flush`` sends them. Raises ``Unreachable``."""
        try:
            self._file.write(data)
        except OSError as error:
            raise lost_connection_error(error) from error

    def flush(self) -> None:
        """Send buffered bytes. Raises ``Unreachable``."""
        try:
            self._file.flush()
        except OSError as error:
            raise lost_connection_error(error) from error

    def read(self, count: int) -> bytes:
        """Return exactly *count* raw bytes. Raises ``Unreachable`` if the connection ends earlier."""
        data = self._file.read(count)
        if len(data) < count:
            raise lost_connection_error(None)
        return data


def lost_connection_error(error: OSError | None) -> Unreachable:
    """Return the ``Unreachable`` for a broken connection to the other agent."""
    why = f" ({error.strerror})" if error and error.strerror else ""
    return Unreachable(f"The connection to the other agent broke{why}. Repeat the call: it goes on where it was.")
