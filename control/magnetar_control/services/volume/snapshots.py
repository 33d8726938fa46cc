# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots: copies of volumes at one moment, on the same host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, insert

from magnetar_control.services import Context
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document, Documents

from .rows import (
    NamedStore,
    check_admin,
    check_volume_writer,
    get_visible_row,
    queue_volume_task,
    refuse_while_migrating,
    set_columns,
)
from .tables import snapshots
from .worker import VOLUMES_CHANGED

SHOWN = ("id", "name", "description", "volume_id", "status", "size", "created_at", "updated_at", "project_id",
         "user_id", "bootable", "host", "fault")
DELETABLE = ("available", "error", "error_deleting")


def begin_snapshot(connection: Connection, context: Context, volume: RowMapping, id: str, **values: Any) -> None:
    """Insert the row of a snapshot of *volume*, and queue the task that creates the snapshot. *id*: its uuid. *values*:
    further columns. Raises ``InvalidRequest`` while the volume migrates."""
    refuse_while_migrating(volume)
    connection.execute(insert(snapshots).values(
        id=id, project_id=volume["project_id"], user_id=context.user_id, volume_id=volume["id"], size=volume["size"],
        status="creating", host=volume["host"], bootable=volume["bootable"], volume_type=volume["volume_type"],
        task="create", created_at=utc_now(), **values))


def documents(_connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """Convert snapshot *rows* to documents in the form that ``services.Volumes`` returns."""
    return [{**{name: row[name] for name in SHOWN}, "metadata": row["metadata"]} for row in rows]


class SnapshotStore(NamedStore):
    table, documents = snapshots, staticmethod(documents)

    def delete(self, context: Context, id: str, force: bool = False) -> None:
        """Queue the deletion of a snapshot. *force*: allow the deletion in any status, for admins. Raises ``NotFound``,
        ``InvalidRequest``."""
        check_admin(context) if force else check_volume_writer(context)
        with self.database.write() as connection:
            row = get_visible_row(connection, snapshots, context, id)
            queue_volume_task(connection, snapshots, row, "delete", None if force else DELETABLE, status="deleting")
            self.database.notify(connection, VOLUMES_CHANGED)

    def reset_status(self, context: Context, id: str, status: str) -> None:
        """Set the status of a snapshot, after an admin has checked it."""
        check_admin(context)
        values: Document = {} if status in ("creating", "deleting") else {"task": None, "lease_until": None}
        with self.database.write() as connection:
            set_columns(connection, snapshots, get_visible_row(connection, snapshots, context, id)["id"], status=status,
                        **values)
