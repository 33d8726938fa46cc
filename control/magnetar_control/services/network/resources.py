# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of all resources of the network service: list, show, create, update and delete."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    Text,
    delete,
    false,
    insert,
    literal_column,
    or_,
    select,
    true,
    type_coerce,
    update,
)

from magnetar_control.services import Context, Page
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.conditions import Order, keyset_condition
from magnetar_control.store.engine.database import Database, is_transaction_conflict, utc_now
from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound

from . import sharing, tags

T = TypeVar("T")
Filter = Callable[[Sequence[str]], ColumnElement[bool]]
#: Maximum number of values of a filter with one condition for each value: databases limit the depth of expressions.
VALUES = 100
#: Maximum number of resources of a list that are in memory at a time.
BATCH_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class NetworkResource:
    """The definition of one resource type of the network service, such as "port". ``NetworkStore`` implements the
    operations on it.

    *visible*: returns the SQL condition for the rows that a caller sees. *listed*: returns an equivalent condition that
    is faster for lists. *few*: returns whether list filters match only few rows, so that the database should search by
    an index of the filters; only for resources whose *visible* comes from ``rows_of_caller``. *documents*: converts
    rows to the form for callers. The functions *create*, *update* and *delete* run in a transaction. *create*: inserts
    the row and everything that belongs to it. *update*: checks new values, and adds derived ones, before they are set
    (``None``: the resource cannot change). *delete*: checks whether the row may be deleted.

    *defaults*: values for fields that a request for a new resource lacks. *admin*: fields that only admins may change
    or set to another value than the default. *filters*: list filters, in addition to the columns; *private*: list
    filters for admins only. *before_list*: creates missing resources before a list is read, and returns the keys of the
    created objects, like *units*. *counts*: returns how many dependent objects with quotas of their own (such as rules)
    a new resource has, by resource type. *writers_are_admins*: whether only admins may create, change and delete.
    *after*: called after a row was changed or deleted. *units*: returns the unit keys, such as ``port/ID``, of the
    objects in the network engine (OVN) that a change affects; it is called with ``None`` for a created or deleted row,
    otherwise with the new values. *owner*: returns the project of a new resource.
    """

    name: str
    table: Table
    visible: Callable[[Context], ColumnElement[bool]]
    create: Callable[[Connection, Context, Document], None]
    documents: Callable[[Connection, Sequence[RowMapping]], Documents] = lambda _connection, rows: [{**r} for r in rows]
    update: Callable[[Connection, Context, RowMapping, Document], None] | None = None
    delete: Callable[[Connection, Context, RowMapping], None] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    admin: frozenset[str] = frozenset()
    private: frozenset[str] = frozenset()
    filters: Mapping[str, Filter] = field(default_factory=dict)
    before_list: Callable[[Connection, Context], Sequence[str]] | None = None
    counts: Callable[[Document], Mapping[str, int]] = lambda _values: {}
    writers_are_admins: bool = False
    listed: Callable[[Context], ColumnElement[bool]] | None = None
    few: Callable[[Mapping[str, Sequence[Any]]], bool] = lambda _filters: False
    after: Callable[[Connection, RowMapping], None] = lambda _connection, _row: None
    units: Callable[[Connection, RowMapping, Document | None], Sequence[str]] = lambda _connection, _row, _values: ()
    owner: Callable[[Connection, Context, Document], str] = lambda _connection, _context, values: values["project_id"]

    @cached_property
    def all_filters(self) -> Mapping[str, Filter]:
        """Return all list filters of this resource type: *filters*, and the filters by tags if the resource has tags.
        """
        return {**self.filters, **tags.tag_filters(self.table)}


def forbidden_by_policy(rule: str, why: str) -> Forbidden:
    """Return the error for a request that the policy rule *rule* forbids. *why*: the reason, for the user."""
    return Forbidden(f"(rule:{rule}) is disallowed by policy: {why}.")


