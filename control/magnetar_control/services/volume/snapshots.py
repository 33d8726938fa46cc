# SPDX-License-Identifier: GPL-3.0-or-later
"""Snapshots: copies of volumes as they were at one moment, on the same host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, insert

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.engine.database import now

from .rows import NamedStore, asked, check_admin, check_writer, document, seen, set_
from .tables import snapshots
from .worker import BELL

SHOWN = ("id", "name", "description", "volume_id", "status", "size", "created_at", "updated_at", "project_id",
         "user_id", "bootable", "host", "fault")
DELETABLE = ("available", "error", "error_deleting")


def begin(connection: Connection, context: Context, volume: RowMapping, id: str, **values: Any) -> None:
    """Note a snapshot that is to be taken."""
    connection.execute(insert(snapshots).values(
        id=id, project_id=volume["project_id"], user_id=context.user_id, volume_id=volume["id"], size=volume["size"],
        status="creating", host=volume["host"], bootable=volume["bootable"], volume_type=volume["volume_type"],
        task="create", created_at=now(), **values))


def documents(_connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """Snapshots as ``services.Volumes`` has them."""
    return [{**{name: row[name] for name in SHOWN}, "metadata": document(row["metadata"])} for row in rows]


class SnapshotStore(NamedStore):
    table, documents = snapshots, staticmethod(documents)

    def delete(self, context: Context, id: str, force: bool = False) -> None:
        """Note that it is to go; *force*: in any status, for admins."""
        check_admin(context) if force else check_writer(context)
        with self.database.write() as connection:
            row = seen(connection, snapshots, context, id)
            asked(connection, snapshots, row, "delete", None if force else DELETABLE, status="deleting")
            self.database.ring(connection, BELL)

    def reset_status(self, context: Context, id: str, status: str) -> None:
        """Set the status, as an admin who has looked."""
        check_admin(context)
        values: Document = {} if status in ("creating", "deleting") else {"task": None, "lease_until": None}
        with self.database.write() as connection:
            set_(connection, snapshots, seen(connection, snapshots, context, id)["id"], status=status, **values)
