# SPDX-License-Identifier: GPL-3.0-or-later
"""Targets of dynamic vendordata that behave and misbehave, on a loopback port."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Targets(ThreadingHTTPServer):
    """``asked`` has path, headers and body of each request. What is answered follows from the path."""

    daemon_threads = True

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.scheme = "http"
        self.answers: dict[str, bytes] = {}  # by path, in place of the usual ones
        self.known: dict[str, str] = {}  # where there are some, the tokens that are let in, by path
        if context:
            self.socket, self.scheme = context.wrap_socket(self.socket, server_side=True), "https"

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, *_about: Any) -> None:
        """Clients that go are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Targets

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.strip("/")
        self.server.asked.append((path, {key.lower(): value for key, value in self.headers.items()}, json.loads(body)))
        answer = {"good": b'{"join": "now"}', "list": b"[1, 2]", "empty": b"", "lies": b"<html>Secret-Words</html>",
                  "huge": b'"' + b"x" * 70_000 + b'"', "deep": b"[" * 80 + b"]" * 80,
                  "more": b'{"cut": "', **self.server.answers}.get(path, b"{}")
        status = {"redirects": 302, "broken": 500, "gone": 404}.get(path, 200)
        if self.server.known and self.headers["X-Auth-Token"] != self.server.known.get(path):
            status = 401
        if path == "hangs":
            time.sleep(30)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer) + (10 if path == "more" else 0)))
        if path == "redirects":
            self.send_header("Location", self.server.url("good"))
        self.end_headers()
        if path == "drips":
            return self._drip()
        self.wfile.write(answer)
        return None

    def _drip(self) -> None:
        with contextlib.suppress(OSError):
            for _at in range(300):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)

    def log_message(self, *_about: Any) -> None:
        """Nothing."""


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Targets]:
    """Targets that answer."""
    found = Targets(context)
    thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.shutdown()
        found.server_close()
        thread.join(10)
