# SPDX-License-Identifier: GPL-3.0-or-later
"""How the cloud does, seen from one process: which databases answer, which conductors and hosts live, what waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from magnetar_control.store import hosts
from magnetar_control.store.allocations import RESOURCES
from magnetar_control.store.database import Database, now
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import CELL0, Cell, Store
from magnetar_control.store.tables import actions, allocations, conductors, host_states
from magnetar_control.store.timeouts import statement_timeout
from magnetar_control.web import Answer, Fault, Request
from magnetar_core.errors import Forbidden, MagnetarError

#: Seconds for which a look is believed, so that asking often costs little, and that a database has to answer.
FRESH, PATIENCE = 2.0, 5.0
#: Seconds of silence after which a conductor is counted no more.
SILENT = 15.0
WAITING = ("queued", "running")


@dataclass
class CellLook:
    """One cell. ``queue``: actions by state; ``oldest``: seconds since the one that waits longest was asked for;
    ``hosts``: their number by up, down and disabled; ``claimed`` and ``claimable`` by resource."""

    name: str
    up: bool = False
    conductors: int = 0
    queue: Mapping[str, int] = field(default_factory=dict)
    oldest: float = 0.0
    hosts: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0, "disabled": 0})
    claimed: dict[str, int] = field(default_factory=dict)
    claimable: dict[str, int] = field(default_factory=dict)


@dataclass
class Look:
    """What was seen. ``database``: whether the API database answers."""

    database: bool = False
    cells: Sequence[CellLook] = ()
    claims: int = 0


class Told(NamedTuple):
    """What a cell tells: actions (state, number, since when), how many conductors live, hosts that were heard."""

    queue: Sequence[Any]
    conductors: int
    seen: set[str]


class Health:
    """Looks, at most once in ``FRESH`` seconds, whoever asks. *down_after*: seconds of silence of a host."""

    def __init__(self, store: Store, down_after: float) -> None:
        self.store, self.down_after = store, down_after
        self._lock = threading.Lock()
        self._seen, self._at = Look(), float("-inf")

    def look(self) -> Look:
        """What is seen now, or was a moment ago."""
        with self._lock:
            if time.monotonic() - self._at > FRESH:
                self._seen, self._at = self._look(), time.monotonic()
            return self._seen

    def handle(self, request: Request) -> Answer:
        """``/healthz``: 200 while the API database answers, else 503. Numbers only: anybody may ask."""
        if request.method not in ("GET", "HEAD"):
            return Answer({"error": {"code": 405, "message": f"{request.method} is not possible here."}}, 405)
        seen = self.look()
        return Answer(document(seen), 200 if seen.database else 503)

    def streams(self, _method: str, _path: str) -> bool:
        """Nothing is sent here."""
        return False

    def _look(self) -> Look:
        try:
            with statement_timeout(PATIENCE):
                rows, claims = self._api()
        except (DBAPIError, PoolTimeout):
            return Look()
        told = scatter_gather(self.store, self._cell, PATIENCE, cell0=True)
        return Look(True, [_with_hosts(_queued(cell.name, told[cell.id]), cell, rows, told[cell.id]) for cell, _database
                           in self.store.databases() if cell.id in told], claims)

    def _api(self) -> tuple[list[Any], int]:
        with self.store.api.read() as connection:
            return hosts.every(connection), connection.execute(
                select(func.count()).select_from(allocations)).scalar_one()

    def _cell(self, database: Database) -> Told:
        with database.read() as connection:
            queue = connection.execute(select(actions.c.state, func.count(), func.min(actions.c.start_time)).where(
                actions.c.state.in_(WAITING)).group_by(actions.c.state)).all()
            living = connection.execute(select(func.count(conductors.c.name.distinct())).where(
                conductors.c.seen_at > database.clock(-SILENT))).scalar_one()
            seen = set(connection.execute(select(host_states.c.host).where(
                host_states.c.seen_at > database.clock(-self.down_after))).scalars())
        return Told(queue, living, seen)


def _queued(name: str, told: Told | None) -> CellLook:
    """A cell without its hosts; one that tells nothing is down."""
    if told is None:
        return CellLook(name)
    return CellLook(name, True, told.conductors, {state: number for state, number, _since in told.queue},
                    max([_ago(since) for state, _number, since in told.queue if state == "queued"], default=0.0))


def document(seen: Look) -> dict[str, Any]:
    """What ``/healthz`` says."""
    real = [cell for cell in seen.cells if cell.name != "cell0"]
    return {"status": "ok" if seen.database and all(cell.up for cell in seen.cells) else
            "degraded" if seen.database else "down",
            "database": "up" if seen.database else "down",
            "cells": {"up": sum(cell.up for cell in real), "down": sum(not cell.up for cell in real)},
            "conductors": sum(cell.conductors for cell in real),
            "hosts": {word: sum(cell.hosts[word] for cell in real) for word in ("up", "down", "disabled")}}


def _with_hosts(found: CellLook, cell: Cell, rows: list[Any], told: Told | None) -> CellLook:
    if cell.id == CELL0:
        return found
    mine, seen = [row for row in rows if row["cell_id"] == cell.id], told.seen if told else ()
    for row in mine:
        word = "down" if row["forced_down"] or row["name"] not in seen else "disabled" if row["disabled"] else "up"
        found.hosts[word] += 1
    for name in RESOURCES:
        found.claimed[name] = sum(row[f"{name}_used"] for row in mine)
        found.claimable[name] = sum(row[f"{name}_limit"] for row in mine)
    return found


def _ago(since: str | None) -> float:
    return max((datetime.fromisoformat(now()) - datetime.fromisoformat(since)).total_seconds(), 0.0) if since else 0.0


class Admins:
    """Mounted at ``/metrics``: the figures, for who bears a token with the role admin."""

    def __init__(self, text: Any, authenticate: Any) -> None:
        self.text, self.authenticate = text, authenticate

    def handle(self, request: Request) -> Answer:
        """Answer; never raises."""
        try:
            self.authenticate(request)
            if not request.context.is_admin:
                raise Forbidden("The figures of the cloud are for administrators (role admin).")
        except MagnetarError as error:
            return Answer({"error": {"code": error.status, "message": error.message}}, error.status)
        except Fault as fault:
            return Answer({"error": {"code": fault.status, "message": fault.message}}, fault.status, fault.headers)
        return Answer(self.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def streams(self, _method: str, _path: str) -> bool:
        """Nothing is sent here."""
        return False
