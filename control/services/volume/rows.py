# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of volumes, snapshots and attachments: found, changed, and given a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, Table, or_, select, update

from magnetar_control.services import Context, Document
from magnetar_control.store.database import Database, now
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound

NOUNS = {"volumes": "Volume", "volume_snapshots": "Snapshot", "volume_attachments": "Volume attachment"}


def check_writer(context: Context) -> None:
    """Raises ``Forbidden`` for a caller who may only read."""
    if not context.is_writer:
        raise Forbidden("Policy doesn't allow this to be performed: it needs the role member of the project.")


def check_admin(context: Context, what: str = "this") -> None:
    """Raises ``Forbidden`` for others than admins."""
    if not context.is_admin:
        raise Forbidden(f"Policy doesn't allow {what} to be performed: it needs the role admin.")


def own(table: Table, context: Context) -> ColumnElement[bool]:
    """What *context* may see: its project's; for admins everything."""
    mine = table.c.project_id == (context.project_id or "")
    return or_(mine, table.c.id.is_not(None)) if context.is_admin else mine


def seen(connection: Connection, table: Table, context: Context, id: str) -> RowMapping:
    """The row that *context* may see; raises ``NotFound``."""
    row = connection.execute(select(table).where(table.c.id == id, own(table, context))).mappings().first()
    if row is None:
        raise NotFound(f"{NOUNS[table.name]} {id} could not be found.")
    return row


def set_(connection: Connection, table: Table, id: str, **values: Any) -> None:
    """Change a row."""
    connection.execute(update(table).where(table.c.id == id).values(updated_at=now(), **values))


def asked(connection: Connection, table: Table, row: RowMapping, task: str, statuses: Sequence[str] | None = None,
          **values: Any) -> None:
    """Note a task for the worker. Raises ``InvalidRequest`` where the status is none of *statuses*, or has changed."""
    if statuses is not None and row["status"] not in statuses:
        raise wrong_status(table, row, statuses)
    done = connection.execute(update(table).where(table.c.id == row["id"], table.c.status == row["status"]).values(
        task=task, holder=None, lease_until=None, not_before=None, attempts=0, fault=None, updated_at=now(), **values))
    if not done.rowcount:
        raise Conflict(f"{NOUNS[table.name]} {row['id']} was just changed by somebody else; look again.")


def wrong_status(table: Table, row: RowMapping, statuses: Sequence[str]) -> MagnetarError:
    """It is in no state for this."""
    noun = NOUNS[table.name]
    return InvalidRequest(f"Invalid {noun.lower()}: {noun} {row['id']} status must be {' or '.join(statuses)}, but "
                          f"current status is: {row['status']}.")


def document(text: str | None) -> Any:
    """A column with JSON."""
    return orjson.loads(text) if text else {}


def update_row(database: Database, table: Table, context: Context, id: str, values: Document) -> None:
    """Change name, description or metadata of a volume or snapshot, for a caller."""
    check_writer(context)
    with database.write() as connection:
        seen(connection, table, context, id)
        set_(connection, table, id, **{name: orjson.dumps(value).decode() if name == "metadata" else value
                                       for name, value in values.items()})


def change_metadata(database: Database, table: Table, context: Context, id: str,
                    change: Callable[[Document], Document]) -> Document:
    """Change the metadata of a volume or snapshot to what *change* makes of it, for a caller."""
    check_writer(context)
    with database.write() as connection:
        found = change(document(seen(connection, table, context, id)["metadata"]))
        set_(connection, table, id, metadata=orjson.dumps(found).decode())
    return found
