# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of volumes, snapshots and attachments: functions and base classes that find, list and change them, and queue
tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, func, select, true, update

from magnetar_control.services import Context
from magnetar_control.store.engine.conditions import COMPARE, has_pair, keyset_condition
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound
from magnetar_core.query import check_sort

NOUNS = {"volumes": "Volume", "volume_snapshots": "Snapshot", "volume_attachments": "Volume attachment",
         "volume_backups": "Backup", "volume_transfers": "Transfer"}
#: Maximum number of keys in the metadata of a volume or snapshot.
KEYS = 256
SORTED = ("id", "name", "size", "status", "created_at", "updated_at", "bootable")


class DryRunEnd(Exception):
    """An exception that rolls back the transaction of a dry run."""


def check_volume_writer(context: Context) -> None:
    """Raise ``Forbidden`` if the caller has no permission to change volumes."""
    if not context.is_writer:
        raise Forbidden("Policy doesn't allow this to be performed: it needs the role member of the project.")


def check_admin(context: Context, operation: str = "this") -> None:
    """Raise ``Forbidden`` unless the caller is an admin. *operation*: the name of the operation, for the error."""
    if not context.is_admin:
        raise Forbidden(f"Policy doesn't allow {operation} to be performed: it needs the role admin.")


def visible_to_caller(table: Table, context: Context) -> ColumnElement[bool]:
    """Return the SQL condition for the rows of *table* that the caller may see: for admins all rows, otherwise the rows
    of the caller's project."""
    return true() if context.is_admin else table.c.project_id == (context.project_id or "")


def find_visible_row(connection: Connection, table: Table, context: Context, id: str) -> RowMapping | None:
    """Return the row *id* of *table*; ``None`` if there is none that *context* may see."""
    return connection.execute(select(table).where(table.c.id == id,
                                                  visible_to_caller(table, context))).mappings().first()


def get_visible_row(connection: Connection, table: Table, context: Context, id: str) -> RowMapping:
    """Return the row *id* of *table*. Raises ``NotFound`` if there is none that *context* may see."""
    row = find_visible_row(connection, table, context, id)
    if row is None:
        raise NotFound(f"{NOUNS[table.name]} {id} could not be found.")
    return row


def set_columns(connection: Connection, table: Table, id: str, **values: Any) -> None:
    connection.execute(update(table).where(table.c.id == id).values(updated_at=utc_now(), **values))


def queue_volume_task(connection: Connection, table: Table, row: RowMapping, task: str,
                      statuses: Sequence[str] | None = None, **values: Any) -> None:
    """Queue *task* for the workers: set the column ``task`` of a volume, snapshot or backup. *table*, *row*: the table
    and the row. *statuses*: the allowed statuses; ``None``: any. *values*: further columns to set. Raises
    ``InvalidRequest`` when the status is not allowed, ``Conflict`` when the status has just changed.

    Unlike other tasks, "delete" does not end the lease of a running task (the worker's right to execute the task), but
    starts after that task. If both ran at the same time, the running task could create content on the host after the
    deletion.
    """
    if statuses is not None and row["status"] not in statuses:
        raise wrong_status(table, row, statuses)
    if statuses is not None:
        refuse_while_migrating(row)
    free = {} if task == "delete" else {"holder": None, "lease_until": None}
    done = connection.execute(update(table).where(table.c.id == row["id"], table.c.status == row["status"]).values(
        task=task, not_before=None, attempts=0, fault=None, updated_at=utc_now(), **free, **values))
    if not done.rowcount:
        raise Conflict(f"{NOUNS[table.name]} {row['id']} was just changed by somebody else; look again.")


def refuse_while_migrating(row: RowMapping | Document) -> None:
    """Raise ``InvalidRequest`` if the volume *row* is being migrated."""
    if row.get("migration"):
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} must not be migrating. Wait until its migration has "
                             "ended.")


def wrong_status(table: Table, row: RowMapping | Document, statuses: Sequence[str]) -> MagnetarError:
    """Return the error for a row whose status does not allow an operation. *statuses*: the allowed statuses."""
    noun = NOUNS[table.name]
    return InvalidRequest(f"Invalid {noun.lower()}: {noun} {row['id']} status must be {' or '.join(statuses)}, but "
                          f"current status is: {row['status']}.")


def checked_metadata(metadata: Document) -> Document:
    """Return *metadata* unchanged. Raises ``InvalidRequest`` if it has more keys than a volume or snapshot may have."""
    if len(metadata) > KEYS:
        raise InvalidRequest(
            f"Invalid input received: metadata has {KEYS} keys at most, and would have {len(metadata)}.")
    return metadata