def check_network_owner(context: Context, project_id: str | None, rule: str, attribute: str) -> None:
    """Raise ``Forbidden`` unless the caller belongs to *project_id*, the project of a network, or is an admin. *rule*:
    the policy rule, and *attribute*: the attribute that the caller wants to set, both for the error."""
    if project_id != context.project_id and not context.is_admin:
        raise forbidden_by_policy(
            rule, f"the network's own project and admins may choose {attribute}. Leave it out, or ask an admin "
                              "for such a port")


def rows_of_caller(table: Table, column: ColumnElement[Any] | None = None) -> Callable[[Context], ColumnElement[bool]]:
    """Return a function from a request's context to the SQL condition for the rows of *table* that the caller may see:
    for admins all rows, otherwise the rows of the caller's project. *column*: the column with the project; ``None``:
    project_id."""
    project = table.c.project_id if column is None else column
    return lambda context: true() if context.is_admin else project == (context.project_id or "")


def find_resource_row(connection: Connection, context: Context, resource: NetworkResource, id: str,
                      lock: bool = False) -> RowMapping:
    """Return the row *id* of the resource type *resource*. *lock*: lock the row until the transaction ends. Raises
    ``NotFound`` if there is none that *context* may see."""
    query = select(resource.table).where(resource.table.c.id == id, resource.visible(context))
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        words = resource.name.replace("_", " ").capitalize()
        raise NotFound(f"{words} {id} could not be found.", type=resource.name.title().replace("_", "") + "NotFound")
    return row


def column_values(table: Table, values: Document) -> Document:
    """Return *values* without the keys that are no columns of *table*."""
    return {name: value for name, value in values.items() if name in table.c}


def insert_resource_row(connection: Connection, table: Table, values: Document) -> None:
    """Insert a row into *table*, with the time of creation. *values* that are no columns of the table are ignored."""
    connection.execute(insert(table).values(**column_values(table, values), created_at=utc_now()))


def check_once(field: str, items: Sequence[Any]) -> None:
    """Raise ``InvalidField``, as Neutron does, if the list *items* contains a duplicate. *field*: the name of the field
    with this list."""
    for at, candidate in enumerate(items):
        if candidate in items[:at]:
            raise InvalidField(f"{field}[{at}]", "must not stand in the list twice", candidate)


def any_of(name: str, values: Sequence[str], condition: Callable[[str], ColumnElement[bool]]) -> ColumnElement[bool]:
    """Return an SQL condition that is true if *condition* is true for at least one of *values*. *condition*: a function
    from a value to its SQL condition. *name*: the name of the list filter, for errors. Raises ``InvalidField`` for too
    many values."""
    distinct = dict.fromkeys(values)
    if len(distinct) > VALUES:
        raise InvalidField(name, f"can be given {VALUES} times at most, and is {len(distinct)} times")
    return or_(false(), *map(condition, distinct))


def choice_filter(conditions: Mapping[Any, ColumnElement[bool]]) -> Filter:
    """Return a list filter for a field with fixed values. *conditions*: {value: SQL condition for rows with this
    value}. Any other requested value matches no row."""
    return lambda values: or_(false(), *(condition for value, condition in conditions.items() if value in values))


def ip_version_filter(six: ColumnElement[bool]) -> Filter:
    """Return the list filter ``ip_version`` (4 or 6). *six*: the SQL condition for IPv6 rows."""
    return choice_filter({"4": ~six, "6": six})


