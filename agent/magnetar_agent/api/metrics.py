# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for Prometheus: requests, operations, servers by state, and whether libvirt answers."""

from __future__ import annotations

from collections import Counter as Count
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from magnetar_agent.host.host import CONSOLES
from magnetar_core.errors import MagnetarError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

METHODS = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5, 30, 120)


class AgentMetrics:
    """The Prometheus metrics of one agent, in a registry that no other agent of the process uses."""

    def __init__(self, host: LocalHost) -> None:
        self._host = host
        self.registry = CollectorRegistry()
        self.requests = Counter("magnetar_requests", "HTTP requests.", ("method", "route", "status"),
                                registry=self.registry)
        self.seconds = Histogram("magnetar_request_seconds", "Time to answer.", ("method",), buckets=SECONDS,
                                 registry=self.registry)
        self.operations = Counter("magnetar_operations", "Operations that ended.", ("name", "status"),
                                  registry=self.registry)
        ProcessCollector(registry=self.registry)
        self.registry.register(self)
        host.operations.listen(self.count_operation)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request and its duration. *route*: the pattern of the route instead of the request's path, so
        that there are few label values. An unknown *method* counts as ``other``."""
        method = method if method in METHODS else "other"
        self.requests.labels(method, route, str(status)).inc()
        self.seconds.labels(method).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def count_operation(self, operation: Operation) -> None:
        """Count an operation (a background task) that has ended, by its name and status."""
        self.operations.labels(operation.name, operation.status).inc()

    def describe(self) -> list[Any]:
        """Implement ``Collector.describe``: return an empty list, so that registration collects nothing from libvirt.
        """
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Implement ``Collector.collect``: yield the current values; called at each scrape."""
        yield GaugeMetricFamily("magnetar_operations_running", "Operations that run or wait for a thread.",
                                self._host.operations.running())
        consoles = GaugeMetricFamily("magnetar_consoles", "Consoles that are open.", labels=("kind",))
        for kind in CONSOLES:
            consoles.add_metric((kind,), sum(many for (_id, open_kind), many in tuple(self._host.consoles.items())
                                             if open_kind == kind))
        yield consoles
        states = self._states()
        yield GaugeMetricFamily("magnetar_libvirt_up", "1 when libvirt answers.", states is not None)
        servers = GaugeMetricFamily("magnetar_servers", "Servers by the state that is seen.", labels=("state",))
        for state, number in sorted((states or {}).items()):
            servers.add_metric((state,), number)
        yield servers

    def _states(self) -> dict[str, int] | None:
        if not self._host.hypervisor.connected():
            return None
        try:
            counts = Count(domain.state for domain in self._host.hypervisor.domains().values() if domain.owned)
        except MagnetarError:
            return None
        missing = self._host.documents.count("server") - sum(counts.values())
        return {**counts, **({"missing": missing} if missing > 0 else {})}
