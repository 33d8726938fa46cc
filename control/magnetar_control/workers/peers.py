# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests between the processes of one service, over unix sockets in a folder that only their user can open."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import logging
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any

from magnetar_control.metrics import MAIN, Metrics, Samples
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application

log = logging.getLogger(__name__)
#: The header that marks a request of one of the processes; its value is their secret.
MARK = "x-magnetar-worker"
#: The prefix of paths for the processes only, and seconds for an answer.
PREFIX, PATIENCE = "/worker", 5.0
#: Headers that are copied when a request is sent to the other processes.
REPEATED = ("x-auth-token", "authorization", "x-request-id")


@dataclass(frozen=True)
class Peers:
    """The API processes of one service and their parent process, which send requests to each other over unix sockets.
    *folder*: contains these sockets. *name*: of this process and its socket. *secret*: proves that a request comes from
    one of these processes. *tls*: whether the API uses TLS."""

    folder: Path
    name: str
    secret: str
    tls: bool = False

    @property
    def socket_path(self) -> Path:
        """The path of this process's unix socket."""
        return self.folder / f"{self.name}.sock"

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request was sent by a process of this service, according to the secret in its *headers*."""
        return hmac.compare_digest(headers.get(MARK, "").encode(), self.secret.encode())

    def ask(self, method: str, path: str, headers: Mapping[str, str] = MappingProxyType({}),
            seconds: float = PATIENCE) -> Iterator[tuple[str, int, bytes]]:
        """Send a request to each of the other processes. Yield (name of the process, HTTP status, body) of each
        response that arrives within *seconds*."""
        for place in sorted(self.folder.glob("*.sock")):
            if place != self.socket_path:
                with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(
                        _PeerConnection(place, seconds, self.tls and place.stem != MAIN)) as connection:
                    connection.request(method, path, headers={**headers, MARK: self.secret})
                    answer = connection.getresponse()
                    yield place.stem, answer.status, answer.read()

    def repeated(self, request: Request, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Forward *request* to the other API processes. Yield (HTTP status, body) of each response that arrives within
        *seconds*. Do nothing for a request that another API process has forwarded."""
        if MARK in request.headers:
            return
        headers = {name: request.headers[name] for name in REPEATED if name in request.headers}
        path = f"{request.path}?{request.query_string}" if request.query_string else request.path
        for name, status, body in self.ask(request.method, path, headers, seconds + PATIENCE):
            if name != MAIN:
                yield status, body

    def samples(self) -> dict[str, Samples]:
        """Return the metrics of the other processes, by name of the process."""
        return {name: json.loads(body) for name, status, body in self.ask("GET", f"{PREFIX}/metrics") if status == 200}


class _PeerConnection(http.client.HTTPConnection):
    """An HTTP connection over a unix socket. With TLS, it does not check the server's certificate, because only the
    service's unix user can open the folder of the sockets."""

    def __init__(self, path: Path, seconds: float, tls: bool) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path, self._tls = path, tls

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.sock = context.wrap_socket(self.sock)


class WorkerPages(Application):
    """The web application by which the other processes of the service read the metrics of this API process. Other
    callers get 404."""

    def __init__(self, peers: Peers, metrics: Metrics) -> None:
        self.peers, self.metrics = peers, metrics

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        if request.path != "/metrics" or not self.peers.knows(request.headers):
            return self.refused(request, Fault(404, "There is nothing here."))
        return Answer(self.metrics.samples())


class MainPages:
    """An HTTP server on a unix socket, by which the API processes read the metrics of their parent process. It runs
    until ``close``."""

    def __init__(self, peers: Peers, metrics: Metrics) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                knows = self.path == f"{PREFIX}/metrics" and peers.knows(headers)
                body = json.dumps(metrics.samples() if knows else None).encode()
                self.send_response(200 if knows else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Override ``BaseHTTPRequestHandler.log_message``: log nothing, since scrapes are frequent."""

        self.server = socketserver.ThreadingUnixStreamServer(str(peers.socket_path), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 60.0}, name="main pages",
                         daemon=True).start()

    def close(self) -> None:
        """Close the server's listening socket."""
        self.server.server_close()
