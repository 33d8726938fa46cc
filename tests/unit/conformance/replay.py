# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud that answers with the samples themselves: proves the runner's plumbing. It keeps nothing."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.conformance.samples import Evidence, Sample
from tests.conformance.transport import Target

REQUEST_ID = "req-00000000-0000-4000-8000-000000000000"


class Replay:
    """Finds the sample that answers; *spoil* may change a body before it is sent."""

    def __init__(self, evidence: Evidence, spoil: Any = None) -> None:
        self.evidence = evidence
        self.spoil = spoil or (lambda sample, body: body)
        self.url = ""
        self.asked: list[tuple[str, str]] = []

    def answer(self, method: str, path: str, version: int) -> tuple[int, Any]:
        """Status and body for a request."""
        self.asked.append((method, path))
        if path == "/v2.1/":
            return 200, {"version": {"id": "v2.1", "version": f"2.{self.evidence.newest}", "min_version": "2.1",
                                     "status": "CURRENT", "links": []}}
        found = self.sample(method, path.removeprefix("/v2.1").partition("?")[0], version)
        if found is None:
            return 404, {"itemNotFound": {"code": 404, "message": "The resource could not be found."}}
        text = json.dumps(self.spoil(found, self.evidence.body(found.file)))
        text = re.sub(r"http://openstack.example.com/v2(\.1)?/[0-9a-f]{32}", self.url + "/v2.1", text)
        text = re.sub(r"http://openstack.example.com/[0-9a-f]{32}", self.url, text)
        return found.status, json.loads(text)

    def sample(self, method: str, path: str, version: int) -> Sample | None:
        """The answer's sample at *version*."""
        for one in self.evidence.samples.values():
            pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(one.path))
            if (one.direction, one.method) == ("response", method) and version in one.versions and one.status < 400 \
                    and re.fullmatch(pattern, path):
                return one
        return None


@contextlib.contextmanager
def serve(replay: Replay) -> Iterator[Target]:
    """The target under which the replay is."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            """Quiet."""

        def any_method(self) -> None:
            """One exchange."""
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = self.headers.get("X-OpenStack-Nova-API-Version") or "2.1"
            minor = asked.partition(".")[2]
            status, body = replay.answer(self.command, self.path, int(minor) if minor.isdigit() else 1)
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(data))),
                                ("OpenStack-API-Version", f"compute {asked}"), ("X-OpenStack-Nova-API-Version", asked),
                                ("Vary", "OpenStack-API-Version, X-OpenStack-Nova-API-Version"),
                                ("x-openstack-request-id", REQUEST_ID), ("x-compute-request-id", REQUEST_ID)):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = any_method

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        replay.url = f"http://127.0.0.1:{server.server_address[1]}"
        somebody = {"token": "t", "project_id": "p", "user_id": "u"}
        try:
            yield Target(url=replay.url, hosts=["host1"], capabilities={"hosts": 1},
                         personas=dict.fromkeys(("admin", "member", "other", "reader"), somebody))
        finally:
            server.shutdown()
            thread.join(5)