def _column_value(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL expression that a list filter compares with the requested values: the column, or its text if it is
    a JSON column."""
    return type_coerce(column, Text) if isinstance(column.type, JsonColumn) else column


class _Undone(Exception):
    """An exception that rolls back the transaction of a dry run."""


def run_transaction(database: Database, act: Callable[[Connection], T], dry: bool = False) -> T:
    """Call *act* with the connection of a transaction, and return its result. Retry for up to ``RETRY_FOR`` when the
    transaction conflicts with others. *dry*: roll back at the end, but raise the same errors.

    The transaction never waits for the network engine (OVN): the transaction only adds a row to a queue for each
    change, and a background thread writes the changes to the engine.
    """
    def once() -> T:
        with suppress(_Undone), database.write() as connection:
            answer = act(connection)
            if dry:
                raise _Undone
        return answer

    return database.retried(once, when=is_transaction_conflict)


class NetworkStore:
    """The operations on one resource type of the network service (an implementation of ``services.NetworkResources``).
    Each operation is one transaction, and checks the caller's permissions. If the parameter *dry* of a method is true,
    the method only checks the request, and returns the result without changing anything."""

    def __init__(self, database: Database, resource: NetworkResource, quota: Quotas, log: ChangeLog) -> None:
        self.database, self.resource, self.quota, self.log = database, resource, quota, log

    def list(self, context: Context, page: Page = Page()) -> Documents:  # noqa: B008 - it is frozen
        return [document for documents in self.pieces(context, page) for document in documents]

    def pieces(self, context: Context, page: Page) -> Iterator[Documents]:
        """Yield the documents of a list in pieces of at most ``BATCH_SIZE``, each document once. No database connection
        is in use between two pieces."""
        resource = self.resource
        if make := resource.before_list:
            run_transaction(self.database, lambda connection: self.log.note(connection, *make(connection, context)))
        order = self._order(page)
        query = select(resource.table).where(*self._conditions(context, page)).order_by(
            *(column.desc() if down else column.asc() for column, down in order))
        last, remaining = self._marked(context, order, page.marker), page.limit or sys.maxsize
        while True:
            count = min(remaining, BATCH_SIZE)
            part = (query if last is None else query.where(keyset_condition(order, last))).limit(count)
            with self.database.read() as connection:
                rows = connection.execute(part).mappings().all()
                documents = resource.documents(connection, rows)
            yield documents
            remaining -= count
            if len(rows) < count or not remaining:
                return
            last = [rows[-1][column.name] for column, _down in order]

    def show(self, context: Context, id: str) -> Document:
        with self.database.read() as connection:
            return self.resource.documents(connection, [find_resource_row(connection, context, self.resource, id)])[0]

    def create(self, context: Context, *requests: Document, dry: bool = False) -> Documents:
        self._check_writer(context, "create")
        new = [self._completed(context, values) for values in requests]

        def act(connection: Connection) -> Documents:
            self._create(connection, context, [dict(values) for values in new])
            return self._documents(connection, *(values["id"] for values in new))

        return run_transaction(self.database, act, dry)

    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document:
        self._check_writer(context, "update")

        def act(connection: Connection) -> Document:
            self._update(connection, context, id, dict(values))
            return self._documents(connection, id)[0]

        return run_transaction(self.database, act, dry)

    def delete(self, context: Context, id: str, dry: bool = False) -> None:
        self._check_writer(context, "delete")
        run_transaction(self.database, lambda connection: self.drop(connection, context, id), dry)

    def retag(self, context: Context, id: str, change: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Replace the tags of the resource *id*. *change*: a function from the present tags to the new tags. Raises
        ``InvalidField`` for too many tags."""
        self._check_writer(context, "update")

        def act(connection: Connection) -> None:
            row, table = self._owned(connection, context, id, "update", lock=True), self.resource.table
            new_tags = list(dict.fromkeys(change(tags.tags_of(row))))
            if len(new_tags) > tags.MOST:
                raise InvalidField("tags", f"there may be {tags.MOST} of them, and these would be {len(new_tags)}")
            connection.execute(update(table).where(table.c.id == id).values(
                tags=new_tags, updated_at=utc_now()))

        run_transaction(self.database, act)

    def make(self, connection: Connection, context: Context, values: Document) -> str:
        """Create a resource with *values* within the caller's transaction, and return its id."""
        new = self._completed(context, values)
        self._create(connection, context, [new])
        return str(new["id"])

    def drop(self, connection: Connection, context: Context, id: str) -> None:
        """Delete the resource *id* within the caller's transaction."""
        row = self._owned(connection, context, id, "delete")
        self._note(connection, row, None)
        if self.resource.delete:
            self.resource.delete(connection, context, row)
        connection.execute(delete(self.resource.table).where(self.resource.table.c.id == id))
        self.resource.after(connection, row)

    def put(self, context: Context, id: str | None, values: Document, parts: Sequence[Any] | None,
            dry: bool = False) -> Document:
        """Change the resource *id*, or create one if *id* is ``None``, in one transaction, and return it. *values*: the
        fields to set. *parts*: the complete new list of the resource's dependent objects (such as the rules of a
        security group). ``None``: do not change these objects; a new resource gets the default ones."""
        self._check_writer(context, "update" if id else "create")

        def act(connection: Connection) -> Document:
            this = id or self.make(connection, context, values)
            if id is not None and parts is not None:
                self.remove_old_parts(connection, context, self._owned(connection, context, this, "update"), parts)
            if id is not None and values:
                self._update(connection, context, this, dict(values))
            if parts is not None:
                self.set_parts(connection, context, self._owned(connection, context, this, "update"), parts)
            return self._documents(connection, this)[0]

        return run_transaction(self.database, act, dry)

    def remove_old_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Any]) -> None:
        """Remove the dependent objects (such as rules) of the resource *row* that are not in *parts*. ``put`` calls
        this before it changes the resource's values. Subclasses override this; here it does nothing."""

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Any]) -> None:
        """Replace the dependent objects (such as rules) of the resource *row* by *parts*. Only stores of resources with
        such objects implement this."""
        raise NotImplementedError

    def _create(self, connection: Connection, context: Context, new: Documents) -> None:
        self._check_quota(connection, context, new)
        for values in new:
            self.resource.create(connection, context, values)
        for row in self._rows(connection, *(values["id"] for values in new)):
            self._note(connection, row, None)

    def _update(self, connection: Connection, context: Context, id: str, values: Document) -> None:
        table = self.resource.table
        row = self._owned(connection, context, id, "update")
        self._check_admin(context, "update", set(values))
        self._note(connection, row, values)
        assert self.resource.update, "a resource without it has no such operation"
        self.resource.update(connection, context, row, values)
        self._note(connection, row, values)
        if not connection.execute(update(table).where(table.c.id == id).values(
                **column_values(table, values), updated_at=utc_now())).rowcount:
            self._owned(connection, context, id, "update")  # raises when the row is gone meanwhile
        self.resource.after(connection, row)

    def _rows(self, connection: Connection, *ids: str) -> Sequence[RowMapping]:
        """Return the rows of the resources *ids*, in this order."""
        rows_by_id = {row["id"]: row for row in connection.execute(select(self.resource.table).where(
            self.resource.table.c.id.in_(ids))).mappings()}
        return [rows_by_id[id] for id in ids]

    def _documents(self, connection: Connection, *ids: str) -> Documents:
        return self.resource.documents(connection, self._rows(connection, *ids))

    def _note(self, connection: Connection, row: RowMapping, values: Document | None) -> None:
        if self.log.is_followed(self.resource.name):
            self.log.changed(connection, *self.resource.units(connection, row, values))

    def _check_quota(self, connection: Connection, context: Context, new: Documents) -> None:
        """Raise ``Conflict`` if the new resources *new* (their values) exceed a project's quota. Projects are locked in
        sorted order, to prevent deadlocks."""
        if self.resource.name not in self.quota.defaults:
            return
        owners: dict[str, Counter[str]] = {}
        for values in new:
            owners.setdefault(self.resource.owner(connection, context, values), Counter()).update(
                {self.resource.name: 1, **self.resource.counts(values)})
        for project in sorted(owners):
            self.quota.within(connection, project, **owners[project])

    def _check_writer(self, context: Context, verb: str) -> None:
        if not context.is_writer:
            raise forbidden_by_policy(f"{verb}_{self.resource.name}", "it needs the role member of the project")
        if self.resource.writers_are_admins and not context.is_admin:
            raise forbidden_by_policy(f"{verb}_{self.resource.name}", "only admins may")

    def _check_admin(self, context: Context, verb: str, names: AbstractSet[str]) -> None:
        for name in self.resource.admin & names:
            if not context.is_admin:
                raise forbidden_by_policy(f"{verb}_{self.resource.name}:{name}", "only admins may set it")

    def _completed(self, context: Context, values: Document) -> Document:
        """Return *values*, the values of a new resource, with defaults, a uuid and the project. If the caller is no
        admin, raises ``InvalidRequest`` if *values* name another project, and ``Forbidden`` if they set fields that
        only admins may set."""
        usual = self.resource.defaults
        self._check_admin(context, "create", {name for name, value in values.items() if value != usual.get(name)})
        project = values.get("project_id") or context.project_id or ""
        if project != context.project_id and not context.is_admin:
            raise InvalidRequest("Specifying 'project_id' or 'tenant_id' other than the authenticated project in "
                                 "request requires admin privileges")
        return {"id": str(uuid.uuid4()), **self.resource.defaults, **values, "project_id": project}

    def _owned(self, connection: Connection, context: Context, id: str, verb: str, lock: bool = False) -> RowMapping:
        row = find_resource_row(connection, context, self.resource, id, lock)
        if row.get("project_id", context.project_id) != context.project_id and not context.is_admin:
            raise forbidden_by_policy(f"{verb}_{self.resource.name}", "it belongs to another project, which shares it")
        return row

    def _conditions(self, context: Context, page: Page) -> Sequence[ColumnElement[bool]]:
        """Return the SQL conditions (permissions and filters) for the rows on the requested *page* of a list. Raises
        ``InvalidRequest`` for an unknown filter."""
        table, visible = self.resource.table, self.resource.listed or self.resource.visible
        columns: dict[str, ColumnElement[Any]] = dict(table.c.items())
        if self.database.kind == "sqlite" and self.resource.few(page.filters):
            # The plus keeps SQLite, which has no statistics, from reading all rows of the project in their order.
            columns["project_id"] = literal_column(f"+{table.name}.project_id", table.c.project_id.type)
            visible = rows_of_caller(table, columns["project_id"])
        filters = {**self.resource.all_filters}
        if "shared" in page.filters and self.resource.name in sharing.KINDS:  # as the caller sees it
            shared = sharing.shared_with(table, context.project_id or "")
            filters["shared"] = choice_filter({True: shared, False: ~shared})
        for name in page.filters:
            if name not in filters and name not in columns:
                raise InvalidRequest(f"['{name}'] is invalid attribute for filtering")
        return [visible(context),
                *(filters[name](values) if name in filters else _column_value(columns[name]).in_(values)
                  for name, values in page.filters.items())]

    def _order(self, page: Page) -> Order:
        """Return the sort order of the list that *page* requests: (column, whether descending) for each column. Raises
        ``InvalidRequest``."""
        table = self.resource.table.c
        order = []
        for name, down in (*(page.sort or (("created_at", False),)), ("id", False)):
            if name not in table or table[name].nullable:
                raise InvalidRequest(f"['{name}'] is invalid attribute for sorting")
            order.append((table[name], down))
        return order

    def _marked(self, context: Context, order: Order, marker: str | None) -> Sequence[Any] | None:
        """Return the sort key of the marker, the last row of the previous page: its values in the columns of *order*.
        *marker*: the id of this row; ``None``: there is none, so return ``None``. Raises ``InvalidRequest``."""
        if marker is None:
            return None
        with self.database.read() as connection:
            row = connection.execute(select(*(column for column, _down in order)).where(
                self.resource.table.c.id == marker, self.resource.visible(context))).first()
        if row is None:
            raise InvalidRequest(f"marker: there is no {self.resource.name} {marker}.", type="BadRequest")
        return row
