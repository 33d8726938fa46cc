# SPDX-License-Identifier: GPL-3.0-or-later
"""The move of a server from one cell's database to another's, with its actions, events and migrations.

The server's row is marked first (``leaving``), in the same transaction as its last change: from then on nothing changes
the rows in the source cell. They are copied, the server's mapping is switched, and the rows in the source cell are
removed. Each step may be repeated. Work on the server continues in the target cell, so only one copy of its rows ever
changes. When two cells have a row of a server, lists show the row that is not leaving.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.accounts.quota_usage import UsageRow
from magnetar_control.store.actions.action_row import ActionEvent, ActionRow
from magnetar_control.store.engine.database import insert_if_absent
from magnetar_control.store.engine.rows import StoredRow
from magnetar_control.store.engine.tables import (
    action_events,
    actions,
    console_tokens,
    migrations,
    server_mappings,
    servers,
)
from magnetar_control.store.store import Store

from .filter_rows import insert_filter_rows
from .migrations import MigrationRow
from .server_row import ServerRow


class MovingRows(NamedTuple):
    """All rows of a server that moves to another cell, as read from the source cell."""

    server: ServerRow
    actions: Sequence[ActionRow]
    events: Sequence[ActionEvent]
    migrations: Sequence[MigrationRow]


def fetch_moving_rows(connection: Connection, id: str) -> MovingRows:
    """Return all rows of a server that moves to another cell: the server, its actions, events and migrations."""
    server = connection.execute(select(servers).where(servers.c.id == id)).one()
    server_actions = ActionRow.selection(actions).where(actions.c.server_id == id).order_by(actions.c.id)
    events = ActionEvent.selection(action_events).join_from(action_events, actions).where(
        actions.c.server_id == id).order_by(action_events.c.id)
    moves = select(migrations).where(migrations.c.server_id == id).order_by(migrations.c.id)
    return MovingRows(ServerRow(server), ActionRow.several(connection.execute(server_actions)),
                      ActionEvent.several(connection.execute(events)), MigrationRow.several(connection.execute(moves)))


def insert_moving_rows(connection: Connection, source_rows: MovingRows) -> bool:
    """Insert the rows of a server that comes from another cell; the server's running actions become queued ones.
    Replaces old rows that the server left in this cell when it moved away earlier. Return ``False``, with nothing
    changed, when the server's rows have already been inserted."""
    id, server = source_rows.server.id, source_rows.server.column_values()
    target_moves = connection.execute(select(servers.c.cell_moves).where(servers.c.id == id).with_for_update()).scalar()
    if target_moves is not None:
        if target_moves >= source_rows.server.cell_moves:
            return False
        remove_moved_rows(connection, id)
    if not insert_if_absent(connection, servers, **{**server, "leaving": None}):
        return False
    insert_filter_rows(connection, [server])
    if source_rows.actions:
        connection.execute(insert(actions), [_queued(row, source_rows.server.host) for row in source_rows.actions])
    if source_rows.events:
        new = {(row.request_id, row.action): row.id for row in _of_server(connection, id)}
        had = {row.id: new[row.request_id, row.action] for row in source_rows.actions}
        connection.execute(insert(action_events), [
            {**_without_id(event), "action_id": had[event.action_id]} for event in source_rows.events
            if event.action_id in had])
    if source_rows.migrations:
        connection.execute(insert(migrations), [_without_id(row) for row in source_rows.migrations])
    return True


def _of_server(connection: Connection, id: str) -> Sequence[Row[Any]]:
    return connection.execute(select(*actions.c["id", "request_id", "action"]).where(actions.c.server_id == id)).all()


def _without_id(row: StoredRow) -> dict[str, Any]:
    """Return the columns of *row* by name, without its id, because each database assigns different ids."""
    return {name: value for name, value in row.column_values().items() if name != "id"}


def _queued(row: ActionRow, host: str | None) -> dict[str, Any]:
    """Return the columns of an action, without its id, for its copy in the target cell. A running action becomes a
    queued action with one attempt. The next conductor therefore treats the action as a retry, and ends its open events.
    Queued actions are assigned to *host*."""
    values = _without_id(row)
    if row.state == "running":
        values.update(state="queued", holder=None, lease_until=None, not_before=None, attempts=1)
    if values["state"] == "queued":
        values.update(host=host, waits_for=None)
    return values


def servers_in_target_cell(store: Store, leaving: Sequence[UsageRow]) -> set[tuple[str, str]]:
    """Return (server uuid, target cell) for those servers in *leaving* whose rows are already in the target cell."""
    copied: set[tuple[str, str]] = set()
    for cell in {row.leaving for row in leaving if row.leaving}:
        going = {row.id: row.cell_moves or 0 for row in leaving if row.leaving == cell}
        with contextlib.suppress(DBAPIError), store.cell(cell).read() as connection:
            target_rows = connection.execute(select(servers.c.id,
                                                    servers.c.cell_moves).where(servers.c.id.in_(going))).all()
            copied.update((row.id, cell) for row in target_rows if row.cell_moves >= going[row.id])
    return copied


def switch_server_mapping(connection: Connection, id: str, cell_id: str) -> None:
    """Map the server to the cell *cell_id*, after its rows were copied there. *connection*: of the API database."""
    connection.execute(update(server_mappings).where(
        server_mappings.c.server_id == id, server_mappings.c.cell_id != cell_id).values(cell_id=cell_id))


def remove_moved_rows(connection: Connection, id: str) -> None:
    """Remove the rows of a server from the cell that it has left."""
    for table in (actions, migrations, console_tokens):  # events are deleted with their actions
        connection.execute(delete(table).where(table.c.server_id == id))
    connection.execute(delete(servers).where(servers.c.id == id))
