# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker's part of the migration of a volume.

Within a host, its agent moves the content to the other pool. To another host, the agent there copies the volume from
the agent of the old host. The row names the new host when the copy is complete; after that, the old host removes the
volume. Each step may be repeated by another process.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, and_, update

from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts.host_removals import remove_removal_row
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError, NotFound, Unavailable
from magnetar_core.flows.migrate import Side

from .migration_rows import (
    ERROR,
    MIGRATE,
    MIGRATING,
    Row,
    abandon_copy,
    arrived_values,
    ended_values,
    is_between_hosts,
    migration_export_key,
    note_arrival,
)
from .reach import ABROAD, Reach
from .removal_rows import EXPORT, VOLUME
from .tables import volumes

log = logging.getLogger(__name__)
#: Seconds that an agent may take to copy a volume.
LIMIT = 6 * 3600.0


class StillMoving(Exception):
    """An exception that interrupts a migration task, because QEMU is still copying the volume for a running guest. The
    worker must check again later."""


def migrate_volume(database: Database, reach: Reach, row: Row) -> Document:
    """Execute the task "migrate": migrate the volume *row*, or undo its migration if that was cancelled. Return the new
    column values of the volume. Raises ``StillMoving``, and the errors of the agents."""
    migration = row["migration"]
    if migration is None:
        return {}
    if migration.get("cancelled"):
        return _undo(database, reach, row)
    with database.write() as connection:
        connection.execute(update(volumes).where(_is_current(row)).values(migration_status=MIGRATING))
    if not is_between_hosts(migration):
        if _move(reach, row, migration["pool"]) != migration["pool"]:
            raise StillMoving
    elif row["host"] != migration["host"]:
        _copy(reach, row)
        _arrive(database, row)
    if is_between_hosts(migration):
        _clear_source(database, reach, row)
    log.info("volume %s migrated from %s to host %s, pool %s", row["id"], migration["source"], migration["host"],
             migration["pool"])
    return arrived_values(row)


def drop_migration(database: Database, reach: Reach, row: Row) -> None:
    """Abandon the migration of a volume that will be deleted: queue the removal of the copy from the new host, and
    remove the export (the NBD server that the copy reads) from the old host. The caller deletes the volume itself."""
    if row["migration"] is None:
        return
    with database.write() as connection:
        abandon_copy(connection, row["id"], row["migration"])
    _remove_export(database, reach, row)


def _is_current(row: Row) -> ColumnElement[bool]:
    """Return the SQL condition that is true while the worker that took the task of *row* still has this task, and the
    task was not cancelled."""
    return and_(volumes.c.id == row["id"], volumes.c.task == MIGRATE, volumes.c.holder == row["holder"])


def _move(reach: Reach, row: Row, pool: str) -> str:
    """Have the agent of the volume's host move the content to *pool*. Return the name of the pool that now has the
    content: the old one while the move for a running guest continues."""
    with reach.client(row["host"]) as client:
        resource = client.ensure(VOLUME, row["id"], {"move_to": pool}, timeout=LIMIT)["resource"]
    return str(resource["pool"])


def _copy(reach: Reach, row: Row) -> None:
    """Have the agent of the new host copy the volume's content from the agent of the old host. Raises ``Unavailable``
    if the copy fails, so that the task is retried."""
    migration, id = row["migration"], row["id"]
    with reach.client(row["host"]) as source_client, reach.client(migration["host"]) as target_client:
        source, target = Side(source_client), Side(target_client)
        server = migration_export_key(id).partition(":")[0]
        export = source.client.ensure(EXPORT, migration_export_key(id), {
            "server": server, "server_name": f"migration to {migration['host']}", "volume": id, "readonly": True,
            "peers": [target.link_name()], "copied": True})["resource"]
        want: Document = {
            "name": f"volume-{id}", "size": row["size"], "pool": migration["pool"], "multiattach": row["multiattach"],
            "remote_source": {"export": export["id"], "peer": export["origin"]["peer"], "bootable": row["bootable"],
                              "address": source.link_address(), "size": export["origin"]["size"]},
            **reach.encryption_fields(row, "migrate")}
        try:
            target.client.ensure(VOLUME, id, want, timeout=LIMIT)
        except HypervisorError as error:
            raise Unavailable(error.message) from error


def _arrive(database: Database, row: Row) -> None:
    """Save the new host of the volume after the copy. If the migration was cancelled or the volume deleted meanwhile,
    queue the removal of the copy instead, and raise ``Conflict``."""
    migration, id = row["migration"], row["id"]
    values = {name: migration[name] for name in ("host", "pool", "pool_id")}
    with database.write() as connection:
        arrived = connection.execute(update(volumes).where(_is_current(row)).values(**values)).rowcount
        if arrived:
            note_arrival(connection, id, migration)
        else:
            abandon_copy(connection, id, migration)
    if not arrived:
        raise Conflict(f"The migration of volume {id} was cancelled, or another process continues it.")


def _clear_source(database: Database, reach: Reach, row: Row) -> None:
    """Remove the volume from its old host after a migration. If the host does not answer, conductors remove it later.
    """
    host = row["migration"]["source"]["host"]
    if _remove_export(database, reach, row):
        _remove(database, reach, host, VOLUME, row["id"])


def _remove_export(database: Database, reach: Reach, row: Row) -> bool:
    migration = row["migration"]
    return is_between_hosts(migration) and _remove(
        database, reach, migration["source"]["host"], EXPORT, migration_export_key(row["id"]))


def _remove(database: Database, reach: Reach, host: str, resource_type: str, key: str) -> bool:
    """Have the agent of *host* remove the resource *key* of the type *resource_type* (such as volume), and then delete
    the queued removal. Return whether the resource was removed; if not, conductors remove it later."""
    try:
        with suppress(NotFound), reach.client(host) as client:
            client.delete(resource_type, key, timeout=LIMIT)
    except MagnetarError as error:
        log.info("%s %s is removed from host %s later: %s", resource_type, key, host, error.message)
        return False
    with database.write() as connection:
        remove_removal_row(connection, host, resource_type, key)
    return True


def _undo(database: Database, reach: Reach, row: Row) -> Document:
    """Undo the cancelled migration of the volume *row*, and return the new column values of the volume. If the
    migration is complete already, do not undo it, but finish it."""
    migration: Any = row["migration"]
    if is_between_hosts(migration):
        if row["host"] == migration["host"]:
            _clear_source(database, reach, row)
            return arrived_values(row)
        with database.write() as connection:
            abandon_copy(connection, row["id"], migration)
        _remove_export(database, reach, row)
    elif _moved_back(reach, row):
        return arrived_values(row)
    return {**ended_values(row, ERROR), "fault": row["fault"]}


def _moved_back(reach: Reach, row: Row) -> bool:
    """Have the agent of the volume's host move the content back to its old pool, and return false. If the move to the
    new pool was complete already, do nothing and return true: the content stays in the new pool. If the agent refuses
    to move the content back, log its error and return false."""
    migration = row["migration"]
    try:
        with reach.client(row["host"]) as client:
            if client.get(VOLUME, row["id"])["pool"] == migration["pool"]:
                return True
            client.ensure(VOLUME, row["id"], {"move_to": migration["source"]["pool"]}, timeout=LIMIT)
    except ABROAD:
        raise
    except MagnetarError as error:
        log.warning("volume %s: the end of its move is left to its host: %s", row["id"], error.message)
    return False
