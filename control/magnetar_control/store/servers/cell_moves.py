# SPDX-License-Identifier: GPL-3.0-or-later
"""A server goes from one cell's database into another's, with its actions, events and migrations.

Its row is marked first (``leaving``), in one transaction with what is noted of it last: from then on nothing changes
the rows there. They are copied, the server's mapping is switched, and the rows are removed where they were. Each step
may be done again; what is done to the server goes on where the copy is, so there is never more than one row that is
worked on. Of rows of one server in two cells, lists show the one that does not leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, RowMapping, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.database import added
from magnetar_control.store.engine.tables import (
    action_events,
    actions,
    console_tokens,
    migrations,
    server_mappings,
    servers,
)
from magnetar_control.store.store import Store


class LeavingRows(NamedTuple):
    """What a cell has of a server."""

    server: RowMapping
    actions: Sequence[RowMapping]
    events: Sequence[RowMapping]
    migrations: Sequence[RowMapping]


def rows(connection: Connection, id: str) -> LeavingRows:
    """The rows of a server that leaves."""
    def of(table: Any, *, by: str = "server_id") -> Sequence[RowMapping]:
        return connection.execute(select(table).where(table.c[by] == id).order_by(table.c.id)).mappings().all()

    return LeavingRows(of(servers, by="id")[0], of(actions), connection.execute(
        select(action_events).join(actions).where(actions.c.server_id == id).order_by(
            action_events.c.id)).mappings().all(), of(migrations))


def arrive(connection: Connection, left: LeavingRows) -> bool:
    """Insert the rows of a server that leaves another cell; actions in hand there wait in the queue here. Rows that an
    earlier departure has left are replaced. ``False``, and nothing changed, when they have arrived before."""
    id, number = left.server["id"], left.server["cell_moves"]
    there = connection.execute(select(servers.c.cell_moves).where(servers.c.id == id).with_for_update()).scalar()
    if there is not None:
        if there >= number:
            return False
        forget(connection, id)
    if not added(connection, servers, **{**left.server, "leaving": None}):
        return False
    if left.actions:
        connection.execute(insert(actions), [_queued(row, left.server["host"]) for row in left.actions])
    if left.events:
        new = {(row.request_id, row.action): row.id for row in _of_server(connection, id)}
        had = {row["id"]: new[row["request_id"], row["action"]] for row in left.actions}
        connection.execute(insert(action_events), [
            {**_without_id(row), "action_id": had[row["action_id"]]} for row in left.events if row["action_id"] in had])
    if left.migrations:
        connection.execute(insert(migrations), [_without_id(row) for row in left.migrations])
    return True


def _of_server(connection: Connection, id: str) -> Sequence[Row[Any]]:
    return connection.execute(select(*actions.c["id", "request_id", "action"]).where(actions.c.server_id == id)).all()


def _without_id(row: RowMapping) -> dict[str, Any]:
    """Numbers are counted by each database."""
    return {name: value for name, value in row.items() if name != "id"}


def _queued(row: RowMapping, host: str | None) -> dict[str, Any]:
    """An action as the other cell gets it. The one in hand has one attempt behind it: its events that are open end when
    it is taken again."""
    values = _without_id(row)
    if row["state"] == "running":
        values.update(state="queued", holder=None, lease_until=None, not_before=None, attempts=1)
    if values["state"] == "queued":
        values.update(host=host, waits_for=None)
    return values


def arrived(store: Store, leaving: Sequence[Any]) -> set[tuple[str, str]]:
    """Of servers that leave (rows with id, leaving and cell_moves): those that are there, with the cell."""
    found: set[tuple[str, str]] = set()
    for cell in {row.leaving for row in leaving}:
        going = {row.id: row.cell_moves for row in leaving if row.leaving == cell}
        with contextlib.suppress(DBAPIError), store.cell(cell).read() as connection:
            there = connection.execute(select(servers.c.id, servers.c.cell_moves).where(servers.c.id.in_(going))).all()
            found.update((row.id, cell) for row in there if row.cell_moves >= going[row.id])
    return found


def switch(connection: Connection, id: str, cell_id: str) -> None:
    """Map the server to the cell that has its row. In a transaction of the API database."""
    connection.execute(update(server_mappings).where(
        server_mappings.c.server_id == id, server_mappings.c.cell_id != cell_id).values(cell_id=cell_id))


def forget(connection: Connection, id: str) -> None:
    """Remove the rows of a server that has left."""
    for table in (actions, migrations, console_tokens):  # events go with their actions
        connection.execute(delete(table).where(table.c.server_id == id))
    connection.execute(delete(servers).where(servers.c.id == id))
