# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations and resizes of servers, as ``os-migrations`` shows them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, or_, select, update

from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.engine.conditions import keyset_condition
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.rows import DocumentColumn, StoredRow
from magnetar_control.store.engine.tables import actions, migrations, servers
from magnetar_control.store.engine.timeouts import hanging_database_error
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.store import Store

from .server_row import ServerRow
from .servers import json_text


class MigrationRow(StoredRow):
    """A row of the table ``migrations``."""

    id: int
    uuid: str
    server_id: str
    project_id: str
    user_id: str
    type: str
    status: str
    source: str
    target: Any
    created_at: str
    updated_at: str | None
    old_vm_state: str | None
    asked: str | None

    old_flavor = DocumentColumn[FlavorOfServer]()
    new_flavor = DocumentColumn[FlavorOfServer]()
    progress = DocumentColumn[Mapping[str, Any] | None]()


RESIZE, MIGRATION, LIVE, EVACUATION = "resize", "migration", "live-migration", "evacuation"
#: Final statuses.
ENDED = ("completed", "confirmed", "reverted", "error", "failed", "cancelled", "done")
#: Statuses that wait for confirmResize or revertResize, also after an interrupted confirm or revert.
UNCONFIRMED = ("finished", "confirming", "reverting")
#: Statuses of migrations that go on.
GOING = ("queued", "preparing", "pre-migrating", "running", "migrating", "post-migrating")
#: Statuses of an evacuation: from the moment that the source has lost the server, and until the source is cleaned up.
LOST, DONE = "pre-migrating", "done"
#: Requests to a running live migration.
ABORT, FORCE = "abort", "force_complete"


def insert_action_migration(connection: Connection, action: Any, args: Mapping[str, Any], server: ServerRow,
                            **values: Any) -> str:
    """Insert a migration that *action* (a row of ``actions``) will carry out, and store the migration's uuid as
    ``migration`` in the action's arguments. Return this uuid. *args*: the action's arguments so far. *values*: columns
    of the migration."""
    drawn = str(uuid.uuid4())
    insert_migration_row(connection, server, drawn, user_id=action.user_id, **values)
    connection.execute(update(actions).where(actions.c.id == action.id).values(
        args=json_text({**args, "migration": drawn})))
    return drawn


def insert_migration_row(connection: Connection, server: ServerRow, id: str, **values: Any) -> None:
    """Insert a migration of a server from its current host and flavor. *id*: the migration's uuid. *values*: further
    columns."""
    connection.execute(insert(migrations).values(**{
        "uuid": id, "server_id": server.id, "project_id": server.project_id, "source": server.host,
        "old_flavor": server.stored.flavor, "new_flavor": server.stored.flavor, "old_vm_state": server.vm_state,
        "created_at": utc_now(),
        **values}))


def cancel_queued_migration(connection: Connection, migration: MigrationRow) -> bool:
    """Cancel a live migration that no conductor has started yet. Return ``False`` if it is no longer queued."""
    waits = connection.execute(update(actions).where(
        actions.c.server_id == migration.server_id, actions.c.action == "os-migrateLive", actions.c.state == "queued",
        actions.c.attempts == 0).values(state="done", updated_at=utc_now())).rowcount
    if waits:
        update_migration_row(connection, migration.uuid, status="cancelled")
        connection.execute(update(servers).where(servers.c.id == migration.server_id).values(
            task_state=None, updated_at=utc_now()))
    return bool(waits)


def fetch_migration_row(connection: Connection, id: str) -> MigrationRow | None:
    """Return the migration with the uuid *id*; ``None`` when there is none."""
    return MigrationRow.optional(connection.execute(select(migrations).where(migrations.c.uuid == id)).one_or_none())


def reload_migration_row(connection: Connection, id: str) -> MigrationRow:
    """Return the current row of the migration with the uuid *id*. The migration must exist."""
    return MigrationRow(connection.execute(select(migrations).where(migrations.c.uuid == id)).one())


def fetch_server_migration(connection: Connection, server_id: str, number: int) -> MigrationRow | None:
    """Return the server's migration with this *number* (the integer id of Nova's API); ``None`` when there is none."""
    return MigrationRow.optional(connection.execute(select(migrations).where(
        migrations.c.id == number, migrations.c.server_id == server_id)).one_or_none())


def update_migration_row(connection: Connection, id: str, expected_status: str | None = None, **values: Any) -> bool:
    """Set columns of a migration. *expected_status*: change nothing if the migration has another status; ``None`` for
    any status. Return ``False`` if nothing was changed."""
    where = [migrations.c.uuid == id] if expected_status is None else [migrations.c.uuid == id,
                                                                       migrations.c.status == expected_status]
    return connection.execute(update(migrations).where(*where).values(updated_at=utc_now(), **values)).rowcount == 1


def fetch_migration_request(connection: Connection, id: str) -> str | None:
    """Return what a user has requested for a running live migration: ``ABORT``, ``FORCE`` or ``None``."""
    return connection.execute(select(migrations.c.asked).where(migrations.c.uuid == id)).scalar()


