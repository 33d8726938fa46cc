# SPDX-License-Identifier: GPL-3.0-or-later
"""The writer of heartbeats. One transaction saves the heartbeats of all hosts that sent one within a second, and
renews all leases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.hosts.host_leases import LEASE, Renewal, renew_host_leases

log = logging.getLogger(__name__)
#: Most seconds between two transactions while heartbeats come; seconds after which the lease of a silent host is
#: renewed.
GAP, RENEWED = 1.0, LEASE / 2


class Heartbeat(NamedTuple):
    """A received heartbeat of a host that is not yet written to the database. *report*: the host's metrics and cached
    images as JSON; ``None`` if the scheduler's filters and weighers do not use them. *handled*: uuids of evacuations
    from the host; their guests are already stopped on this host, or removed from it."""

    report: str | None
    handled: Collection[str]


class Heartbeats:
    """The thread that writes the heartbeats of the hosts that a conductor watches, and renews the conductor's leases of
    these hosts, for many hosts in one transaction. A lease gives a single conductor the right to watch a host, and
    expires after some seconds. *written*: a function that is called after each transaction with its result (which hosts
    are up, and which are not)."""

    def __init__(self, conductor: Conductor, written: Callable[[Renewal], None]) -> None:
        self.conductor, self._written = conductor, written
        #: Seconds between two transactions; the first heartbeat after a pause is written immediately.
        self._gap = min(GAP, conductor.settings.heartbeat / 4)
        self._changed = threading.Condition()
        self._closed = self._waits = False
        self._heartbeats: dict[str, Heartbeat] = {}
        #: New problems of hosts, to be written.
        self._problems: dict[str, str | None] = {}
        #: Watched hosts, with the time of their last renewal.
        self._renewed: dict[str, float] = {}
        #: The reports in the database, as far as this conductor wrote them.
        self._reports: dict[str, str | None] = {}

    def add(self, host: str) -> None:
        """Begin to renew the conductor's lease of *host*, the temporary right to watch the host."""
        with self._changed:
            self._renewed[host] = time.monotonic()

    def remove(self, host: str) -> None:
        """Stop renewing the conductor's lease of *host*, so that another conductor can take it."""
        with self._changed:
            for of_hosts in (self._renewed, self._heartbeats, self._problems, self._reports):
                of_hosts.pop(host, None)

    def add_heartbeat(self, host: str, report: str | None, handled: Collection[str] = ()) -> None:
        """Queue a received heartbeat of *host*, to be written to the database. *report*: the host's metrics and cached
        images as JSON; ``None`` if the scheduler's filters and weighers do not use them. *handled*: uuids of
        evacuations from the host; their guests are already stopped on this host, or removed from it."""
        with self._changed:
            if host in self._renewed:
                self._heartbeats[host] = Heartbeat(report, handled)
                self._problems.pop(host, None)
                self._wake_writer()

    def report_problem(self, host: str, problem: str) -> None:
        """Queue *problem*, the reason why *host* is not up, to be written to the database with the next heartbeats."""
        with self._changed:
            if host in self._renewed:
                self._problems[host] = problem
                self._heartbeats.pop(host, None)
                self._wake_writer()

    def _wake_writer(self) -> None:
        if self._waits:  # not in the pause after a transaction
            self._changed.notify()

    def close(self) -> None:
        """Make ``run`` return."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Write heartbeats and renew leases until ``close`` is called. Must run in its own thread."""
        failing = ""
        while not self._closed:
            heartbeats, problems, silent = self._due()
            if self._closed:
                return
            try:
                if heartbeats or problems or silent:
                    self._write(heartbeats, problems, silent)
                    failing = ""
            except DBAPIError as error:
                if failing != (failing := type(error.orig).__name__):
                    log.warning("hosts of cell %s: heartbeats are not written: %s", self.conductor.cell.name,
                                error.orig)
                self._requeue(heartbeats, problems)
            except Exception:
                log.exception("hosts of cell %s: heartbeats are not written", self.conductor.cell.name)
                failing = "unexpected"
                self._requeue(heartbeats, problems)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, GAP if failing else self._gap)

    def _due(self) -> tuple[dict[str, Heartbeat], dict[str, str | None], set[str]]:
        """Wait until something must be written. Return (heartbeats by host, reason by host for hosts that are not up,
        hosts without a heartbeat whose leases must be renewed)."""
        with self._changed:
            while not (self._heartbeats or self._problems or self._closed):
                oldest = min(self._renewed.values(), default=float("inf"))
                remaining = oldest + RENEWED - time.monotonic()
                if remaining <= 0:
                    break
                self._waits = True
                self._changed.wait(min(remaining, LEASE))
            self._waits = False
            heartbeats, problems, self._heartbeats, self._problems = self._heartbeats, self._problems, {}, {}
            cutoff = time.monotonic() - RENEWED + self._gap
            silent = {host for host, at in self._renewed.items() if at <= cutoff and host not in heartbeats}
            return heartbeats, problems, silent

    def _write(self, heartbeats: dict[str, Heartbeat], problems: dict[str, str | None], silent: set[str]) -> None:
        conductor = self.conductor
        reports = {host: heartbeat.report for host, heartbeat in heartbeats.items()
                   if self._reports.get(host, "") != heartbeat.report}
        with statement_timeout(LEASE / 2, refused=False):
            renewal = renew_host_leases(conductor.database, conductor.holder, {
                host: heartbeat.handled for host, heartbeat in heartbeats.items()}, silent, problems, reports)
        moment = time.monotonic()
        with self._changed:
            self._renewed.update({host: moment for host in (*heartbeats, *problems, *silent) if host in self._renewed})
            self._reports.update({host: text for host, text in reports.items() if host in self._renewed})
        self._written(renewal)

    def _requeue(self, heartbeats: dict[str, Heartbeat], problems: dict[str, str | None]) -> None:
        with self._changed:
            for host, heartbeat in heartbeats.items():
                if host in self._renewed and host not in self._problems:
                    self._heartbeats.setdefault(host, heartbeat)
            for host, problem in problems.items():
                if host in self._renewed and host not in self._heartbeats:
                    self._problems.setdefault(host, problem)
