# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics for Prometheus: requests, ended actions, queues, hosts, claims, and capacity for the servers of a failed
host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from magnetar_control.scheduler.room_report import RoomReport

from .health import Health

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30)
#: Gauges by cell: name, help, field of ``CellHealth``, and the label of fields with several values.
GAUGES = (
    ("magnetar_cell_up", "1 when the cell's database answers.", "up", None),
    ("magnetar_conductors", "Conductors of the cell that live.", "conductors", None),
    ("magnetar_queue_oldest_seconds", "Age of the action that waits longest.", "oldest", None),
    ("magnetar_queue_actions", "Actions that wait (queued) or are worked on (running).", "queue", "state"),
    ("magnetar_hosts", "Compute hosts by state: up, down, disabled.", "hosts", "state"),
    ("magnetar_claimed", "What servers hold of the cell's hosts.", "claimed", "resource"),
    ("magnetar_claimable", "What they may hold.", "claimable", "resource"),
    ("magnetar_incidents", "Open incidents of dead hosts; blocked and failed ones wait for people.", "incidents",
     "state"))

#: Gauges of room to fail, by cell, scope (cloud, zone, aggregate) and its name: name, help, and the value of a report.
ROOM_GAUGES: tuple[tuple[str, str, Callable[[RoomReport], int]], ...] = (
    ("magnetar_room_to_fail", "1 when all servers of any one host have a place on other hosts (N+1).",
     lambda report: report.holds),
    ("magnetar_room_lacking_hosts", "Hosts whose servers would not all have a place on other hosts.",
     lambda report: len(report.lacking)),
    ("magnetar_room_unplaced_servers", "Most servers of one host that would have no place.",
     lambda report: max((len(room.unplaced) for room in report.lacking), default=0)))
#: Seconds after which a check of the room is not shown any more: another conductor makes the checks by now.
ROOM_TTL = 3600.0

#: The metrics of one process: name, help and type of each, and its samples with name, labels and value.
Samples = list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]
#: Name of the process that keeps several API processes.
MAIN = "main"


class Metrics:
    """The Prometheus metrics of one process. If several processes share the port for scrapes, ``text`` also includes
    the metrics of the other processes."""

    def __init__(self, health: Health) -> None:
        self.health = health
        #: The name of this process and a function that returns the metrics of the others, when several share a port.
        self.name: str | None = None
        self.others: Callable[[], Mapping[str, Samples]] = dict
        self.registry, self.own = CollectorRegistry(), CollectorRegistry()
        self.requests = Counter("magnetar_requests", "HTTP requests.", ("service", "method", "route", "status"),
                                registry=self.own)
        self.seconds = Histogram("magnetar_request_seconds", "Time to answer.", ("service", "method", "route"),
                                 buckets=SECONDS, registry=self.own)
        #: The metrics of each kind of request, which take longer to find than to change.
        self._counted: dict[tuple[str, str, str, int], tuple[Counter, Histogram]] = {}
        self.actions = Counter("magnetar_actions", "Actions of servers that this conductor has ended.",
                               ("action", "result"), registry=self.own)
        #: The last check of the room to fail: when it was made, the cell, and the reports.
        self._room: tuple[float, str, Sequence[RoomReport]] = (float("-inf"), "", ())
        ProcessCollector(registry=self.own)
        self.own.register(_Gauges(self._room_gauges))
        self.registry.register(self)

    def request(self, service: str, method: str, route: str, status: int, seconds: float) -> None:
        """Count one HTTP request and its duration in *seconds*. *route*: the pattern of the path, such as
        ``/servers/{id}``, not the path itself, so that the label has few values."""
        key = service, method, route, status
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = (self.requests.labels(service, method, route, str(status)),
                                            self.seconds.labels(service, method, route))
        counted[0].inc()
        counted[1].observe(seconds)

    def ended(self, action: str, result: str) -> None:
        """Count one action of a server that has ended. *result*: done or failed."""
        self.actions.labels(action, result).inc()

    def set_room(self, cell: str, reports: Sequence[RoomReport]) -> None:
        """Save the capacity *reports* of a *cell* (from ``conductor.periodic.room_check``), so that the next scrapes
        return them."""
        self._room = monotonic(), cell, [report for report in reports if report.rooms]

    def _room_gauges(self) -> Iterator[GaugeMetricFamily]:
        checked_at, cell, reports = self._room
        if monotonic() - checked_at > ROOM_TTL:
            return
        for name, text, value in ROOM_GAUGES:
            family = GaugeMetricFamily(name, text, labels=("cell", "scope", "name"))
            for report in reports:
                family.add_metric((cell, report.scope.kind, report.scope.name), value(report))
            yield family

    def count_consoles(self, count: Callable[[], int]) -> None:
        """Add a gauge for the open consoles of this process. *count*: returns their number; it is called at each
        scrape."""
        Gauge("magnetar_consoles", "Consoles that are open through this process.",
              registry=self.own).set_function(count)

    def text(self) -> str:
        """Return all metrics in Prometheus' text format. If several processes share the port, the label ``worker``
        names the process of each value."""
        own = self.own if self.name is None else _Labelled({self.name: self.samples(), **self.others()})
        return (generate_latest(own) + generate_latest(self.registry)).decode()

    def samples(self) -> Samples:
        """Return the metrics of this process alone, in a form that other processes can receive."""
        return [(family.name, family.documentation, family.type, [
            (sample.name, sample.labels, sample.value) for sample in family.samples]) for family in self.own.collect()]

    def describe(self) -> list[Any]:
        """Return an empty list. prometheus_client calls this at registration. Without this method it would call
        ``collect`` instead, and so query the databases already at registration."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield gauges with the current health of the cloud. prometheus_client calls this at each scrape."""
        health = self.health.read()
        yield GaugeMetricFamily("magnetar_database_up", "1 when the API database answers.", int(health.database))
        yield GaugeMetricFamily("magnetar_claims", "Rows of claims: one for each server and host.", health.claims)
        for name, text, field, label in GAUGES:
            family = GaugeMetricFamily(name, text, labels=("cell", label) if label else ("cell",))
            for cell in health.cells:
                value = getattr(cell, field)
                for key, number in value.items() if label else [("", value)]:
                    family.add_metric((cell.name, key) if label else (cell.name,), number)
            yield family


class _Gauges:
    """A prometheus_client collector that calls the function *gauges* at each scrape."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]]) -> None:
        self.collect = gauges

    def describe(self) -> list[Metric]:
        """Return an empty list. prometheus_client calls this at registration. Without this method it would call
        ``collect`` instead, and so call *gauges* already at registration."""
        return []


class _Labelled(CollectorRegistry):
    """A prometheus_client registry with the metrics of several processes (*processes*: metrics by name of the process).
    The label ``worker`` names the process of each value. Counters are not summed, because the counter of a restarted
    process begins at 0 again."""

    def __init__(self, processes: Mapping[str, Samples]) -> None:
        super().__init__()
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        metrics: dict[str, Metric] = {}
        for worker, families in sorted(self._processes.items()):
            for name, text, kind, samples in families:
                metric = metrics.setdefault(name, Metric(name, text, kind))
                for sample, labels, value in samples:
                    metric.add_sample(sample, {**labels, "worker": worker}, value)
        yield from metrics.values()