def fetch_open_migrations(connection: Connection, server_id: str, type: str | None = None) -> Sequence[MigrationRow]:
    """Return the migrations of a server that have not ended, oldest first. *type*: only migrations of this type."""
    where = [migrations.c.server_id == server_id, migrations.c.status.not_in(ENDED)]
    if type is not None:
        where.append(migrations.c.type == type)
    return MigrationRow.several(connection.execute(select(migrations).where(*where).order_by(migrations.c.id)))


def fetch_recent_moves(connection: Connection, cutoff: str) -> tuple[set[str], set[str]]:
    """Return (uuids of servers whose migration began after *cutoff*, names of hosts with a running migration). Failed
    migrations count, but cancelled ones do not."""
    recent = connection.execute(select(migrations.c.server_id).where(
        migrations.c.created_at > cutoff, migrations.c.status != "cancelled")).scalars()
    moving = connection.execute(select(migrations.c.source, migrations.c.target).where(
        migrations.c.status.in_(GOING))).all()
    return set(recent), {host for pair in moving for host in pair if host is not None}


def any_migration_at(migration_rows: Iterable[MigrationRow], host: str) -> bool:
    """Return whether one of these migrations has *host* as its source or target, or has no target yet."""
    return any(host in (migration.source, migration.target) or migration.target is None for migration in migration_rows)


def fetch_evacuation_rows(connection: Connection, host: str) -> Sequence[MigrationRow]:
    """Return the evacuations from *host* whose servers may have left domains or disks on the host."""
    return MigrationRow.several(connection.execute(select(migrations).where(
        migrations.c.source == host, migrations.c.type == EVACUATION, migrations.c.status.in_((LOST, DONE))).order_by(
        migrations.c.id)))


def fetch_unconfirmed_migration(connection: Connection, server_id: str) -> MigrationRow | None:
    """Return the server's resize or cold migration that must be confirmed or reverted; ``None`` when there is none."""
    return MigrationRow.optional(connection.execute(select(migrations).where(
        migrations.c.server_id == server_id, migrations.c.status.in_(UNCONFIRMED)).order_by(
        migrations.c.id.desc()).limit(1)).one_or_none())


def fetch_unconfirmed_servers(connection: Connection, cutoff: str) -> list[ServerRow]:
    """Return the servers whose resize or cold migration has been unconfirmed since before *cutoff*. Servers with a
    task_state are left out."""
    waiting = select(migrations.c.server_id).where(migrations.c.status == "finished", or_(
        migrations.c.updated_at < cutoff, migrations.c.updated_at.is_(None)))
    return ServerRow.several(connection.execute(select(servers).where(
        servers.c.id.in_(waiting), servers.c.vm_state == "resized", servers.c.task_state.is_(None),
        servers.c.deleted_at.is_(None))))


def fetch_migration_rows(store: Store, equal: Mapping[str, Any], host: str | None, changed_since: str | None,
                         changed_before: str | None, *,
                         newest: bool, limit: int, marker: str | None) -> tuple[Sequence[MigrationRow], bool]:
    """Return at most *limit* migrations of all cells, and whether there are more.

    *equal*: values that columns must have. *host*: source or target of the migrations. *changed_since*,
    *changed_before*: bounds of the time of the last change. *newest*: return the newest first; otherwise the oldest.
    *marker*: uuid of the last migration on the previous page; raises ``KeyError`` if unknown. Cells that do not answer
    are skipped.
    """
    marker_row = None
    if marker is not None:
        marked = rows_of_cells(store, select(migrations).where(migrations.c.uuid == marker), cell0=True)
        marker_row = next((row for part in marked for row in part or ()), None)
        if marker_row is None and None in marked:
            raise hanging_database_error("of a cell")  # the silent cell may have the marker
        if marker_row is None:
            raise KeyError(marker)
    where = _conditions(equal, host, changed_since, changed_before)
    order = [(column, newest) for column in (migrations.c.created_at, migrations.c.id, migrations.c.uuid)]
    if marker_row is not None:
        where.append(keyset_condition(order, _place(marker_row)))
    question = select(migrations).where(*where).order_by(
        *(column.desc() if newest else column.asc() for column, _down in order)).limit(limit + 1)
    rows = [row for part in rows_of_cells(store, question, cell0=True) for row in part or ()]
    rows.sort(key=lambda row: row.updated_at or "")  # for a server that moves to another cell, the newest row counts
    rows = sorted({row.uuid: row for row in rows}.values(), key=_place, reverse=newest)
    return MigrationRow.several(rows[:limit]), len(rows) > limit


def _place(row: Any) -> tuple[Any, ...]:
    return row.created_at, row.id, row.uuid


def _conditions(equal: Mapping[str, Any], host: str | None, changed_since: str | None,
                changed_before: str | None) -> list[Any]:
    table, where = migrations.c, [migrations.c[name] == value for name, value in equal.items()]
    if changed_since:
        where.append(or_(table.updated_at >= changed_since, table.created_at >= changed_since))
    if changed_before:
        where.append(or_(table.updated_at <= changed_before, table.updated_at.is_(None) & (
            table.created_at <= changed_before)))
    if host:
        where.append(or_(table.source == host, table.target == host))
    return where
