# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: the agents of compute hosts and the conductors, with the time each was last seen."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Row, bindparam, func, literal_column, or_, select

from magnetar_control.store.engine.database import INSERT, Database
from magnetar_control.store.engine.tables import host_states, migrations, servers
from magnetar_control.store.scatter_gather import rows_of_cells, scatter_gather, scatter_gather_cells
from magnetar_control.store.servers.migrations import DONE, ENDED, EVACUATION
from magnetar_control.store.store import Store

from . import aggregates, conductors, hosts
from .host_leases import REFUSED
from .host_row import ServiceHost

COMPUTE, CONDUCTOR = "nova-compute", "nova-conductor"
#: The availability zone of conductors.
INTERNAL = "internal"
#: The query for when hosts were last seen. Built once: building a statement takes longer than executing it.
_SEEN = select(host_states.c.host, host_states.c.seen_at, host_states.c.problem)
_SEEN_OF = _SEEN.where(host_states.c.host.in_(bindparam("names", expanding=True)))
_HOST = func.coalesce(servers.c.host, literal_column("''"))
_BUSY: Any = select(_HOST, func.count()).where(
    servers.c.task_state > "", servers.c.leaving.is_(None), servers.c.deleted_at.is_(None)).group_by(_HOST)


@dataclass(frozen=True)
class LastSeen:
    """The last heartbeats of the services of one cell. *hosts*, *conductors*: (time of the last heartbeat, whether the
    service is up), by name. *refused*: by host name, why the conductor rejects the reports of the host's agent."""

    hosts: Mapping[str, tuple[str | None, bool]]
    conductors: Mapping[str, tuple[str | None, bool]]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class Service:
    """A service of Nova's API ``os-services``. *reachable*: whether the database of its cell answers."""

    id: str
    number: int
    binary: str
    host: str
    zone: str
    cell_id: str
    up: bool
    disabled: bool = False
    #: The operator's reason for disabling the service, otherwise why the host is refused.
    disabled_reason: str | None = None
    forced_down: bool = False
    seen_at: str | None = None
    reachable: bool = True
    #: When a compute host was added; ``None`` for conductors.
    created_at: str | None = None


def _late_time(database: Database, connection: Connection, silence: float) -> str:
    """Return the time *silence* seconds ago by the database's clock. A service without a heartbeat since then is down.
    """
    late: str = connection.execute(select(database.clock(-silence))).scalar_one() \
        if database.kind == "postgresql" else database.clock(-silence)
    return late


def _last_seen(database: Database, silence: float) -> LastSeen:
    """Return the last heartbeats of a cell's hosts and conductors. A host is down after *silence* seconds without a
    heartbeat."""
    with database.read() as connection:
        late = _late_time(database, connection, silence)
        host_rows = connection.execute(_SEEN).all()
        working = conductors.fetch_conductor_rows(connection)
    return _last_seen_of(host_rows, late, {name: (at, at > late) for name, at in working})


def _hosts_last_seen(database: Database, silence: float, names: Sequence[str]) -> LastSeen:
    """Return the last heartbeats of the hosts *names* of a cell; conductors are not read. A host is down after
    *silence* seconds without a heartbeat."""
    with database.read() as connection:
        late = _late_time(database, connection, silence)
        host_rows = connection.execute(_SEEN_OF, {"names": names}).all()
    return _last_seen_of(host_rows, late, {})


def _last_seen_of(rows: Sequence[Row[Any, Any, Any]], late: str,
                  working: Mapping[str, tuple[str | None, bool]]) -> LastSeen:
    """Return a ``LastSeen`` from rows of the query ``_SEEN``. A host is down if its last heartbeat is older than the
    time *late*, or if the conductor rejects its reports. *working*: the conductors, as (time of the last heartbeat,
    whether it is up) by name."""
    refused = {row.host: row.problem for row in rows if (row.problem or "").startswith(REFUSED)}
    return LastSeen({row.host: (row.seen_at, (row.seen_at or "") > late and row.host not in refused) for row in rows},
                    working, refused)


