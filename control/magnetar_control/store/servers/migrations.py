# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations and resizes of servers, as ``os-migrations`` shows them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, or_, select, update

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.paging import beyond
from magnetar_control.store.engine.tables import actions, migrations, servers
from magnetar_control.store.engine.timeouts import hangs
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.store import Store

from .servers import text

Found = Row[Any]
RESIZE, MIGRATION, LIVE, EVACUATION = "resize", "migration", "live-migration", "evacuation"
#: Final statuses.
ENDED = ("completed", "confirmed", "reverted", "error", "failed", "cancelled", "done")
#: Statuses that wait for confirmResize or revertResize, also after one of these was interrupted.
KEPT = ("finished", "confirming", "reverting")
#: Of an evacuation, since its source has lost the server; and until what is left on the source is removed.
LOST, DONE = "pre-migrating", "done"
#: What may be asked of a running live migration.
ABORT, FORCE = "abort", "force_complete"


def begin(connection: Connection, action: Found, args: Mapping[str, Any], server: Found, **values: Any) -> str:
    """Insert the migration of an action and note its uuid in the action's args, in one transaction; returns the
    uuid."""
    drawn = str(uuid.uuid4())
    make(connection, server, drawn, user_id=action.user_id, **values)
    connection.execute(update(actions).where(actions.c.id == action.id).values(
        args=text({**args, "migration": drawn})))
    return drawn


def make(connection: Connection, server: Found, id: str, **values: Any) -> None:
    """Insert a migration of a server, with its present host and flavor as source."""
    connection.execute(insert(migrations).values(**{
        "uuid": id, "server_id": server.id, "project_id": server.project_id, "source": server.host,
        "old_flavor": server.flavor, "new_flavor": server.flavor, "old_vm_state": server.vm_state, "created_at": now(),
        **values}))


def drop(connection: Connection, found: Found) -> bool:
    """Cancel a live migration that no conductor has taken yet; returns whether it was still waiting."""
    waits = connection.execute(update(actions).where(
        actions.c.server_id == found.server_id, actions.c.action == "os-migrateLive", actions.c.state == "queued",
        actions.c.attempts == 0).values(state="done", updated_at=now())).rowcount
    if waits:
        change(connection, found.uuid, status="cancelled")
        connection.execute(update(servers).where(servers.c.id == found.server_id).values(
            task_state=None, updated_at=now()))
    return bool(waits)


def find(connection: Connection, id: str) -> Found | None:
    """The migration of that uuid."""
    return connection.execute(select(migrations).where(migrations.c.uuid == id)).one_or_none()


def of_server(connection: Connection, server_id: str, number: int) -> Found | None:
    """The migration of that number, if it is one of the server's."""
    return connection.execute(select(migrations).where(
        migrations.c.id == number, migrations.c.server_id == server_id)).one_or_none()


def change(connection: Connection, id: str, was: str | None = None, **values: Any) -> bool:
    """Set columns; ``False``, and nothing changed, when the status is not *was*, where that is given, any more."""
    where = [migrations.c.uuid == id] if was is None else [migrations.c.uuid == id, migrations.c.status == was]
    return connection.execute(update(migrations).where(*where).values(updated_at=now(), **values)).rowcount == 1


def asked(connection: Connection, id: str) -> str | None:
    """What is asked of a live migration."""
    return connection.execute(select(migrations.c.asked).where(migrations.c.uuid == id)).scalar()


def open_ones(connection: Connection, server_id: str, type: str | None = None) -> Sequence[Found]:
    """Migrations of a server that have not ended, oldest first."""
    where = [migrations.c.server_id == server_id, migrations.c.status.not_in(ENDED)]
    if type is not None:
        where.append(migrations.c.type == type)
    return connection.execute(select(migrations).where(*where).order_by(migrations.c.id)).all()


def any_at(found: Iterable[Found], host: str) -> bool:
    """Whether one of these migrations has to do with the *host*, as far as is known yet."""
    return any(host in (one.source, one.target) or one.target is None for one in found)


def evacuated(connection: Connection, host: str) -> Sequence[Found]:
    """Evacuations of servers that a host has lost, and of which it may have something still."""
    return connection.execute(select(migrations).where(
        migrations.c.source == host, migrations.c.type == EVACUATION, migrations.c.status.in_((LOST, DONE))).order_by(
        migrations.c.id)).all()


def kept(connection: Connection, server_id: str) -> Found | None:
    """The resize or cold migration of a server that waits for confirm or revert."""
    return connection.execute(select(migrations).where(
        migrations.c.server_id == server_id, migrations.c.status.in_(KEPT)).order_by(
        migrations.c.id.desc()).limit(1)).one_or_none()


def late(connection: Connection, before: str) -> Sequence[Found]:
    """Servers without an action that have waited for confirm or revert since *before*."""
    waiting = select(migrations.c.server_id).where(migrations.c.status == "finished", or_(
        migrations.c.updated_at < before, migrations.c.updated_at.is_(None)))
    return connection.execute(select(servers).where(
        servers.c.id.in_(waiting), servers.c.vm_state == "resized", servers.c.task_state.is_(None),
        servers.c.deleted_at.is_(None))).all()


def listed(store: Store, equal: Mapping[str, Any], host: str | None, since: str | None, before: str | None, *,
           newest: bool, limit: int, marker: str | None) -> tuple[Sequence[Found], bool]:
    """Migrations of all cells, *newest* or oldest first, and whether there are more. *equal*: values of columns.
    *host*: source or target. Raises ``KeyError`` for an unknown *marker*, a uuid. Cells that do not answer are left
    out."""
    after = None
    if marker is not None:
        marked = rows_of_cells(store, select(migrations).where(migrations.c.uuid == marker), cell0=True)
        after = next((row for part in marked for row in part or ()), None)
        if after is None and None in marked:
            raise hangs("of a cell")  # which may have it
        if after is None:
            raise KeyError(marker)
    where = _conditions(equal, host, since, before)
    order = [(column, newest) for column in (migrations.c.created_at, migrations.c.id, migrations.c.uuid)]
    if after is not None:
        where.append(beyond(order, _place(after)))
    question = select(migrations).where(*where).order_by(
        *(column.desc() if newest else column.asc() for column, _down in order)).limit(limit + 1)
    rows = [row for part in rows_of_cells(store, question, cell0=True) for row in part or ()]
    rows.sort(key=lambda row: row.updated_at or "")  # of a server that goes to another cell, what was changed last
    rows = sorted({row.uuid: row for row in rows}.values(), key=_place, reverse=newest)
    return rows[:limit], len(rows) > limit


def _place(row: Found) -> tuple[Any, ...]:
    return row.created_at, row.id, row.uuid


def _conditions(equal: Mapping[str, Any], host: str | None, since: str | None, before: str | None) -> list[Any]:
    table, where = migrations.c, [migrations.c[name] == value for name, value in equal.items()]
    if since:
        where.append(or_(table.updated_at >= since, table.created_at >= since))
    if before:
        where.append(or_(table.updated_at <= before, table.updated_at.is_(None) & (table.created_at <= before)))
    if host:
        where.append(or_(table.source == host, table.target == host))
    return where
