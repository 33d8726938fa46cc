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
    """A connection for calls between two agents: each call and each answer is a line of JSON. If one agent closes the
    connection while the other waits for an answer, the other agent's call ends with ``Unreachable``."""

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
        """Send the dict *line* as one line of JSON. Raises ``Unreachable``."""
        self.write(json.dumps(line).encode() + b"\n")
        self.flush()

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next line of JSON and return it as a dict; ``None`` if the other agent has closed the
        connection."""
        line = self._file.readline(LINE)
        if not line.endswith(b"\n"):
            return None
        message = json.loads(line)
        if not isinstance(message, dict):
            raise InvalidRequest("The other agent said something that makes no sense.")
        return message

    def call(self, op: str, **line: Any) -> dict[str, Any]:
        """Call *op* on the other agent, with the arguments *line*, and return the answer. Raises the error that the
        other agent answers, or ``Unreachable``."""
        self.send({"op": op, **line})
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait for the answer to a call that was sent before, and return it. Raises the error that the other agent
        answers, or ``Unreachable``."""
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
        """Return the next *count* raw bytes. Raises ``Unreachable`` if the connection ends before."""
        data = self._file.read(count)
        if len(data) < count:
            raise lost_connection_error(None)
        return data


def lost_connection_error(error: OSError | None) -> Unreachable:
    """Return the ``Unreachable`` error for a broken connection to another agent. *error*: the cause, ``None`` if the
    other agent closed the connection."""
    why = f" ({error.strerror})" if error and error.strerror else ""
    return Unreachable(f"The connection to the other agent broke{why}. Repeat the call: it goes on where it was.")
