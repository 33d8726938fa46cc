# SPDX-License-Identifier: GPL-3.0-or-later
"""``/healthz`` and ``/metrics`` over HTTP: on the API's port, and on a separate address."""

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
from sqlalchemy.exc import DBAPIError

from magnetar_control.health import Health, health_document
from magnetar_control.http_client import shut_down_socket
from magnetar_control.metrics import Metrics
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Application
from magnetar_control.web.quick import RunIn
from magnetar_core.errors import Forbidden, MagnetarError

from .failures import fault_of_failure

#: Limit of parallel connections of a health server, and the seconds that each may take.
HEALTH_CONNECTIONS, HEALTH_PATIENCE = 32, 10.0


class NoAddress(MagnetarError):
    """The error that the process cannot listen on the address in the setting ``health_listen``."""

    code = "invalid-settings"


class Healthz(Application):
    """The application of ``/healthz`` on the API's port. The status is 200 if the API database answers and the process
    is not being stopped, otherwise 503. The answer contains only numbers, because any client may request it."""

    def __init__(self, health: Health) -> None:
        self.health = health

    def run_in(self, request: Request) -> RunIn:
        return RunIn.HEALTH

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return self.refused(request, Fault(405, f"{request.method} is not possible here."))
        health = self.health.read()
        stopping = self.health.stopping
        return Answer(health_document(health, stopping), 200 if health.database and not stopping else 503)


class MetricsForAdmins(Application):
    """The application of ``/metrics`` on the API's port, for tokens with the role admin."""

    def __init__(self, text: Any, authenticate: Any) -> None:
        self.text, self.authenticate = text, authenticate

    def admit(self, request: Request) -> Answer:
        return self.handle(request)

    def handle(self, request: Request) -> Answer:
        try:
            self.authenticate(request)
            if not request.context.is_admin:
                raise Forbidden("The figures of the cloud are for administrators (role admin).")
        except MagnetarError as error:
            return self.refused(request, Fault(error.status, error.message))
        except Fault as fault:
            return self.refused(request, fault)
        except DBAPIError as error:
            failure = fault_of_failure(error, request.id)
            if failure is None:
                raise
            return self.refused(request, failure)
        return Answer(self.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class HealthServer:
    """An HTTP server for ``/healthz`` and ``/metrics`` on a separate address, without authentication. *listen*:
    host:port. *runner*: the part of this process's conductor that executes queued actions; ``None`` if the process runs
    no conductor."""

    def __init__(self, listen: str, metrics: Metrics, runner: Any = None) -> None:
        host, _colon, port = listen.rpartition(":")

        places = threading.BoundedSemaphore(HEALTH_CONNECTIONS)

        class Handler(BaseHTTPRequestHandler):
            timeout = HEALTH_PATIENCE

            def handle(self) -> None:
                """Override ``BaseHTTPRequestHandler.handle``: limit the number of connections and their duration."""
                if not places.acquire(blocking=False):
                    return
                ends = threading.Timer(HEALTH_PATIENCE, shut_down_socket, (self.connection,))
                ends.daemon = True
                ends.start()
                try:
                    with contextlib.suppress(OSError):
                        super().handle()
                finally:
                    ends.cancel()
                    places.release()

            def do_GET(self) -> None:
                status, kind, body = _answer(self.path, metrics, runner)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Override ``BaseHTTPRequestHandler.log_message``: log nothing, because scrapes are frequent."""

        try:
            self.server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except (OSError, ValueError) as error:
            raise NoAddress(f"health_listen is {listen}, which cannot be listened on: {error}. Give it as host:port "
                            "of a free port of this machine.") from None
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop the server, and close its socket."""
        self.server.shutdown()
        self.server.server_close()


def _answer(path: str, metrics: Metrics, runner: Any) -> tuple[int, str, bytes]:
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics.text().encode()
    if path == "/healthz":
        health, stopping = metrics.health.read(), metrics.health.stopping
        body, good = health_document(health, stopping), health.database and not stopping
        if runner is not None:
            body["conductor"] = {"cell": runner.conductor.cell.name, "works": runner.works(),
                                 "sees_hosts": runner.conductor.hosts_up()}
            good = good and runner.works()
        return 200 if good else 503, "application/json", orjson.dumps(body)
    return 404, "text/plain", b"There are /healthz and /metrics here.\n"