@dataclass(frozen=True, kw_only=True)
class VolumeListing:
    """The parameters of a request for a list of volumes, snapshots or the like. *filters*: {column: value}. *named*: a
    text that the name must contain. *pairs*: {JSON column: {key: value} that it must contain}. *compared*: (column,
    operator, time). *everywhere*: all projects, for admins. *project_id*: only this project. *sort*: (column, whether
    descending). *limit*: maximum number of rows, ``None`` for all. *offset*: the number of rows to skip. *marker*: the
    id of the last row of the previous page. *count*: also return the total number."""

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


#: Rows of the caller's project.
OWN = VolumeListing()


def listing_condition(context: Context, table: Table, listing: VolumeListing) -> ColumnElement[bool]:
    """Return the SQL condition for the rows of *table* that the caller may see, in the projects that *listing*
    requests."""
    in_project = true() if listing.project_id is None else table.c.project_id == listing.project_id
    return in_project if context.is_admin and listing.everywhere else in_project & (
        table.c.project_id == (context.project_id or ""))


def select_listing_page(connection: Connection, context: Context, table: Table,
                        listing: VolumeListing) -> tuple[Sequence[RowMapping], int | None]:
    """Return (rows of the page that *listing* requests, total number of rows on all pages); the total is ``None``
    unless *listing* requests it. Raises ``InvalidRequest`` for an unknown marker or sort column."""
    equal = (table.c[name].is_(value) if isinstance(value, bool) else table.c[name] == value
             for name, value in listing.filters.items())
    query: Select[Any] = select(table).where(listing_condition(context, table, listing), *equal, *(
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
            table.c.id == listing.marker, listing_condition(context, table, listing))).first()
        if row is None:
            raise InvalidRequest(f"marker [{listing.marker}] not found.")
        query = query.where(keyset_condition(order, row))
    query = query.order_by(*(column.desc() if down else column.asc() for column, down in order)).offset(listing.offset)
    return connection.execute(query if listing.limit is None else query.limit(listing.limit)).mappings().all(), count


class Reading:
    """The base class of the operations on volumes, snapshots, attachments and the like. It implements the reading
    operations, each in one transaction."""

    table: Table
    documents: Callable[..., Documents]

    def __init__(self, database: Database) -> None:
        self.database = database

    def list(self, context: Context, listing: VolumeListing = OWN,
             **shown: bool) -> tuple[Documents, int | None]:
        """Return (documents of the page that *listing* requests, total number on all pages); the total is ``None``
        unless *listing* requests it. *shown*: arguments for the subclass's function ``documents``, such as *attached*
        of volumes."""
        with self.database.read() as connection:
            rows, count = select_listing_page(connection, context, self.table, listing)
            return self.documents(connection, rows, **shown), count

    def find(self, context: Context, id: str) -> Document | None:
        """Return the volume (or other object of this store) *id* as a document; ``None`` if there is none that
        *context* may see."""
        with self.database.read() as connection:
            row = find_visible_row(connection, self.table, context, id)
            return self.documents(connection, [row])[0] if row else None

    def hosts(self, context: Context, ids: Collection[str]) -> dict[str, str | None]:
        """Return the hosts of the volumes (or other objects of this store) *ids*: {id: name of the host, or ``None``}.
        Raises ``NotFound`` for an id that *context* may not see."""
        columns = self.table.c
        with self.database.read() as connection:
            host_by_id = {row.id: row.host for row in connection.execute(select(columns.id, columns.host).where(
                columns.id.in_(ids), visible_to_caller(self.table, context)))}
        if missing := next((id for id in ids if id not in host_by_id), None):
            raise NotFound(f"{NOUNS[self.table.name]} {missing} could not be found.")
        return host_by_id

    def show(self, context: Context, id: str) -> Document:
        """Return the volume (or other object of this store) *id* as a document. Raises ``NotFound`` if there is none
        that *context* may see."""
        with self.database.read() as connection:
            return self.documents(connection, [get_visible_row(connection, self.table, context, id)])[0]


class NamedStore(Reading):
    """The base class of the operations on volumes and snapshots. It implements changes of name, description and
    metadata."""

    def update(self, context: Context, id: str, **values: Any) -> None:
        """Change name, description or metadata of the volume or snapshot *id*. Raises ``NotFound``."""
        check_volume_writer(context)
        with self.database.write() as connection:
            get_visible_row(connection, self.table, context, id)
            set_columns(connection, self.table, id, **{name: checked_metadata(value) if name == "metadata" else value
                                                       for name, value in values.items()})

    def change_metadata(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change the metadata of the volume or snapshot *id*, and return the new metadata. *change*: a function from
        the present metadata to the new metadata. Raises ``NotFound``, ``InvalidRequest``."""
        check_volume_writer(context)
        with self.database.write() as connection:
            new = change(get_visible_row(connection, self.table, context, id)["metadata"])
            set_columns(connection, self.table, id, metadata=checked_metadata(new))
        return new
