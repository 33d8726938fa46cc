# SPDX-License-Identifier: GPL-3.0-or-later
"""A receiver of notifications on a loopback port, which behaves or does not."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiving(ThreadingHTTPServer):
    """``taken`` has what was answered 200, ``asked`` path and headers of each request. *status*: what is answered to
    the message; a receiver that is to hang waits for ``goes_on`` when the status is 0."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.taken: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status: Callable[[dict[str, Any]], int] = lambda _message: 200
        self.goes_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/endpoint?of=magnetar"

    def types(self, id: str | None = None) -> list[str]:
        """The event types that were taken, of one server where it is named, each message once."""
        seen = {one["message_id"]: one for one in self.taken}
        return [one["event_type"] for one in seen.values()
                if id in (None, one["payload"]["nova_object.data"].get("uuid"))]

    def wait_for(self, count: int, id: str) -> None:
        """Wait until there are so many of a server."""
        self.wait(lambda: len(self.types(id)) >= count)

    def wait(self, function: Callable[[], Any], limit: float = 120.0) -> Any:
        """What *function* returns, when that is something."""
        deadline = time.monotonic() + limit
        while not (found := function()):
            assert time.monotonic() < deadline, self.types()
            time.sleep(0.02)
        return found

    def handle_error(self, *_about: Any) -> None:
        """Clients that go are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiving

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
        status = self.server.status(message)
        if status == 0:
            self.server.goes_on.wait(60)
            return
        if status == 200:
            self.server.taken.append(message)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.url + "&elsewhere=1")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"what")

    def log_message(self, *_about: Any) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def receiving() -> Iterator[Receiving]:
    with Receiving() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.goes_on.set()
            server.shutdown()
            thread.join()
