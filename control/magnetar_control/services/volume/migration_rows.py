# SPDX-License-Identifier: GPL-3.0-or-later
"""The column ``migration`` of a volume that moves to another pool or host, and the removals that belong to it.

{source: {host, pool}, host, pool, pool_id, volume_type (after a retype), cancelled}. The column is the intent: it is
written first. If the hosts differ, two removals are written with it, which are not due yet: of the copy on the new
host, and of the export from which the new host reads the volume. If the migration fails, they become due. If it
succeeds, the volume on the old host must be removed instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from magnetar_control.store.hosts.host_removals import insert_removal_row, mark_removals_due, remove_removal_row
from magnetar_core.document import Document

from .removal_rows import EXPORT, VOLUME
from .tables import volumes

Row = Mapping[Any, Any]
#: The task of the worker, and Cinder's words for the state of a migration.
MIGRATE = "migrate"
STARTING, MIGRATING, SUCCESS, ERROR = "starting", "migrating", "success", "error"
#: Statuses that a volume has only while it migrates.
LOCKED = ("maintenance", "retyping")
#: Namespace of the uuids that stand for the server in the exports of migrations.
EXPORTS = uuid.UUID("7d4c9f0e-1f6b-5c1e-8a70-3b9d2f5e6c41")


def migration_export_key(volume_id: str) -> str:
    """Return the key of the export (an NBD server on the old host) that the new host reads to copy the volume in a
    migration."""
    return f"{uuid.uuid5(EXPORTS, volume_id)}:{volume_id}"


def is_between_hosts(migration: Document) -> bool:
    """Return whether *migration* (the volume's column) moves the volume to another host; false: only to another pool of
    its host."""
    return bool(migration["host"] != migration["source"]["host"])


def note_copy(connection: Connection, volume_id: str, migration: Document) -> None:
    """Queue two removals, which are executed if the copy of a volume to another host fails: of the copy on the new
    host, and of the export (the NBD server that the copy reads) on the old host. Call this before the copy begins.
    *migration*: the volume's column."""
    insert_removal_row(connection, migration["host"], VOLUME, volume_id)
    insert_removal_row(connection, migration["source"]["host"], EXPORT, migration_export_key(volume_id))


def note_arrival(connection: Connection, volume_id: str, migration: Document) -> None:
    """Update the queue of removals after the volume was copied to its new host: keep the copy on the new host, and
    remove the volume and its export (NBD server) from the old host. *migration*: the volume's column."""
    remove_removal_row(connection, migration["host"], VOLUME, volume_id)
    mark_removals_due(connection, EXPORT, migration_export_key(volume_id))
    insert_removal_row(connection, migration["source"]["host"], VOLUME, volume_id, due=True)


def abandon_copy(connection: Connection, volume_id: str, migration: Document) -> None:
    """Queue the removal of an unfinished copy from the new host, and of the export (NBD server) from the old host. Do
    nothing if the volume is on the new host already, or the migration does not change the volume's host. *migration*:
    the volume's column."""
    host = connection.execute(select(volumes.c.host).where(volumes.c.id == volume_id)).scalar()
    if is_between_hosts(migration) and host != migration["host"]:
        insert_removal_row(connection, migration["host"], VOLUME, volume_id, due=True)
        insert_removal_row(connection, migration["source"]["host"], EXPORT, migration_export_key(volume_id), due=True)


def cancelled_values(row: Row) -> dict[str, Any]:
    """Return the column values that cancel the migration of the volume *row* and queue the task that undoes it."""
    return {"migration": {**row["migration"], "cancelled": True}, "task": MIGRATE, "holder": None, "lease_until": None,
            "not_before": None, "attempts": 0}


def ended_values(row: Row, migration_status: str) -> dict[str, Any]:
    """Return the column values that end the migration of the volume *row*. *migration_status*: success or error. The
    volume gets back its status from before the migration, updated by changes of attachments since then."""
    status: ColumnElement[Any] = volumes.c.previous_status if row["status"] in LOCKED else volumes.c.status
    return {"status": status, "previous_status": None, "migration": None, "migration_status": migration_status}


def arrived_values(row: Row) -> dict[str, Any]:
    """Return the column values of the volume *row* after its migration has succeeded: its new host, pool and maybe
    type."""
    migration = row["migration"]
    type_name = {"volume_type": migration["volume_type"]} if migration.get("volume_type") else {}
    return {**ended_values(row, SUCCESS), "host": migration["host"], "pool": migration["pool"],
            "pool_id": migration["pool_id"], **type_name}
