# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: the agents of compute hosts and the conductors, and when each was last seen."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, func, or_, select

from magnetar_control.store.engine.database import INSERT, Database
from magnetar_control.store.engine.tables import host_states, migrations, servers
from magnetar_control.store.scatter_gather import rows_of_cells, scatter_gather
from magnetar_control.store.servers.migrations import DONE, ENDED, EVACUATION
from magnetar_control.store.store import Store

from . import aggregates, conductors, hosts

COMPUTE, CONDUCTOR = "nova-compute", "nova-conductor"
#: The zone of conductors.
INTERNAL = "internal"


@dataclass(frozen=True)
class LastSeen:
    """From one cell: when each host, and each conductor by name, was last seen, and whether it is up."""

    hosts: Mapping[str, tuple[str | None, bool]]
    conductors: Mapping[str, tuple[str | None, bool]]


@dataclass(frozen=True)
class Service:
    """A service. *reachable*: whether its cell's database answers."""

    id: str
    number: int
    binary: str
    host: str
    zone: str
    cell_id: str
    up: bool
    disabled: bool = False
    disabled_reason: str | None = None
    forced_down: bool = False
    seen_at: str | None = None
    reachable: bool = True
    #: The row of a compute host.
    row: RowMapping | None = field(default=None, compare=False)


def _last_seen(database: Database, silence: float) -> LastSeen:
    """*silence*: seconds without a heartbeat after which a service is down."""
    with database.read() as connection:
        late = connection.execute(select(database.clock(-silence))).scalar_one() \
            if database.kind == "postgresql" else database.clock(-silence)
        seen = connection.execute(select(host_states.c.host, host_states.c.seen_at)).all()
        working = conductors.every(connection)
    return LastSeen({name: (at, (at or "") > late) for name, at in seen},
                 {name: (at, at > late) for name, at in working})


def every(store: Store, default_zone: str, silence: float) -> list[Service]:
    """All services: compute hosts by number, then conductors by name."""
    with store.api.read() as connection:
        rows = hosts.every(connection)
        zones = aggregates.zones(connection)
    told = scatter_gather(store, lambda database: _last_seen(database, silence))
    found = [_compute(row, zones.get(row["name"], default_zone), told.get(row["cell_id"])) for row in rows]
    found.sort(key=lambda service: service.number)
    for cell_id, cell in told.items():
        for name, (seen_at, up) in (cell.conductors if cell else {}).items():
            found.append(_conductor(cell_id, name, seen_at, up=up))
    return found


def _compute(row: RowMapping, zone: str, cell: LastSeen | None) -> Service:
    seen_at, lively = cell.hosts.get(row["name"], (None, False)) if cell else (None, False)
    return Service(row["id"], row["number"], COMPUTE, row["name"], zone, row["cell_id"],
                   lively and not row["forced_down"], row["disabled"], row["disabled_reason"], row["forced_down"],
                   seen_at, cell is not None, row)


def _conductor(cell_id: str, name: str, seen_at: str | None, *, up: bool) -> Service:
    """A conductor has no row of its own: its ids are derived from cell and name."""
    id = uuid.uuid5(uuid.UUID(cell_id), name)
    return Service(str(id), 2**30 + (id.int >> 99), CONDUCTOR, name, INTERNAL, cell_id, up, seen_at=seen_at)


def heard_lately(database: Database, connection: Connection, host: str, silence: float, *, lock: bool = False) -> bool:
    """Whether the agent of a cell's host was heard in the last *silence* seconds. *lock*: who has heard it now waits
    with saying so until the transaction ends."""
    if lock:
        connection.execute(INSERT[database.kind](host_states).values(host=host).on_conflict_do_nothing())
        connection.execute(select(host_states.c.host).where(host_states.c.host == host).with_for_update()).all()
    return connection.execute(select(host_states.c.host).where(
        host_states.c.host == host, host_states.c.seen_at > database.clock(-silence))).first() is not None


def on_hosts(store: Store, names: Iterable[str]) -> dict[str, list[Any]]:
    """The servers (host, id, name, task_state) of each of these hosts; one query for each cell that answers. A server
    that goes to another cell is there once."""
    wanted = list(names)
    question = select(servers.c.host, servers.c.id, servers.c.name, servers.c.task_state).where(
        servers.c.host.in_(wanted), servers.c.deleted_at.is_(None)).order_by(servers.c.created_at, servers.c.id)
    found: dict[str, list[Any]] = {name: [] for name in wanted}
    for row in {row.id: row for row in _rows(rows_of_cells(store, question))}.values():
        found[row.host].append(row)
    return found


def workloads(store: Store, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """For each of these hosts, the number of servers and of servers with a task_state, but for one that goes to another
    cell and is not there yet."""
    question = select(servers.c.host, func.count().label("all"), func.count(servers.c.task_state).label("busy")).where(
        servers.c.host.in_(list(names)), servers.c.leaving.is_(None), servers.c.deleted_at.is_(None)
    ).group_by(servers.c.host)
    found: dict[str, tuple[int, int]] = {}
    for row in _rows(rows_of_cells(store, question)):
        count, busy = found.get(row.host, (0, 0))
        found[row.host] = count + row.all, busy + row.busy
    return found


def sizes_by_project(database: Database, host: str) -> dict[str, dict[str, int]]:
    """What the servers of each project on a host may use by their flavors: vcpus, memory_mb, disk_gb."""
    found: dict[str, dict[str, int]] = {}
    with database.read() as connection:
        rows = connection.execute(select(servers.c.project_id, servers.c.flavor).where(
            servers.c.host == host, servers.c.deleted_at.is_(None)).order_by(servers.c.project_id)).all()
    for project, text in rows:
        flavor, sizes = orjson.loads(text), found.setdefault(project, {"vcpus": 0, "memory_mb": 0, "disk_gb": 0})
        sizes["vcpus"] += flavor["vcpus"]
        sizes["memory_mb"] += flavor["ram"]
        sizes["disk_gb"] += flavor["disk"] + flavor.get("ephemeral", 0)
    return found


def occupied(store: Store, names: Iterable[str]) -> set[str]:
    """Which of these hosts have servers. While a cell does not answer: all of them, to be safe."""
    wanted = list(names)
    question = select(servers.c.host).distinct().where(servers.c.host.in_(wanted), servers.c.deleted_at.is_(None))
    answers = rows_of_cells(store, question)
    if None in answers:
        return set(wanted)
    return {row.host for row in _rows(answers)}


def _rows(answers: Iterable[Sequence[Any] | None]) -> list[Any]:
    return [row for rows in answers for row in rows or ()]


def moving(store: Store, host: str) -> bool:
    """Whether there are open migrations from or to a host, in its cell or another; while a cell does not answer: yes,
    to be safe."""
    answers = rows_of_cells(store, select(migrations.c.id).where(
        (migrations.c.source == host) | (migrations.c.target == host), migrations.c.status.not_in(ENDED)).limit(1))
    return None in answers or any(answers)


def evacuating(database: Database, host: str) -> bool:
    """Whether evacuations from a host of a cell are open, or wait for clean-up."""
    question = select(migrations.c.id).where(
        migrations.c.source == host, migrations.c.type == EVACUATION,
        or_(migrations.c.status == DONE, migrations.c.status.not_in(ENDED))).limit(1)
    with database.read() as connection:
        return connection.execute(question).first() is not None
