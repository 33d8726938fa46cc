# SPDX-License-Identifier: GPL-3.0-or-later
"""The health of the cloud: which databases answer, which conductors and hosts are up, what waits in the queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from magnetar_control.store.claims.allocations import RESOURCES
from magnetar_control.store.engine.database import Database, now
from magnetar_control.store.engine.tables import actions, allocations, conductors, host_states
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.hosts import hosts
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import CELL0, CellMapping, Store

#: Seconds for which the health is kept, so that asking often costs little; seconds that a database has to answer.
FRESH, PATIENCE = 2.0, 5.0
#: Seconds without a heartbeat after which a conductor is down.
SILENT = 15.0


@dataclass
class CellHealth:
    """One cell. ``queue``: actions by state; ``oldest``: age of the oldest queued action in s; ``hosts``: their
    number by up, down and disabled; ``claimed`` and ``claimable`` by resource."""

    name: str
    up: bool = False
    conductors: int = 0
    queue: dict[str, int] = field(default_factory=lambda: {"queued": 0, "running": 0})
    oldest: float = 0.0
    hosts: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "disabled": 0})
    claimed: dict[str, int] = field(default_factory=dict)
    claimable: dict[str, int] = field(default_factory=dict)


@dataclass
class CloudHealth:
    """All cells. ``database``: whether the API database answers."""

    database: bool = False
    cells: Sequence[CellHealth] = ()
    claims: int = 0


#: What a cell answers: actions (state, number, oldest start), number of conductors and names of hosts that are up.
CellAnswer = tuple[Sequence[Any], int, set[str]]


class Health:
    """Reads the health, at most once in ``FRESH`` seconds. *down_after*: seconds without a heartbeat of a host."""

    def __init__(self, store: Store, down_after: float) -> None:
        self.store, self.down_after = store, down_after
        self._lock = threading.Lock()
        self._seen, self._at = CloudHealth(), float("-inf")

    def read(self) -> CloudHealth:
        """The health now, or a moment ago."""
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._seen, self._at = self._read(), time.monotonic()
            return self._seen

    def _read(self) -> CloudHealth:
        try:
            with statement_timeout(PATIENCE), self.store.api.read() as connection:
                rows = hosts.every(connection)
                claims = connection.execute(select(func.count()).select_from(allocations)).scalar_one()
        except (DBAPIError, PoolTimeout):
            return CloudHealth()
        answers = scatter_gather(self.store, self._cell, PATIENCE, cell0=True)
        return CloudHealth(True, [_of_cell(cell, rows, answers[cell.id]) for cell, _database in self.store.databases()
                                  if cell.id in answers], claims)

    def _cell(self, database: Database) -> CellAnswer:
        with database.read() as connection:
            queue = connection.execute(select(actions.c.state, func.count(), func.min(actions.c.start_time)).where(
                actions.c.state.in_(("queued", "running"))).group_by(actions.c.state)).all()
            living = connection.execute(select(func.count(conductors.c.name.distinct())).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar_one()
            seen = set(connection.execute(select(host_states.c.host).where(
                host_states.c.seen_at > database.clock(-self.down_after))).scalars())
        return queue, living, seen


def _of_cell(cell: CellMapping, rows: list[Any], told: CellAnswer | None) -> CellHealth:
    """A cell that does not answer is down; cell0 has no hosts."""
    queue, living, seen = told or ((), 0, set())
    found = CellHealth(cell.name, told is not None, living)
    found.queue.update((state, number) for state, number, _since in queue)
    found.oldest = max([_ago(since) for state, _number, since in queue if state == "queued"], default=0.0)
    if cell.id != CELL0:
        mine = [row for row in rows if row["cell_id"] == cell.id]
        for row in mine:
            word = "down" if row["forced_down"] or row["name"] not in seen else "disabled" if row["disabled"] else "up"
            found.hosts[word] += 1
        found.claimed = {name: sum(row[f"{name}_used"] for row in mine) for name in RESOURCES}
        found.claimable = {name: sum(row[f"{name}_limit"] for row in mine) for name in RESOURCES}
    return found


def _ago(since: str | None) -> float:
    return max((datetime.fromisoformat(now()) - datetime.fromisoformat(since)).total_seconds(), 0.0) if since else 0.0


def document(seen: CloudHealth) -> dict[str, Any]:
    """The JSON document of ``/healthz``."""
    real = [cell for cell in seen.cells if cell.name != "cell0"]
    return {"status": "ok" if seen.database and all(cell.up for cell in seen.cells) else
            "degraded" if seen.database else "down",
            "database": "up" if seen.database else "down",
            "cells": {"up": sum(cell.up for cell in real), "down": sum(not cell.up for cell in real)},
            "conductors": sum(cell.conductors for cell in real),
            "hosts": {word: sum(cell.hosts[word] for cell in real) for word in ("up", "down", "disabled")}}
