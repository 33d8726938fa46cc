# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be done with all resources of the network service: list, show, create, update and delete them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    delete,
    false,
    insert,
    or_,
    select,
    true,
    update,
)

from magnetar_control.services import Context, Document, Documents, Page
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, collided, now
from magnetar_control.store.engine.paging import beyond
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound

from . import sharing, tags

T = TypeVar("T")
Filter = Callable[[Sequence[str]], ColumnElement[bool]]
#: Values of a filter that is a condition for each: databases take no expression of any depth.
VALUES = 100


@dataclass(frozen=True, kw_only=True)
class NetworkResource:
    """One kind of resource. *visible*: the condition of rows that a caller sees; *documents*: rows as callers get
    them. *create*, *update* and *delete* work in a transaction: *create* adds the row of the values and what
    belongs to it; *update* (none: it cannot change) checks and completes the values before they are set; *delete*
    says whether the row may go. *defaults*: values of a new one that are left out; *admin*: values that only admins
    change, or give a new one otherwise than by default; *filters*: of lists, besides the columns, *private* those
    of them that are admins' alone; *before_list*: makes what a list needs to be there, and says what the engine has
    of it; *counts*: what a new one of these values is more of, besides itself; *writers_are_admins*: whether only
    admins make, change and remove them; *after*: what is done when a row has changed, or gone; *units*: what the
    engine has of a row, which is added, goes (``None``) or is given values; *owner*: the project whose a new one
    will be, where that is not said by its values."""

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
    after: Callable[[Connection, RowMapping], None] = lambda _connection, _row: None
    units: Callable[[Connection, RowMapping, Document | None], Sequence[str]] = lambda _connection, _row, _values: ()
    owner: Callable[[Connection, Context, Document], str] = lambda _connection, _context, values: values["project_id"]

    @cached_property
    def all_filters(self) -> Mapping[str, Filter]:
        """*filters*, and those of tags where it has such."""
        return {**self.filters, **tags.filters(self.table)}


def forbidden(rule: str, why: str) -> Forbidden:
    """The policy says no."""
    return Forbidden(f"(rule:{rule}) is disallowed by policy: {why}.")


def check_owner(context: Context, project_id: str | None, rule: str, what: str) -> None:
    """Raises an error unless *project_id*, of a network, asks, or an admin."""
    if project_id != context.project_id and not context.is_admin:
        raise forbidden(rule, f"the network's own project and admins may choose {what}. Leave it out, or ask an admin "
                              "for such a port")


def own(table: Table) -> Callable[[Context], ColumnElement[bool]]:
    """The rows of the caller's project; for admins all rows."""
    return lambda context: true() if context.is_admin else table.c.project_id == (context.project_id or "")


def find(connection: Connection, context: Context, resource: NetworkResource, id: str,
         lock: bool = False) -> RowMapping:
    """The row that *context* may see, locked until the transaction ends where asked; raises ``NotFound``."""
    query = select(resource.table).where(resource.table.c.id == id, resource.visible(context))
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        words = resource.name.replace("_", " ").capitalize()
        raise NotFound(f"{words} {id} could not be found.", type=resource.name.title().replace("_", "") + "NotFound")
    return row


def columns(table: Table, values: Document) -> Document:
    """*values* as columns of the table: lists and objects as JSON text."""
    return {name: orjson.dumps(value).decode() if isinstance(value, list | dict) else value
            for name, value in values.items() if name in table.c}


def add(connection: Connection, table: Table, values: Document) -> None:
    """Add the row of *values*."""
    connection.execute(insert(table).values(**columns(table, values), created_at=now()))


def check_once(field: str, items: Sequence[Any]) -> None:
    """Raises ``InvalidField`` where one of the *items* of a field stands there twice, which Neutron refuses too."""
    for at, one in enumerate(items):
        if one in items[:at]:
            raise InvalidField(f"{field}[{at}]", "must not stand in the list twice", one)


def any_of(name: str, values: Sequence[str], condition: Callable[[str], ColumnElement[bool]]) -> ColumnElement[bool]:
    """Whether the *condition* of one of *values* holds, which the filter *name* has. Raises ``InvalidField`` for too
    many."""
    wanted = dict.fromkeys(values)
    if len(wanted) > VALUES:
        raise InvalidField(name, f"can be given {VALUES} times at most, and is {len(wanted)} times")
    return or_(false(), *map(condition, wanted))


def either(conditions: Mapping[Any, ColumnElement[bool]]) -> Filter:
    """A filter that knows these values: rows fit for which the condition of one that is given holds. For other values
    none fits."""
    return lambda values: or_(false(), *(condition for value, condition in conditions.items() if value in values))