def fetch_service_rows(store: Store, default_zone: str, silence: float) -> list[Service]:
    """Return all services: compute hosts ordered by number, then conductors by name. *default_zone*: the availability
    zone of hosts in no other zone. A service is down after *silence* seconds without a heartbeat."""
    with store.api.read() as connection:
        rows = hosts.fetch_every_host(connection, ServiceHost)
        zones = aggregates.fetch_host_zones(connection)
    last_seen_by_cell = scatter_gather(store, lambda database: _last_seen(database, silence))
    services = [_compute(row, zones.get(row.name, default_zone), last_seen_by_cell.get(row.cell_id))
                for row in rows]
    for cell_id, cell in last_seen_by_cell.items():
        for name, (seen_at, up) in (cell.conductors if cell else {}).items():
            services.append(_conductor(cell_id, name, seen_at, up=up))
    return services


def fetch_compute_services(store: Store, silence: float, rows: Sequence[ServiceHost]) -> list[Service]:
    """Return the compute services of the hosts in *rows*, without their zones. A host is down after *silence* seconds
    without a heartbeat. Uses one query for each cell that has one of these hosts."""
    names_by_cell: dict[str, list[str]] = {}
    for row in rows:
        names_by_cell.setdefault(row.cell_id, []).append(row.name)
    cells = [(cell, database) for cell, database in store.databases() if cell.id in names_by_cell]
    names_by_database = {database: names_by_cell[cell.id] for cell, database in cells}
    last_seen_by_cell = scatter_gather_cells(
        cells, lambda database: _hosts_last_seen(database, silence, names_by_database[database]))
    return [_compute(row, "", last_seen_by_cell.get(row.cell_id)) for row in rows]


def _compute(row: ServiceHost, zone: str, cell: LastSeen | None) -> Service:
    seen_at, lively = cell.hosts.get(row.name, (None, False)) if cell else (None, False)
    reason = row.disabled_reason or (cell.refused.get(row.name) if cell else None)
    return Service(row.id, row.number, COMPUTE, row.name, zone, row.cell_id, lively and not row.forced_down,
                   row.disabled, reason, row.forced_down, seen_at, cell is not None, row.created_at)


def _conductor(cell_id: str, name: str, seen_at: str | None, *, up: bool) -> Service:
    """Return the conductor *name* of a cell as a service. Its ids are computed from cell and name, because conductors
    have no stored service ids. *seen_at*: the time of the last heartbeat."""
    id = uuid.uuid5(uuid.UUID(cell_id), name)
    return Service(str(id), 2**30 + (id.int >> 99), CONDUCTOR, name, INTERNAL, cell_id, up, seen_at=seen_at)


def is_host_heard(database: Database, connection: Connection, host: str, silence: float, *, lock: bool = False) -> bool:
    """Return whether the agent of a cell's host sent a heartbeat in the last *silence* seconds. *lock*: prevent new
    heartbeats of the host from being written until the transaction ends."""
    if lock:
        connection.execute(INSERT[database.kind](host_states).values(host=host).on_conflict_do_nothing())
        connection.execute(select(host_states.c.host).where(host_states.c.host == host).with_for_update()).all()
    return connection.execute(select(host_states.c.host).where(
        host_states.c.host == host, host_states.c.seen_at > database.clock(-silence))).first() is not None


class ServerOnHost(NamedTuple):
    """Id and name of a server, and the name of its host."""

    host: str
    id: str
    name: str


_ON_HOSTS = select(*(servers.c[name] for name in ServerOnHost._fields))


