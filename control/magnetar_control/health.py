# SPDX-License-Identifier: GPL-3.0-or-later
"""The health of the cloud: which databases answer, which conductors and hosts are up, and the queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from magnetar_control.store.actions.actions import is_open_action
from magnetar_control.store.claims.allocations import RESOURCES, Amounts
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import actions, allocations, conductors, host_states
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.host_leases import NOT_REFUSED
from magnetar_control.store.hosts.host_row import HealthHost
from magnetar_control.store.hosts.incidents import count_open_incidents
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import CELL0, CellMapping, Store

#: Seconds for which the health is cached, so that frequent queries cost little; seconds that a database has to answer.
FRESH, PATIENCE = 2.0, 5.0
#: Seconds without a heartbeat after which a conductor is down.
SILENT = 15.0


@dataclass
class CellHealth:
    """The health of one cell. ``up``: whether its database answers. ``queue``: number of actions by state. ``oldest``:
    age of the oldest queued action in seconds. ``hosts``: number of hosts by state (up, down, disabled). ``claimed``,
    ``claimable``: by resource, the amount that is claimed, and the amount that may be claimed, on all hosts of the cell
    together. ``incidents``: number of open incidents (hosts that died) by state."""

    name: str
    up: bool = False
    conductors: int = 0
    queue: dict[str, int] = field(default_factory=lambda: {"queued": 0, "running": 0})
    oldest: float = 0.0
    hosts: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "disabled": 0})
    claimed: dict[str, int] = field(default_factory=dict)
    claimable: dict[str, int] = field(default_factory=dict)
    incidents: dict[str, int] = field(default_factory=dict)


@dataclass
class CloudHealth:
    """The health of the API database and of all cells. ``database``: whether the API database answers. ``claims``:
    number of rows in ``allocations``."""

    database: bool = False
    cells: Sequence[CellHealth] = ()
    claims: int = 0


#: A cell's answer: actions (state, number, oldest start), number of conductors, names of hosts that are up, and open
#: incidents by state.
CellAnswer = tuple[Sequence[Any], int, set[str], dict[str, int]]


class Health:
    """A cached reader of the cloud's health. It queries the databases at most once in ``FRESH`` seconds. *down_after*:
    a function that returns the number of seconds without a heartbeat after which a host counts as down."""

    def __init__(self, store: Store, down_after: Callable[[], float]) -> None:
        self.store, self.down_after = store, down_after
        self._lock = threading.Lock()
        self._seen, self._at = CloudHealth(), float("-inf")
        #: Whether this process stops, and must get no further requests.
        self.stopping = False

    def stop(self) -> None:
        """Mark this process as stopping, so that ``GET /healthz`` responds with status 503 from now on."""
        self.stopping = True

    def read(self) -> CloudHealth:
        """Return the current health, at most ``FRESH`` seconds old."""
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._seen, self._at = self._read(), time.monotonic()
            return self._seen

    def _read(self) -> CloudHealth:
        try:
            with statement_timeout(PATIENCE), self.store.api.read() as connection:
                rows = hosts.fetch_every_host(connection, HealthHost)
                claims = connection.execute(select(func.count()).select_from(allocations)).scalar_one()
        except (DBAPIError, PoolTimeout):
            return CloudHealth()
        answers = scatter_gather(self.store, self._cell, PATIENCE, cell0=True)
        return CloudHealth(True, [_cell_health(cell, rows, answers[cell.id]) for cell,
                                  _database in self.store.databases()
                                  if cell.id in answers], claims)

    def _cell(self, database: Database) -> CellAnswer:
        with database.read() as connection:
            queue = connection.execute(select(actions.c.state, func.count(), func.min(actions.c.start_time)).where(
                is_open_action()).group_by(actions.c.state)).all()
            living = connection.execute(select(func.count(conductors.c.name.distinct())).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar_one()
            hosts_up = set(connection.execute(select(host_states.c.host).where(
                host_states.c.seen_at > database.clock(-self.down_after()), NOT_REFUSED)).scalars())
            incidents_by_state = count_open_incidents(connection)
        return queue, living, hosts_up, incidents_by_state


def _cell_health(cell: CellMapping, rows: Sequence[HealthHost], answer: CellAnswer | None) -> CellHealth:
    """Return the health of *cell*. *rows*: the hosts of all cells. *answer*: the result of the queries to the cell's
    database; ``None`` if it does not answer, so that the cell counts as down. cell0 has no hosts."""
    queue, living, hosts_up, incidents_by_state = answer or ((), 0, set(), {})
    health = CellHealth(cell.name, answer is not None, living)
    health.queue.update((state, number) for state, number, _since in queue)
    health.oldest = max([_seconds_since(since) for state, _number, since in queue if state == "queued"], default=0.0)
    if cell.id != CELL0:
        health.incidents = incidents_by_state
        mine = [row for row in rows if row.cell_id == cell.id]
        for row in mine:
            is_down = row.forced_down or row.name not in hosts_up
            state = "down" if is_down else "disabled" if row.disabled else "up"
            health.hosts[state] += 1
        health.claimed = _sums([row.used for row in mine])
        health.claimable = _sums([row.limits for row in mine])
    return health


def _sums(amounts: Sequence[Amounts]) -> dict[str, int]:
    return dict(zip(RESOURCES, map(sum, zip(Amounts(), *amounts, strict=True)), strict=True))


def _seconds_since(since: str | None) -> float:
    return max((datetime.fromisoformat(utc_now()) - datetime.fromisoformat(since)).total_seconds(),
               0.0) if since else 0.0


def health_document(health: CloudHealth, stopping: bool = False) -> dict[str, Any]:
    """Return the body of a response to ``GET /healthz``, as a document for JSON. *stopping*: whether the process that
    answers stops."""
    real = [cell for cell in health.cells if cell.name != "cell0"]
    return {"status": "stopping" if stopping else "ok" if health.database and all(cell.up for cell in health.cells) else
            "degraded" if health.database else "down",
            "database": "up" if health.database else "down",
            "cells": {"up": sum(cell.up for cell in real), "down": sum(not cell.up for cell in real)},
            "conductors": sum(cell.conductors for cell in real),
            "hosts": {state: sum(cell.hosts[state] for cell in real) for state in ("up", "down", "disabled")}}
