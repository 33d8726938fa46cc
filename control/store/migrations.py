# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations and resizes of servers, as ``os-migrations`` shows them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, insert, or_, select, update

from .database import Database, now
from .scatter_gather import scatter_gather
from .servers import text
from .store import Store
from .tables import actions, migrations, servers
from .timeouts import hangs

T = TypeVar("T")
Found = Row[Any]
RESIZE, MIGRATION, LIVE = "resize", "migration", "live-migration"
#: Final statuses.
ENDED = ("completed", "confirmed", "reverted", "error", "failed", "cancelled", "done")
#: Statuses that wait for confirmResize or revertResize, also after one of these was interrupted.
KEPT = ("finished", "confirming", "reverting")
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


def change(connection: Connection, id: str, **values: Any) -> None:
    """Set columns."""
    connection.execute(update(migrations).where(migrations.c.uuid == id).values(updated_at=now(), **values))


def became(connection: Connection, found: Found, before: str, status: str) -> bool:
    """Change the status *before* to *status*; ``False`` when it is another status by now."""
    return connection.execute(update(migrations).where(
        migrations.c.uuid == found.uuid, migrations.c.status == before).values(
        status=status, updated_at=now())).rowcount == 1


def ask(connection: Connection, found: Found, wish: str) -> bool:
    """Note what is asked of a live migration (``ABORT``, ``FORCE``); ``False`` when its status has changed since it was
    *found*."""
    return connection.execute(update(migrations).where(
        migrations.c.uuid == found.uuid, migrations.c.status == found.status).values(
        asked=wish, updated_at=now())).rowcount == 1


def asked(connection: Connection, id: str) -> str | None:
    """What is asked of a live migration."""
    return connection.execute(select(migrations.c.asked).where(migrations.c.uuid == id)).scalar()


def open_ones(connection: Connection, server_id: str, type: str | None = None) -> Sequence[Found]:
    """Migrations of a server that have not ended, oldest first."""
    where = [migrations.c.server_id == server_id, migrations.c.status.not_in(ENDED)]
    if type is not None:
        where.append(migrations.c.type == type)
    return connection.execute(select(migrations).where(*where).order_by(migrations.c.id)).all()


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


@dataclass
class MigrationQuery:
    """*equal*: values of columns. *host*: source or target. *newest*: newest first, else oldest first. *marker*: a
    uuid."""

    equal: Mapping[str, Any] = field(default_factory=dict)
    host: str | None = None
    since: str | None = None
    before: str | None = None
    newest: bool = True
    limit: int = 1000
    marker: str | None = None


def listed(store: Store, wanted: MigrationQuery) -> tuple[Sequence[Found], bool]:
    """Migrations of all cells in order, and whether there are more. Raises ``KeyError`` for an unknown marker. Cells
    that do not answer are left out."""
    after = None
    if wanted.marker is not None:
        marked = scatter_gather(store, _read(lambda connection: [find(connection, str(wanted.marker))]), cell0=True)
        after = next((row for found in marked.values() for row in found or () if row is not None), None)
        if after is None and None in marked.values():
            raise hangs("of a cell")  # which may have it
        if after is None:
            raise KeyError(wanted.marker)
    rows: list[Found] = []
    for part in scatter_gather(
            store, _read(lambda connection: _rows(connection, wanted, after)), cell0=True).values():
        rows += part or ()
    rows.sort(key=_place, reverse=wanted.newest)
    return rows[:wanted.limit], len(rows) > wanted.limit


def _read(question: Callable[[Connection], T]) -> Callable[[Database], T]:
    """A function of a connection as a function of a database."""
    def asked(database: Database) -> T:
        with database.read() as connection:
            return question(connection)
    return asked


def _place(row: Found) -> tuple[Any, ...]:
    return row.created_at, row.id, row.uuid


def _rows(connection: Connection, wanted: MigrationQuery, after: Found | None) -> Sequence[Found]:
    table, where = migrations.c, [migrations.c[name] == value for name, value in wanted.equal.items()]
    changed = [or_(table.updated_at >= wanted.since, table.created_at >= wanted.since)] if wanted.since else []
    if wanted.before:
        changed.append(or_(table.updated_at <= wanted.before,
                           table.updated_at.is_(None) & (table.created_at <= wanted.before)))
    if wanted.host:
        where.append(or_(table.source == wanted.host, table.target == wanted.host))
    order = (table.created_at, table.id, table.uuid)
    if after is not None:
        beyond = [(table.created_at, after.created_at), (table.id, after.id), (table.uuid, after.uuid)]
        where.append(or_(*(_past(beyond[:at], *beyond[at], wanted.newest) for at in range(len(beyond)))))
    question = select(migrations).where(*where, *changed).order_by(
        *(column.desc() if wanted.newest else column.asc() for column in order)).limit(wanted.limit + 1)
    return connection.execute(question).all()


def _past(same: Sequence[tuple[Any, Any]], column: Any, value: Any, newest: bool) -> Any:
    found = column < value if newest else column > value
    for one, equal in same:
        found &= one == equal
    return found
