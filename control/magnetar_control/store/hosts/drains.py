# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains of hosts: which hosts are drained (API database), and the result for each server (the host's cell).

The row of a drain is written in the transaction that disables the host's compute service, before any server is moved.
The row of a server is written in the transaction that queues its action, so a conductor that begins after a crash finds
each action that was queued, and queues none twice."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, update

from magnetar_control.store.engine.database import INSERT, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import drained_servers, drains, hosts

#: The states of a drain: servers are being moved; nothing is left to do; it was ended, and its last moves continue.
DRAINING, DRAINED, ENDING = "draining", "drained", "ending"
#: The results for a server: it has an action of the drain; it has left the host; it stays, and ``message`` says why.
MOVING, MOVED, STAYS = "moving", "moved", "stays"


class DrainRow(SelectedRow):
    """A row of the table ``drains``: a host from which all servers are being moved."""

    host: str
    state: str
    round: int
    reason: str | None
    request_id: str
    user_id: str | None
    project_id: str | None
    message: str | None
    started_at: str
    finished_at: str | None


class DrainedServer(SelectedRow):
    """A row of the table ``drained_servers``: the result of a drain for one server."""

    host: str
    server_id: str
    name: str
    state: str
    action: str | None
    request_id: str | None
    target: str | None
    message: str | None
    round: int
    updated_at: str


_DRAIN, _SERVERS = DrainRow.selection(drains), DrainedServer.selection(drained_servers)


def begin_drain_row(connection: Connection, host: str, **values: Any) -> None:
    """Record that all servers must be moved away from *host*. If the host is drained already, begin a new round:
    servers that could not be moved are tried again. *values*: columns reason, request_id, user_id and project_id."""
    new = INSERT[connection.dialect.name](drains).values(host=host, state=DRAINING, round=1, started_at=utc_now(),
                                                         **values)
    connection.execute(new.on_conflict_do_update(index_elements=["host"], set_={
        **values, "state": DRAINING, "round": drains.c.round + 1, "message": None, "started_at": utc_now(),
        "finished_at": None}))


def end_drain_row(connection: Connection, host: str) -> bool:
    """Record that the drain of *host* ends: no further server is moved. Return ``False`` when there is no drain."""
    return connection.execute(update(drains).where(drains.c.host == host).values(
        state=ENDING, message=None)).rowcount == 1


def fetch_drain_row(connection: Connection, host: str) -> DrainRow | None:
    """Return the drain of a host; ``None`` when there is none."""
    return DrainRow.optional(connection.execute(_DRAIN.where(drains.c.host == host)).one_or_none())


def fetch_drain_rows(connection: Connection) -> dict[str, DrainRow]:
    """Return all drains, by host name."""
    return {row.host: row for row in DrainRow.several(connection.execute(_DRAIN))}


def fetch_cell_drains(connection: Connection, cell_id: str) -> list[DrainRow]:
    """Return the drains of the hosts of a cell, ordered by host."""
    return DrainRow.several(connection.execute(_DRAIN.join(hosts, hosts.c.name == drains.c.host).where(
        hosts.c.cell_id == cell_id).order_by(drains.c.host)))


def update_drain_row(connection: Connection, drain: DrainRow, **values: Any) -> bool:
    """Set columns of a drain. Return ``False``, with nothing changed, when the drain has been requested again, or has
    ended, since *drain* was read."""
    return connection.execute(update(drains).where(
        drains.c.host == drain.host, drains.c.round == drain.round, drains.c.state == drain.state).values(
        **values)).rowcount == 1


def remove_drain_row(connection: Connection, host: str, state: str | None = None) -> bool:
    """Remove the drain of a host. *state*: remove it only in this state. Return whether it was removed."""
    which = delete(drains).where(drains.c.host == host)
    return connection.execute(which if state is None else which.where(drains.c.state == state)).rowcount == 1


def fetch_drained_servers(connection: Connection, host: str) -> dict[str, DrainedServer]:
    """Return the results of a host's drain by server uuid, ordered by the servers' names."""
    rows = connection.execute(_SERVERS.where(drained_servers.c.host == host).order_by(
        drained_servers.c.name, drained_servers.c.server_id))
    return {row.server_id: row for row in DrainedServer.several(rows)}


def upsert_drained_server(connection: Connection, host: str, server_id: str, values: Mapping[str, Any]) -> None:
    """Insert or update the result of a drain for one server. *values*: by column name. Columns that are not in *values*
    are null in a new row, and do not change in an existing row."""
    row = {**values, "updated_at": utc_now()}
    new = INSERT[connection.dialect.name](drained_servers).values(host=host, server_id=server_id, **row)
    connection.execute(new.on_conflict_do_update(index_elements=["host", "server_id"], set_=row))


def remove_drained_servers(connection: Connection, host: str, server_ids: Collection[str] | None = None) -> None:
    """Remove the results of a host's drain for *server_ids*, or for all servers by default."""
    which = delete(drained_servers).where(drained_servers.c.host == host)
    connection.execute(which if server_ids is None else which.where(drained_servers.c.server_id.in_(server_ids)))