def fetch_servers_on_hosts(store: Store, names: Iterable[str]) -> dict[str, list[ServerOnHost]]:
    """Return the servers on each of the hosts *names*, by host name, with one query for each cell. Cells that do not
    answer are skipped. A server that moves to another cell appears once."""
    host_names = list(names)
    question = _ON_HOSTS.where(
        servers.c.host.in_(host_names), servers.c.deleted_at.is_(None)).order_by(servers.c.created_at, servers.c.id)
    servers_by_host: dict[str, list[ServerOnHost]] = {name: [] for name in host_names}
    for row in {row.id: row for row in map(ServerOnHost._make, _rows(rows_of_cells(store, question)))}.values():
        servers_by_host[row.host].append(row)
    return servers_by_host


def fetch_host_workloads(store: Store, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return (number of servers, number of servers with a task_state), by host name. A server that is moving to another
    cell is not counted until its rows are in the target cell."""
    question = select(servers.c.host, func.count().label("all"), func.count(servers.c.task_state).label("busy")).where(
        servers.c.host.in_(list(names)), servers.c.leaving.is_(None), servers.c.deleted_at.is_(None)
    ).group_by(servers.c.host)
    workloads_by_host: dict[str, tuple[int, int]] = {}
    for row in _rows(rows_of_cells(store, question)):
        count, busy = workloads_by_host.get(row.host, (0, 0))
        workloads_by_host[row.host] = count + row.all, busy + row.busy
    return workloads_by_host


def count_busy_servers(store: Store) -> dict[str, int]:
    """Return the number of servers with a task_state, by host name; hosts without such servers are absent. Servers
    without a host count under ``""``. A server that is moving to another cell is not counted until its rows are in the
    target cell."""
    busy: Counter[str] = Counter()
    for host, count in _rows(rows_of_cells(store, _BUSY)):
        busy[host] += count
    return busy


def fetch_sizes_by_project(database: Database, host: str) -> dict[str, dict[str, int]]:
    """Return, by project uuid, the totals of ``vcpus``, ``memory_mb`` and ``disk_gb`` in the flavors of a host's
    servers. ``disk_gb`` includes ephemeral disks. Deleted servers are not counted."""
    project_sizes: dict[str, dict[str, int]] = {}
    with database.read() as connection:
        rows = connection.execute(select(servers.c.project_id, servers.c.flavor).where(
            servers.c.host == host, servers.c.deleted_at.is_(None)).order_by(servers.c.project_id)).all()
    for project, text in rows:
        flavor, sizes = orjson.loads(text), project_sizes.setdefault(project,
                                                                     {"vcpus": 0, "memory_mb": 0, "disk_gb": 0})
        sizes["vcpus"] += flavor["vcpus"]
        sizes["memory_mb"] += flavor["ram"]
        sizes["disk_gb"] += flavor["disk"] + flavor.get("ephemeral", 0)
    return project_sizes


def hosts_with_servers(store: Store, names: Iterable[str]) -> set[str]:
    """Return the hosts among *names* that have servers. If a cell does not answer, return all *names*, to be safe."""
    host_names = list(names)
    question = select(servers.c.host).distinct().where(servers.c.host.in_(host_names), servers.c.deleted_at.is_(None))
    answers = rows_of_cells(store, question)
    if None in answers:
        return set(host_names)
    return {row.host for row in _rows(answers)}


def _rows(answers: Iterable[Sequence[Any] | None]) -> list[Any]:
    return [row for rows in answers for row in rows or ()]


def host_has_migrations(store: Store, host: str) -> bool:
    """Return whether open migrations from or to a host exist in any cell. If a cell does not answer, return true, to be
    safe."""
    answers = rows_of_cells(store, select(migrations.c.id).where(
        (migrations.c.source == host) | (migrations.c.target == host), migrations.c.status.not_in(ENDED)).limit(1))
    return None in answers or any(answers)


def host_has_evacuations(database: Database, host: str) -> bool:
    """Return whether an evacuation from *host* has not ended, or has left servers on the host that must still be
    removed."""
    question = select(migrations.c.id).where(
        migrations.c.source == host, migrations.c.type == EVACUATION,
        or_(migrations.c.status == DONE, migrations.c.status.not_in(ENDED))).limit(1)
    with database.read() as connection:
        return connection.execute(question).first() is not None
