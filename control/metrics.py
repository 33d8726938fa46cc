# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for Prometheus: requests, actions that ended, queues, hosts, claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from magnetar_control.health import Health

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


class Metrics:
    """The metrics of one process, in a registry of its own."""

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
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def describe(self) -> list[Any]:
        """Nothing: prometheus_client would call ``collect`` at registration otherwise."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The current values; called at each scrape."""
        health = self.health.read()
        yield GaugeMetricFamily("magnetar_database_up", "1 when the API database answers.", int(health.database))
        yield GaugeMetricFamily("magnetar_claims", "Rows of claims: one for each server and host.", health.claims)
        found = {name: GaugeMetricFamily(name, text, labels=("cell", *labels)) for name, text, labels in GAUGES}
        for cell in health.cells:
            for name, value in (("cell_up", int(cell.up)), ("conductors", cell.conductors),
                                ("queue_oldest_seconds", cell.oldest)):
                found[f"magnetar_{name}"].add_metric((cell.name,), value)
            for name, values in (("queue_actions", {"queued": 0, "running": 0, **cell.queue}), ("hosts", cell.hosts),
                                 ("claimed", cell.claimed), ("claimable", cell.claimable)):
                for label, value in values.items():
                    found[f"magnetar_{name}"].add_metric((cell.name, label), value)
        yield from found.values()
