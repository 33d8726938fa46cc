# SPDX-License-Identifier: GPL-3.0-or-later
"""The client that loads the control plane: raw sockets that stay open, in a process of its own, so that it takes very
little of the CPU of the measured server.

As a program it reads one JSON object ({"port", "requests", "clients", "count"}; requests are texts) and prints the
result of ``load``.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import Counter
from typing import Any

#: Maximum bytes of one receive call.
PIECE = 1 << 18


def request(method: str, path: str, token: str = "", body: Any = None, version: str = "2.96") -> str:
    """Return the text of an HTTP request to the Compute API: *path* with the *token*, the JSON *body* if it is not
    ``None``, and the microversion *version*."""
    content = "" if body is None else json.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"OpenStack-API-Version: compute {version}"]
    lines += [f"X-Auth-Token: {token}"] if token else []
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"] if content else []
    return "\r\n".join(lines) + "\r\n\r\n" + content


class Wire:
    """A connection to the server, with the answer received so far."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.held = b""
        self.began = 0.0

    def send(self, text: bytes) -> None:
        """Start a request: send *text*."""
        self.held, self.began = b"", time.perf_counter()
        self.socket.sendall(text)

    def read(self) -> bool:
        """Receive available bytes; return whether the answer is complete."""
        piece = self.socket.recv(PIECE)
        if not piece:
            raise ConnectionError("the server ended the connection")
        self.held += piece
        head, end, body = self.held.partition(b"\r\n\r\n")
        if not end:
            return False
        at = head.lower().find(b"content-length:")
        return len(body) >= (int(head[at + 15:].split(b"\r\n", 1)[0]) if at >= 0 else 0)

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return int(self.held[9:12])

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, with names in lower case."""
        lines = self.held.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _colon, value in (line.partition(":") for line in lines)}

    @property
    def json(self) -> Any:
        """The document in the answer."""
        content = self.held.partition(b"\r\n\r\n")[2]
        return json.loads(content) if content else None

    def ask(self, *words: Any, **more: Any) -> Wire:
        """Send the request that ``request`` makes from the arguments, wait for its answer, and return this connection.
        """
        self.send(request(*words, **more).encode())
        while not self.read():
            pass
        return self


def load(port: int, requests: list[str], clients: int, count: int) -> dict[str, Any]:
    """Send *count* requests to the local *port*, taken in turn from *requests*, with *clients* connections that each
    wait for an answer before the next request; return the measurements. ``began``: the time of the first request
    (``time.perf_counter``)."""
    texts = [text.encode() for text in requests]
    statuses: Counter[int] = Counter()
    taken: list[float] = []
    size, sent = 0, 0
    with selectors.DefaultSelector() as selector:
        wires = [Wire(port) for _at in range(min(clients, count))]
        began = time.perf_counter()
        for wire in wires:
            selector.register(wire.socket, selectors.EVENT_READ, wire)
            wire.send(texts[sent % len(texts)])
            sent += 1
        while len(taken) < count:
            for key, _mask in selector.select():
                wire = key.data
                if not wire.read():
                    continue
                taken.append((time.perf_counter() - wire.began) * 1000)
                statuses[wire.status] += 1
                size = len(wire.held)
                if sent < count:
                    wire.send(texts[sent % len(texts)])
                    sent += 1
        seconds = time.perf_counter() - began
    return {"taken": taken, "began": began, "seconds": seconds, "statuses": dict(statuses), "size": size}


if __name__ == "__main__":
    json.dump(load(**json.load(sys.stdin)), sys.stdout)
