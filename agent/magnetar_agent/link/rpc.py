# SPDX-License-Identifier: GPL-3.0-or-later
"""Calls between two agents through a link: a line of JSON for each call, and one for its result."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any, Self

from magnetar_core.errors import InvalidRequest, Unreachable, from_dict

#: Longest line.
LINE = 64 << 20


class Rpc:
    """One side of a connected socket; closing it ends the other side's calls too."""

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
        """Send a line."""
        self.write(json.dumps(line).encode() + b"\n")
        self.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next line; ``None`` when the other side has closed the connection."""
        line = self._file.readline(LINE)
        if not line.endswith(b"\n"):
            return None
        found = json.loads(line)
        if not isinstance(found, dict):
            raise InvalidRequest("The other agent said something that makes no sense.")
        return found

    def call(self, op: str, **line: Any) -> dict[str, Any]:
        """Send a line and return the answer. Raises what the other side answers, or ``Unreachable``."""
        self.send({"op": op, **line})
        return self.result()

    def result(self) -> dict[str, Any]:
        """The answer to what was sent."""
        try:
            found = self.receive()
        except OSError as error:
            raise lost(error) from error
        if found is None:
            raise lost(None)
        if "error" in found:
            raise from_dict(found["error"])
        return found

    def write(self, data: bytes) -> None:
        """Send bytes."""
        try:
            self._file.write(data)
        except OSError as error:
            raise lost(error) from error

    def flush(self) -> None:
        """Send what waits."""
        try:
            self._file.flush()
        except OSError as error:
            raise lost(error) from error

    def read(self, count: int) -> bytes:
        """Exactly *count* bytes."""
        data = self._file.read(count)
        if len(data) < count:
            raise lost(None)
        return data


def lost(error: OSError | None) -> Unreachable:
    """The other agent does not answer any more."""
    why = f" ({error.strerror})" if error and error.strerror else ""
    return Unreachable(f"The connection to the other agent broke{why}. Repeat the call: it goes on where it was.")
