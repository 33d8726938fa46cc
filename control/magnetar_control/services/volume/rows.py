# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of volumes, snapshots and attachments: found, listed, changed, and given a task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, func, select, true, update

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.engine.conditions import COMPARE, has_pair
from magnetar_control.store.engine.database import Database, now
from magnetar_control.store.engine.paging import beyond
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound
from magnetar_core.query import check_sort

NOUNS = {"volumes": "Volume", "volume_snapshots": "Snapshot", "volume_attachments": "Volume attachment"}
#: Keys of the metadata of a volume or snapshot.
KEYS = 256
SORTED = ("id", "name", "size", "status", "created_at", "updated_at", "bootable")


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
    return true() if context.is_admin else table.c.project_id == (context.project_id or "")


def found(connection: Connection, table: Table, context: Context, id: str) -> RowMapping | None:
    """The row, if there is one that *context* may see."""
    return connection.execute(select(table).where(table.c.id == id, own(table, context))).mappings().first()


def seen(connection: Connection, table: Table, context: Context, id: str) -> RowMapping:
    """The row that *context* may see; raises ``NotFound``."""
    row = found(connection, table, context, id)
    if row is None:
        raise NotFound(f"{NOUNS[table.name]} {id} could not be found.")
    return row


def set_(connection: Connection, table: Table, id: str, **values: Any) -> None:
    connection.execute(update(table).where(table.c.id == id).values(updated_at=now(), **values))


def asked(connection: Connection, table: Table, row: RowMapping, task: str, statuses: Sequence[str] | None = None,
          **values: Any) -> None:
    """Note a task for the worker. Raises ``InvalidRequest`` where the status is none of *statuses*, or has changed.

    A deletion leaves the lease of what is at work: it begins when that has ended, so that nothing which is still being
    made comes to the host afterwards."""
    if statuses is not None and row["status"] not in statuses:
        raise wrong_status(table, row, statuses)
    free = {} if task == "delete" else {"holder": None, "lease_until": None}
    done = connection.execute(update(table).where(table.c.id == row["id"], table.c.status == row["status"]).values(
        task=task, not_before=None, attempts=0, fault=None, updated_at=now(), **free, **values))
    if not done.rowcount:
        raise Conflict(f"{NOUNS[table.name]} {row['id']} was just changed by somebody else; look again.")


def wrong_status(table: Table, row: RowMapping | Document, statuses: Sequence[str]) -> MagnetarError:
    """It is in no state for this."""
    noun = NOUNS[table.name]
    return InvalidRequest(f"Invalid {noun.lower()}: {noun} {row['id']} status must be {' or '.join(statuses)}, but "
                          f"current status is: {row['status']}.")


def document(text: str | None) -> Any:
    """A column with JSON."""
    return orjson.loads(text) if text else {}


def metadata_text(given: Document) -> str:
    """Metadata as a column has it. Raises ``InvalidRequest`` for too many keys."""
    if len(given) > KEYS:
        raise InvalidRequest(f"Invalid input received: metadata has {KEYS} keys at most, and would have {len(given)}.")
    return orjson.dumps(given).decode()


@dataclass(frozen=True, kw_only=True)
class VolumeListing:
    """What a list is asked for. *filters*: by column; *named*: text in the name. *pairs*: of columns with JSON, what
    they have among others; *compared*: (column, operator, moment). *everywhere*: of all projects, for admins;
    *project_id*: of that one alone. *sort*: columns, and whether downwards. At most *limit* (``None``: all) after
    *offset* and after the row *marker*. *count*: how many there are in all is told too."""

    filters: Mapping[str, Any] = field(default_factory=dict)
    named: str | None = None
    pairs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    compared: Sequence[tuple[str, str, str]] = ()
    everywhere: bool = False
    project_id: str | None = None
    sort: Sequence[tuple[str, bool]] = (("created_at", True),)
    limit: int | None = None
    offset: int = 0
    marker: str | None = None
    count: bool = False


#: Of the caller's project.
OWN = VolumeListing()


