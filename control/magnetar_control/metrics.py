# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for Prometheus: requests, actions that ended, queues, hosts, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from .health import Health

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
#: Of what is counted by cell: name, help, field of ``CellHealth``, and the label by which it has several.
GAUGES = (
    ("magnetar_cell_up", "1 when the cell's database answers.", "up", None),
    ("magnetar_conductors", "Conductors of the cell that live.", "conductors", None),
    ("magnetar_queue_oldest_seconds", "Age of the action that waits longest.", "oldest", None),
    ("magnetar_queue_actions", "Actions that wait (queued) or are worked on (running).", "queue", "state"),
    ("magnetar_hosts", "Compute hosts by state: up, down, disabled.", "hosts", "state"),
    ("magnetar_claimed", "What servers hold of the cell's hosts.", "claimed", "resource"),
    ("magnetar_claimable", "What they may hold.", "claimable", "resource"))


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self, health: Health) -> None:
        self.health = health
        #: How many consoles are open through this process; of an API.
        self.consoles: Callable[[], int] | None = None
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
        if self.consoles is not None:
            yield GaugeMetricFamily("magnetar_consoles", "Consoles that are open through this process.",
                                    self.consoles())
        for name, text, field, label in GAUGES:
            family = GaugeMetricFamily(name, text, labels=("cell", label) if label else ("cell",))
            for cell in health.cells:
                value = getattr(cell, field)
                for key, number in value.items() if label else [("", value)]:
                    family.add_metric((cell.name, key) if label else (cell.name,), number)
            yield family
