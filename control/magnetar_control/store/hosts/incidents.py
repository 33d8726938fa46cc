# SPDX-License-Identifier: GPL-3.0-or-later
"""Incidents of a cell: hosts that have died, and what was done about their servers.

The state of an incident is written before its step begins, and each change requires the state that was read before. So
conductors that work on an incident at the same time do each step once, and any of them continues it after a crash. The
row of a server is written in the transaction that queues its evacuation."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, or_, select, update

from magnetar_control.store.engine.database import INSERT, Database, insert_if_absent, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import host_states, hosts, incident_servers, incidents
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import Store

from .host_leases import REFUSED, REMOVING

#: States of open incidents: the host is silent; it is being fenced; its servers are being evacuated; a rule or a
#: failure keeps conductors from it, and people must help.
NOTICED, FENCING, EVACUATING, BLOCKED, FAILED = "noticed", "fencing", "evacuating", "blocked", "failed"
#: States of closed ones: all was done; the host came back before it was fenced; somebody closed it.
DONE, RETURNED, CLOSED = "done", "returned", "closed"
OPEN = (NOTICED, FENCING, EVACUATING, BLOCKED, FAILED)
#: States of a server in an incident.
WAITING, MOVING, MOVED, LOST, REMAINS = "waiting", "moving", "moved", "failed", "remains"
#: The ``open_key`` of the incident of a whole cell.
CELL_KEY = ""


class IncidentRow(SelectedRow):
    """A row of the table ``incidents``: the failure of a host, or of a whole cell, and the progress of the evacuation.
    """

    id: str
    host: str | None
    open_key: str | None
    state: str
    message: str
    noticed_at: str
    checked_at: str | None
    fencing_at: str | None
    fenced_at: str | None
    finished_at: str | None
    moved: int
    failed: int
    remaining: int


class IncidentServer(SelectedRow):
    """A row of the table ``incident_servers``: the progress of one server's evacuation from a host that has failed."""

    incident_id: str
    server_id: str
    name: str
    policy: str
    priority: int
    state: str
    attempts: int
    not_before: str | None
    request_id: str | None
    target: str | None
    message: str | None
    updated_at: str


_INCIDENT, _SERVERS = IncidentRow.selection(incidents), IncidentServer.selection(incident_servers)
#: Problems of hosts whose agents answer.
_ANSWERING = or_(host_states.c.problem.like(f"{REFUSED}%"), host_states.c.problem == REMOVING)


# Hosts


def fetch_silent_hosts(database: Database, connection: Connection, seconds: float) -> set[str]:
    """Return the names of the hosts of a cell that have sent a heartbeat once, but none in the last *seconds*. Hosts
    that still answer, but are not up (their reports are rejected, or evacuated servers are being removed from them),
    are not included."""
    return set(connection.execute(select(host_states.c.host).where(
        host_states.c.seen_at < database.clock(-seconds),
        or_(host_states.c.problem.is_(None), ~_ANSWERING))).scalars())


def fetch_last_heartbeats(connection: Connection) -> dict[str, str]:
    """Return the time of the last heartbeat of each host of a cell, by host name; hosts that never sent one are absent.
    """
    rows = connection.execute(select(host_states.c.host, host_states.c.seen_at).where(
        host_states.c.seen_at.is_not(None)))
    return dict(rows.all())


def fetch_watched_hosts(connection: Connection, cell_id: str) -> dict[str, str]:
    """Return, by host name, the time of the last change of the host's row; an empty string for a row that never
    changed. Includes only hosts of the cell that are neither disabled nor forced down. *connection*: to the API
    database."""
    rows = connection.execute(select(hosts.c.name, func.coalesce(hosts.c.updated_at, "")).where(
        hosts.c.cell_id == cell_id, hosts.c.disabled.is_(False), hosts.c.forced_down.is_(False)))
    return dict(rows.all())


# Incidents


def insert_incident_row(connection: Connection, host: str | None, **values: Any) -> IncidentRow | None:
    """Open an incident of *host*, or of the whole cell if *host* is ``None``, and return the incident. Return ``None``
    if such an incident is already open. *values*: further columns."""
    id = str(uuid.uuid4())
    row = {"id": id, "host": host, "open_key": host or CELL_KEY, "noticed_at": utc_now(), "message": "", **values}
    if not insert_if_absent(connection, incidents, **row):
        return None
    return IncidentRow(connection.execute(_INCIDENT.where(incidents.c.id == id)).one())


def fetch_open_incidents(connection: Connection, *, lock: bool = False) -> list[IncidentRow]:
    """Return the open incidents of a cell (failures of hosts), oldest first. *lock*: lock their rows until the
    transaction ends."""
    query = _INCIDENT.where(incidents.c.open_key.is_not(None)).order_by(incidents.c.noticed_at, incidents.c.id)
    return IncidentRow.several(connection.execute(query.with_for_update() if lock else query))


def count_recent_fencings(connection: Connection, since: str) -> int:
    """Return the number of hosts in a cell that conductors decided to fence after the time *since*."""
    return int(connection.execute(select(func.count()).select_from(incidents).where(
        incidents.c.fencing_at > since)).scalar_one())