def mine(context: Context, table: Table, listing: VolumeListing) -> ColumnElement[bool]:
    """The condition of the projects whose rows are listed."""
    asked = true() if listing.project_id is None else table.c.project_id == listing.project_id
    return asked if context.is_admin and listing.everywhere else asked & (
        table.c.project_id == (context.project_id or ""))


def listed(connection: Connection, context: Context, table: Table,
           listing: VolumeListing) -> tuple[Sequence[RowMapping], int | None]:
    """A page of rows, and how many there are on all pages where that is asked."""
    equal = (table.c[name].is_(value) if isinstance(value, bool) else table.c[name] == value
             for name, value in listing.filters.items())
    query: Select[Any] = select(table).where(mine(context, table, listing), *equal, *(
        has_pair(table.c[name], *pair) for name, pairs in listing.pairs.items() for pair in pairs.items()), *(
        COMPARE[how](table.c[name], moment) for name, how, moment in listing.compared))
    if listing.named is not None and "name" in table.c:
        query = query.where(table.c.name.contains(listing.named, autoescape=True))
    count = connection.execute(select(func.count()).select_from(query.subquery())).scalar() if listing.count else None
    check_sort("sort", [name for name, _down in listing.sort])
    order = []
    for name, down in (*listing.sort, ("id", True)):
        if name not in SORTED or name not in table.c:
            raise InvalidRequest(f"Invalid input received: {name} cannot be sorted by.")
        order.append((func.coalesce(table.c[name], "") if table.c[name].nullable else table.c[name], down))
    if listing.marker is not None:
        row = connection.execute(select(*(column for column, _down in order)).where(
            table.c.id == listing.marker, mine(context, table, listing))).first()
        if row is None:
            raise InvalidRequest(f"marker [{listing.marker}] not found.")
        query = query.where(beyond(order, row))
    query = query.order_by(*(column.desc() if down else column.asc() for column, down in order)).offset(listing.offset)
    return connection.execute(query if listing.limit is None else query.limit(listing.limit)).mappings().all(), count


class Reading:
    """Volumes, snapshots or attachments, for callers. Each method is one transaction."""

    table: Table
    documents: Callable[..., Documents]

    def __init__(self, database: Database) -> None:
        self.database = database

    def list(self, context: Context, listing: VolumeListing = OWN,
             **shown: bool) -> tuple[Documents, int | None]:
        """A page of them, and how many there are on all pages where that is asked; *shown*: see ``documents``."""
        with self.database.read() as connection:
            rows, count = listed(connection, context, self.table, listing)
            return self.documents(connection, rows, **shown), count

    def find(self, context: Context, id: str) -> Document | None:
        """One, if *context* may see it."""
        with self.database.read() as connection:
            row = found(connection, self.table, context, id)
            return self.documents(connection, [row])[0] if row else None

    def hosts(self, context: Context, ids: Collection[str]) -> dict[str, str | None]:
        """Id to the host that it lies on. Raises ``NotFound`` for one that *context* may not see."""
        columns = self.table.c
        with self.database.read() as connection:
            there = {row.id: row.host for row in connection.execute(select(columns.id, columns.host).where(
                columns.id.in_(ids), own(self.table, context)))}
        if missing := next((id for id in ids if id not in there), None):
            raise NotFound(f"{NOUNS[self.table.name]} {missing} could not be found.")
        return there

    def show(self, context: Context, id: str) -> Document:
        """One. Raises ``NotFound``."""
        with self.database.read() as connection:
            return self.documents(connection, [seen(connection, self.table, context, id)])[0]


class NamedStore(Reading):
    """Volumes or snapshots."""

    def update(self, context: Context, id: str, **values: Any) -> None:
        """Change name, description or metadata."""
        check_writer(context)
        with self.database.write() as connection:
            seen(connection, self.table, context, id)
            set_(connection, self.table, id, **{name: metadata_text(value) if name == "metadata" else value
                                                for name, value in values.items()})

    def change_metadata(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change the metadata to what *change* makes of it."""
        check_writer(context)
        with self.database.write() as connection:
            new = change(document(seen(connection, self.table, context, id)["metadata"]))
            set_(connection, self.table, id, metadata=metadata_text(new))
        return new
