# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleted servers: finding them in all databases, and their final removal with actions, events, migrations and
mappings, in small batches.

A mapping is removed before the rows in the cell: if the process dies in between, the next purge finds these rows again.
Archived rows are on disk before they are removed: after a crash they may be in the archive twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import BindParameter, Connection, Select, bindparam, delete, func, select
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.archive import append_rows
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import action_events, actions, migrations, server_mappings, servers
from magnetar_control.store.store import Store

#: Servers in a batch. Each batch is a transaction, which must not block others for long.
BATCH = 200
#: The queries for the rows to archive, by the name of the file.
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_ROWS: dict[str, Select[Any]] = {
    "servers": select(servers).where(servers.c.id.in_(_IDS)),
    "actions": select(actions).where(actions.c.server_id.in_(_IDS)),
    "action_events": select(action_events).join(actions).where(actions.c.server_id.in_(_IDS)),
    "migrations": select(migrations).where(migrations.c.server_id.in_(_IDS))}


def _deleted(cutoff: str) -> Select[Any]:
    return select(servers.c.id).where(servers.c.deleted_at < cutoff, servers.c.task_state.is_(None))


def count_purgeable_servers(database: Database, cutoff: str) -> int:
    """Return how many servers ``purge_deleted_servers`` would remove from *database* with this *cutoff*."""
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(_deleted(cutoff).subquery())).scalar_one())


def purge_deleted_servers(store: Store, database: Database, cutoff: str, archive: Path | None = None,
                          over: Callable[[], bool] = lambda: False) -> int:
    """Remove the servers that were deleted before *cutoff* from the *database* of a cell; return their number.
    *archive*: a folder; the rows are first appended to files in it, as one JSON object per line. *over*: returns
    whether to stop early."""
    removed = 0
    while not over():
        with database.read() as connection:
            ids = list(connection.execute(_deleted(cutoff).limit(BATCH)).scalars())
            if archive is not None and ids:
                append_rows(connection, ids, _ROWS, archive)
        if not ids:
            break
        remove_mappings(store, ids)
        with database.write() as connection:
            remove_server_rows(connection, ids)
        removed += len(ids)
    return removed


def remove_mappings(store: Store, ids: Collection[str]) -> None:
    """Remove the servers *ids* from the mapping of servers to cells. Call ``remove_server_rows`` afterwards."""
    with store.api.write() as connection:
        connection.execute(delete(server_mappings).where(server_mappings.c.server_id.in_(ids)))


def remove_server_rows(connection: Connection, ids: Collection[str]) -> None:
    """Remove the servers *ids* with their actions and migrations from the database of *connection*, so that nothing
    there says that they existed. Events are deleted with their actions."""
    for table in (actions, migrations):
        connection.execute(delete(table).where(table.c.server_id.in_(ids)))
    connection.execute(delete(servers).where(servers.c.id.in_(ids)))


def deleted_servers(store: Store, ids: Iterable[str], silent: set[str] | None = None) -> tuple[set[str],
                                                                                             dict[str, str]]:
    """Find out what has become of the servers *ids*, for which the caller found no live row. Return (uuids of deleted
    servers, ``{uuid: cell id}`` of unknown servers). A server is unknown if it has a mapping, but was found neither
    deleted nor live.

    A server is deleted if its row in its cell has ``deleted_at``, or if its mapping is marked as deleted and its cell
    answers. *silent*: ids of cells to skip; this function adds the cells that do not answer. If *silent* is ``None``,
    the error of a cell that does not answer is raised.
    """
    some, rows = list(ids), []
    with store.api.read() as connection:
        mapped = {row.server_id: row for row in connection.execute(
            select(server_mappings).where(server_mappings.c.server_id.in_(some)))}
    for cell, database in store.databases():
        if silent is not None and cell.id in silent:
            continue
        try:
            with database.read() as connection:
                rows += [(row.id, row.deleted_at, cell.id) for row in connection.execute(
                    select(servers.c.id, servers.c.deleted_at).where(servers.c.id.in_(some)))]
        except DBAPIError:
            if silent is None:
                raise
            silent.add(cell.id)
    live = {id for id, deleted_at, _cell in rows if deleted_at is None}
    deleted = {id for id, mapping in mapped.items() if mapping.deleted and mapping.cell_id not in (silent or ())}
    deleted |= {id for id, deleted_at, cell in rows if deleted_at and (id not in mapped or mapped[id].cell_id == cell)}
    deleted -= live
    return deleted, {id: mapping.cell_id for id, mapping in mapped.items() if id not in deleted | live}
