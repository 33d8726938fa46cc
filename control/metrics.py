# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures for Prometheus: requests, actions that ended, queues, hosts, claims; and where a process offers them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from magnetar_control.health import Health, document
from magnetar_core.errors import MagnetarError

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
#: Name, help and labels of what is counted by cell.
GAUGES = (
    ("magnetar_cell_up", "1 when the cell's database answers.", ()),
    ("magnetar_conductors", "Conductors of the cell that live.", ()),
    ("magnetar_queue_oldest_seconds", "Age of the action that waits longest.", ()),
    ("magnetar_queue_actions", "Actions that wait (queued) or are worked on (running).", ("state",)),
    ("magnetar_hosts", "Compute hosts by state: up, down, disabled.", ("state",)),
    ("magnetar_claimed", "What servers hold of the cell's hosts.", ("resource",)),
    ("magnetar_claimable", "What they may hold.", ("resource",)))


class NoAddress(MagnetarError):
    """The address cannot be listened on."""

    code = "invalid-settings"


class Metrics:
    """The figures of one process, in a registry of its own."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.registry = CollectorRegistry()
        self.requests = Counter("magnetar_requests", "HTTP requests.", ("service", "method", "route", "status"),
                                registry=self.registry)
        self.seconds = Histogram("magnetar_request_seconds", "Time to answer.", ("service", "method", "route"),
                                 buckets=SECONDS, registry=self.registry)
        self.actions = Counter("magnetar_actions", "Actions of servers that this conductor has ended.",
                               ("action", "result"), registry=self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def request(self, service: str, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request. *route* is its pattern, never its path, so that there are few of them."""
        self.requests.labels(service, method, route, str(status)).inc()
        self.seconds.labels(service, method, route).observe(seconds)

    def ended(self, action: str, result: str) -> None:
        """Count one action: *result* is done or failed."""
        self.actions.labels(action, result).inc()

    def text(self) -> str:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def describe(self) -> list[Any]:
        """Nothing beforehand: looking costs queries."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What is true now; called at each scrape."""
        seen = self.health.look()
        yield GaugeMetricFamily("magnetar_database_up", "1 when the API database answers.", int(seen.database))
        yield GaugeMetricFamily("magnetar_claims", "Rows of claims: one for each server and host.", seen.claims)
        found = {name: GaugeMetricFamily(name, text, labels=("cell", *labels)) for name, text, labels in GAUGES}
        for cell in seen.cells:
            for name, value in (("cell_up", int(cell.up)), ("conductors", cell.conductors),
                                ("queue_oldest_seconds", cell.oldest)):
                found[f"magnetar_{name}"].add_metric((cell.name,), value)
            for name, values in (("queue_actions", {"queued": 0, "running": 0, **cell.queue}), ("hosts", cell.hosts),
                                 ("claimed", cell.claimed), ("claimable", cell.claimable)):
                for label, value in values.items():
                    found[f"magnetar_{name}"].add_metric((cell.name, label), value)
        yield from found.values()


class Beside:
    """``/healthz`` and ``/metrics`` on an address of their own, without authentication: *listen* is host:port.
    *conductor* is that of the process, where it has one."""

    def __init__(self, listen: str, metrics: Metrics, conductor: Any = None) -> None:
        host, _colon, port = listen.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = _answer(self.path, metrics, conductor)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """A scrape is nothing to tell."""

        try:
            self.server = ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
        except (OSError, ValueError) as error:
            raise NoAddress(f"health_listen is {listen}, which cannot be listened on: {error}. Give it as host:port "
                            "of a free port of this machine.") from None
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self.server.shutdown()
        self.server.server_close()


def _answer(path: str, metrics: Metrics, conductor: Any) -> tuple[int, str, bytes]:
    if path == "/metrics":
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics.text().encode()
    if path == "/healthz":
        seen = metrics.health.look()
        said, good = document(seen), seen.database
        if conductor is not None:
            said["conductor"] = {"cell": conductor.cell.name, "works": conductor.works(),
                                 "sees_hosts": conductor.hosts_up()}
            good = good and conductor.works()
        return 200 if good else 503, "application/json", orjson.dumps(said)
    return 404, "text/plain", b"There are /healthz and /metrics here.\n"