def count_open_incidents(connection: Connection) -> dict[str, int]:
    """Return the number of open incidents of a cell (failures of hosts), by state."""
    rows = connection.execute(select(incidents.c.state, func.count()).where(
        incidents.c.open_key.is_not(None)).group_by(incidents.c.state))
    return {**dict.fromkeys(OPEN, 0), **dict(rows.all())}


def update_incident_row(connection: Connection, incident: IncidentRow, **values: Any) -> IncidentRow | None:
    """Set columns of an open incident, and return its new row. Return ``None``, with nothing changed, when the incident
    was closed, or its state has changed, since *incident* was read. If *values* have a closed state, this closes the
    incident."""
    if values.get("state", incident.state) not in OPEN:
        values = {"finished_at": utc_now(), **values, "open_key": None}
    changed = connection.execute(update(incidents).where(
        incidents.c.id == incident.id, incidents.c.state == incident.state,
        incidents.c.open_key.is_not(None)).values(**values)).rowcount == 1
    return IncidentRow(connection.execute(_INCIDENT.where(incidents.c.id == incident.id)).one()) if changed else None


def is_server_unchanged(connection: Connection, incident: IncidentRow, row: IncidentServer) -> bool:
    """Return whether the state of *incident*, and the state and number of attempts of its server *row*, have not
    changed since these rows were read. Locks the incident until the transaction ends, so that no other process works on
    it."""
    state = connection.execute(select(incidents.c.state).where(
        incidents.c.id == incident.id).with_for_update()).scalar_one_or_none()
    current = connection.execute(select(incident_servers.c.state, incident_servers.c.attempts).where(
        incident_servers.c.incident_id == row.incident_id, incident_servers.c.server_id == row.server_id)).one_or_none()
    return state == incident.state and current is not None and tuple(current) == (row.state, row.attempts)


def fetch_newest_incidents(connection: Connection, limit: int) -> list[IncidentRow]:
    """Return the last *limit* incidents of a cell, newest first."""
    return IncidentRow.several(connection.execute(_INCIDENT.order_by(
        incidents.c.noticed_at.desc(), incidents.c.id.desc()).limit(limit)))


def fetch_incident_row(connection: Connection, id: str) -> IncidentRow | None:
    """Return the incident with the uuid *id*; ``None`` when the cell has no such incident."""
    return IncidentRow.optional(connection.execute(_INCIDENT.where(incidents.c.id == id)).one_or_none())


# Servers


def fetch_incident_servers(connection: Connection, incident_ids: Collection[str]) -> dict[str, list[IncidentServer]]:
    """Return the servers of incidents, by incident uuid, in the order in which they are evacuated."""
    rows = connection.execute(_SERVERS.where(incident_servers.c.incident_id.in_(list(incident_ids))).order_by(
        incident_servers.c.priority.desc(), incident_servers.c.policy, incident_servers.c.name,
        incident_servers.c.server_id))
    by_incident: dict[str, list[IncidentServer]] = {}
    for row in IncidentServer.several(rows):
        by_incident.setdefault(row.incident_id, []).append(row)
    return by_incident


def insert_incident_servers(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add servers to incidents; servers that an incident already has are skipped. *rows*: columns of
    ``incident_servers``."""
    new = [{**row, "updated_at": utc_now()} for row in rows]
    if new:
        connection.execute(INSERT[connection.dialect.name](incident_servers).on_conflict_do_nothing(), new)


def update_incident_server(connection: Connection, row: IncidentServer, **values: Any) -> bool:
    """Set columns of a server in an incident. Return ``False``, with nothing changed, when its state or its number of
    attempts has changed since *row* was read."""
    return connection.execute(update(incident_servers).where(
        incident_servers.c.incident_id == row.incident_id, incident_servers.c.server_id == row.server_id,
        incident_servers.c.state == row.state, incident_servers.c.attempts == row.attempts).values(
        **values, updated_at=utc_now())).rowcount == 1


# All cells


def gather_incidents(store: Store, limit: int) -> list[tuple[str, IncidentRow, list[IncidentServer]]]:
    """Return the last *limit* incidents of all cells that answer, newest first, as (cell uuid, incident, servers of the
    incident). Sends two queries to each cell."""
    def of_cell(database: Database) -> list[tuple[IncidentRow, list[IncidentServer]]]:
        with database.read() as connection:
            rows = fetch_newest_incidents(connection, limit)
            servers = fetch_incident_servers(connection, [row.id for row in rows])
        return [(row, servers.get(row.id, [])) for row in rows]

    gathered = [(cell_id, row, servers) for cell_id, answer in scatter_gather(store, of_cell).items()
                for row, servers in answer or ()]
    return sorted(gathered, key=lambda item: (item[1].noticed_at, item[1].id), reverse=True)[:limit]


def find_incident(store: Store, id: str) -> tuple[str, IncidentRow, list[IncidentServer]] | None:
    """Return (cell uuid, incident, servers of the incident) for the incident with this uuid; ``None`` when no cell that
    answers has it."""
    def of_cell(database: Database) -> tuple[IncidentRow, list[IncidentServer]] | None:
        with database.read() as connection:
            row = fetch_incident_row(connection, id)
            return None if row is None else (row, fetch_incident_servers(connection, [id]).get(id, []))

    return next(((cell_id, *answer) for cell_id, answer in scatter_gather(store, of_cell).items() if answer), None)