def of_version(six: ColumnElement[bool]) -> Filter:
    """The filter ``ip_version``; *six*: whether a row is of IPv6."""
    return either({"4": ~six, "6": six})


class _Undone(Exception):
    """Ends a transaction of which nothing is to stay."""


def transacted(database: Database, act: Callable[[Connection], T], dry: bool = False) -> T:
    """What *act* answers, done in a transaction, and again where that one collides with others. *dry*: nothing of it
    stays, and it refuses what the other would refuse.

    It is tried as long as other transactions are (``RETRY_FOR``): PostgreSQL takes a second to see that two wait for
    each other, and ends one of them, so that less would be a few tries only, and deletions of many servers at once
    could fail. Nothing in it waits for the engine, however slow that is: the worker is told what to do, and does it
    after."""
    def once() -> T:
        with suppress(_Undone), database.write() as connection:
            found = act(connection)
            if dry:
                raise _Undone
        return found

    return database.retried(once, when=collided)


class NetworkStore:
    """See ``services.NetworkResources``. Each method is one transaction, and checks what the caller may do. *dry*: what
    it would answer; nothing changes."""

    def __init__(self, database: Database, resource: NetworkResource, quota: Quotas, log: ChangeLog) -> None:
        self.database, self.resource, self.quota, self.log = database, resource, quota, log

    def list(self, context: Context, page: Page = Page()) -> Documents:  # noqa: B008 - it is frozen
        resource = self.resource
        if make := resource.before_list:
            transacted(self.database, lambda connection: self.log.note(connection, *make(connection, context)))
        with self.database.read() as connection:
            query = select(resource.table).where(resource.visible(context), *self._conditions(context, page))
            rows = connection.execute(self._paged(connection, context, query, page)).mappings().all()
            return resource.documents(connection, rows)

    def show(self, context: Context, id: str) -> Document:
        with self.database.read() as connection:
            return self.resource.documents(connection, [find(connection, context, self.resource, id)])[0]

    def create(self, context: Context, *wanted: Document, dry: bool = False) -> Documents:
        self._check_writer(context, "create")
        new = [self._completed(context, values) for values in wanted]

        def act(connection: Connection) -> Documents:
            self._create(connection, context, [dict(values) for values in new])
            return self._documents(connection, *(values["id"] for values in new))

        return transacted(self.database, act, dry)

    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document:
        self._check_writer(context, "update")

        def act(connection: Connection) -> Document:
            self._update(connection, context, id, dict(values))
            return self._documents(connection, id)[0]

        return transacted(self.database, act, dry)

    def delete(self, context: Context, id: str, dry: bool = False) -> None:
        self._check_writer(context, "delete")
        transacted(self.database, lambda connection: self.drop(connection, context, id), dry)

    def retag(self, context: Context, id: str, change: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Give it the tags that *change* makes of those that it has. Raises ``InvalidField`` for too many."""
        self._check_writer(context, "update")

        def act(connection: Connection) -> None:
            row, table = self._owned(connection, context, id, "update", lock=True), self.resource.table
            wanted = list(dict.fromkeys(change(orjson.loads(row["tags"]))))
            if len(wanted) > tags.MOST:
                raise InvalidField("tags", f"there may be {tags.MOST} of them, and these would be {len(wanted)}")
            connection.execute(update(table).where(table.c.id == id).values(
                tags=orjson.dumps(wanted).decode(), updated_at=now()))

        transacted(self.database, act)

    def make(self, connection: Connection, context: Context, values: Document) -> str:
        """Make one in a transaction that makes others too; returns its id."""
        new = self._completed(context, values)
        self._create(connection, context, [new])
        return str(new["id"])

    def drop(self, connection: Connection, context: Context, id: str) -> None:
        """Remove it, in a transaction that does more."""
        row = self._owned(connection, context, id, "delete")
        self._note(connection, row, None)
        if self.resource.delete:
            self.resource.delete(connection, context, row)
        connection.execute(delete(self.resource.table).where(self.resource.table.c.id == id))
        self.resource.after(connection, row)

    def put(self, context: Context, id: str | None, values: Document, held: Sequence[Any] | None,
            dry: bool = False) -> Document:
        """Make one of *values* (without *id*), or change it, so that it holds *held* (rules, addresses and the like)
        and no more; ``None``: as it is, a new one what is usual. One transaction."""
        self._check_writer(context, "update" if id else "create")

        def act(connection: Connection) -> Document:
            this = id or self.make(connection, context, values)
            if id is not None and held is not None:
                self.leave(connection, context, self._owned(connection, context, this, "update"), held)
            if id is not None and values:
                self._update(connection, context, this, dict(values))
            if held is not None:
                self.enter(connection, context, self._owned(connection, context, this, "update"), held)
            return self._documents(connection, this)[0]

        return transacted(self.database, act, dry)

    def leave(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Any]) -> None:
        """Take what is not in *held* from what is there, before its own values change."""

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Any]) -> None:
        """Have it hold *held*, all of it and no more: stores of what holds something say how, and others are never
        given *held*."""
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
                **columns(table, values), updated_at=now())).rowcount:
            self._owned(connection, context, id, "update")  # it went meanwhile, which this says
        self.resource.after(connection, row)

    def _rows(self, connection: Connection, *ids: str) -> Sequence[RowMapping]:
        """The rows of *ids*, in this order."""
        found = {row["id"]: row for row in connection.execute(select(self.resource.table).where(
            self.resource.table.c.id.in_(ids))).mappings()}
        return [found[id] for id in ids]

    def _documents(self, connection: Connection, *ids: str) -> Documents:
        return self.resource.documents(connection, self._rows(connection, *ids))

    def _note(self, connection: Connection, row: RowMapping, values: Document | None) -> None:
        if self.log.minds(self.resource.name):
            self.log.changed(connection, *self.resource.units(connection, row, values))

    def _check_quota(self, connection: Connection, context: Context, new: Documents) -> None:
        """Raises ``Conflict`` where a project would have more than it may. Projects come in order, so that nobody waits
        in a circle."""
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
            raise forbidden(f"{verb}_{self.resource.name}", "it needs the role member of the project")
        if self.resource.writers_are_admins and not context.is_admin:
            raise forbidden(f"{verb}_{self.resource.name}", "only admins may")

    def _check_admin(self, context: Context, verb: str, names: AbstractSet[str]) -> None:
        for name in self.resource.admin & names:
            if not context.is_admin:
                raise forbidden(f"{verb}_{self.resource.name}:{name}", "only admins may set it")

    def _completed(self, context: Context, values: Document) -> Document:
        """*values* with the defaults, an id and the project."""
        usual = self.resource.defaults
        self._check_admin(context, "create", {name for name, value in values.items() if value != usual.get(name)})
        project = values.get("project_id") or context.project_id or ""
        if project != context.project_id and not context.is_admin:
            raise InvalidRequest("Specifying 'project_id' or 'tenant_id' other than the authenticated project in "
                                 "request requires admin privileges")
        return {"id": str(uuid.uuid4()), **self.resource.defaults, **values, "project_id": project}

    def _owned(self, connection: Connection, context: Context, id: str, verb: str, lock: bool = False) -> RowMapping:
        row = find(connection, context, self.resource, id, lock)
        if row.get("project_id", context.project_id) != context.project_id and not context.is_admin:
            raise forbidden(f"{verb}_{self.resource.name}", "it belongs to another project, which shares it")
        return row

    def _conditions(self, context: Context, page: Page) -> Sequence[ColumnElement[bool]]:
        table = self.resource.table
        filters = {**self.resource.all_filters}
        if "shared" in page.filters and self.resource.name in sharing.KINDS:  # as it is for who asks
            shared = sharing.shared_with(table, context.project_id or "")
            filters["shared"] = either({True: shared, False: ~shared})
        for name in page.filters:
            if name not in filters and name not in table.c:
                raise InvalidRequest(f"['{name}'] is invalid attribute for filtering")
        return [filters[name](values) if name in filters else table.c[name].in_(values)
                for name, values in page.filters.items()]

    def _paged(self, connection: Connection, context: Context, query: Select[Any], page: Page) -> Select[Any]:
        """*query* in order, from the marker on."""
        table = self.resource.table.c
        order = []
        for name, down in (*(page.sort or (("created_at", False),)), ("id", False)):
            if name not in table or table[name].nullable:
                raise InvalidRequest(f"['{name}'] is invalid attribute for sorting")
            order.append((table[name], down))
        if page.marker is not None:
            row = connection.execute(select(*(column for column, _down in order)).where(
                table.id == page.marker, self.resource.visible(context))).first()
            if row is None:
                raise InvalidRequest(f"marker: there is no {self.resource.name} {page.marker}.", type="BadRequest")
            query = query.where(beyond(order, row))
        query = query.order_by(*(column.desc() if down else column.asc() for column, down in order))
        return query.limit(page.limit) if page.limit else query
