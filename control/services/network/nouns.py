# SPDX-License-Identifier: GPL-3.0-or-later
"""Neutron's resources as HTTP has them: list, show, create (one or many), update, delete; the same for each noun."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import orjson
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    Table,
    delete,
    insert,
    or_,
    select,
    update,
)

from magnetar_control.services import Context, Document
from magnetar_control.store.database import Database, now
from magnetar_control.store.paging import beyond
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound

from .attributes import FALSE, TRUE, Attribute, checked, forbidden, invalid, may_write

Filter = Callable[[Context, Sequence[str]], ColumnElement[bool]]


@dataclass(frozen=True, kw_only=True)
class Noun:
    """One kind of resource. *show* renders rows; *columns* are Neutron's names of columns that are called
    otherwise here. The verbs work in a transaction: *create* adds the row of values and what belongs to it,
    *update* and *delete* look at the row that they are given first."""

    name: str
    plural: str
    path: str
    table: Table
    attributes: Mapping[str, Attribute]
    show: Callable[[Connection, Context, Sequence[RowMapping]], list[Document]]
    create: Callable[[Connection, Context, Document], None]
    update: Callable[[Connection, Context, RowMapping, Document], None] | None
    delete: Callable[[Connection, Context, RowMapping], None]
    visible: Callable[[Context], ColumnElement[bool]]
    columns: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, Filter] = field(default_factory=dict)
    before_list: Callable[[Connection, Context], None] | None = None


def missing(noun: Noun, id: str) -> MagnetarError:
    """There is none, or not for who asks."""
    words = noun.name.replace("_", " ").capitalize()
    return NotFound(f"{words} {id} could not be found.", type=noun.name.title().replace("_", "") + "NotFound")


def own(table: Table) -> Callable[[Context], ColumnElement[bool]]:
    """What the project of who asks has; for admins everything."""
    return lambda context: or_(table.c.project_id == (context.project_id or ""),
                               table.c.id.is_not(None) if context.is_admin else table.c.id.is_(None))


def time(value: str | None) -> str | None:
    """A time of the tables as Neutron shows it."""
    return value[:19] + "Z" if value else value


def common(row: RowMapping) -> Document:
    """What all resources show."""
    return {"id": row["id"], "project_id": row["project_id"], "tenant_id": row["project_id"],
            "description": row["description"], "created_at": time(row["created_at"]), "tags": [],
            "updated_at": time(row["updated_at"] or row["created_at"])}


def found(connection: Connection, context: Context, noun: Noun, id: str) -> RowMapping:
    """The row that *context* may see; raises ``NotFound``."""
    row = connection.execute(select(noun.table).where(noun.table.c.id == id, noun.visible(context))).mappings().first()
    if row is None:
        raise missing(noun, id)
    return row


def kept(table: Table, values: Document) -> Document:
    """*values* as columns: lists and objects as JSON text."""
    return {name: orjson.dumps(value).decode() if isinstance(value, list | dict) else value
            for name, value in values.items() if name in table.c}


def add(connection: Connection, table: Table, values: Document) -> None:
    """Add the row of *values*."""
    connection.execute(insert(table).values(**kept(table, values), created_at=now()))


def change(connection: Connection, table: Table, id: str, values: Document) -> None:
    """Set *values* in a row."""
    connection.execute(update(table).where(table.c.id == id).values(**kept(table, values), updated_at=now()))


def remove(connection: Connection, table: Table, id: str) -> None:
    """Delete a row."""
    connection.execute(delete(table).where(table.c.id == id))


class Verbs:
    """The handlers of a noun."""

    def __init__(self, database: Database, noun: Noun) -> None:
        self.database, self.noun = database, noun

    def routes(self) -> list[Guarded]:
        """Where they are."""
        path = f"/v2.0/{self.noun.path}"
        routes = [Guarded(method="GET", path=path, handler=self.list),
                  Guarded(method="POST", path=path, handler=self.create),
                  Guarded(method="GET", path=path + "/{id}", handler=self.show),
                  Guarded(method="DELETE", path=path + "/{id}", handler=self.delete)]
        if self.noun.update:
            routes.append(Guarded(method="PUT", path=path + "/{id}", handler=self.update))
        return routes

    def list(self, request: Request) -> Answer:
        """Those that fit the query, sorted and in pages."""
        noun, context = self.noun, request.context
        asked = Asked(noun, request)
        if noun.before_list:
            with self.database.write() as connection:
                noun.before_list(connection, context)
        with self.database.read() as connection:
            query = select(noun.table).where(noun.visible(context), *asked.conditions(context))
            rows = connection.execute(asked.paged(connection, query)).mappings().all()
            shown = noun.show(connection, context, rows)
        document: Document = {noun.plural: [asked.picked(one) for one in shown]}
        if asked.limit and len(rows) == asked.limit:
            document[f"{noun.plural}_links"] = [{"rel": "next", "href": asked.next(rows[-1]["id"])}]
        return Answer(document)

    def show(self, request: Request) -> Answer:
        """One."""
        with self.database.read() as connection:
            row = found(connection, request.context, self.noun, request.params["id"])
            shown = self.noun.show(connection, request.context, [row])
        return Answer({self.noun.name: Asked(self.noun, request).picked(shown[0])})

    def create(self, request: Request) -> Answer:
        """One, or many in one transaction."""
        noun, context, body = self.noun, request.context, request.json()
        may_write(context, f"create_{noun.name}")
        many = isinstance(body, dict) and isinstance(body.get(noun.plural), list)
        if not many and not (isinstance(body, dict) and noun.name in body):
            raise InvalidRequest(f"Unable to find '{noun.name}' in request body", type="HTTPBadRequest")
        wanted = [self._wanted(context, one) for one in (body[noun.plural] if many else [body[noun.name]])]
        with self.database.write() as connection:
            for values in wanted:
                noun.create(connection, context, values)
            ids = [values["id"] for values in wanted]
            rows = {row["id"]: row for row in connection.execute(
                select(noun.table).where(noun.table.c.id.in_(ids))).mappings()}
            shown = noun.show(connection, context, [rows[id] for id in ids])
        return Answer({noun.plural: shown} if many else {noun.name: shown[0]}, 201)

    def _wanted(self, context: Context, body: Any) -> Document:
        values = checked(self.noun.attributes, self.noun.name, body, context, "create")
        project = values.pop("tenant_id", None) or context.project_id or ""
        values["project_id"] = values.get("project_id") or project
        if values["project_id"] != context.project_id and not context.is_admin:
            raise InvalidRequest("Specifying 'project_id' or 'tenant_id' other than the authenticated project in "
                                 "request "
                        "requires admin privileges", type="HTTPBadRequest")
        return {"id": str(uuid.uuid4()), **values}

    def update(self, request: Request) -> Answer:
        """Change what is given."""
        noun, context, body, id = self.noun, request.context, request.json(), request.params["id"]
        may_write(context, f"update_{noun.name}")
        if not isinstance(body, dict) or noun.name not in body:
            raise InvalidRequest(f"Unable to find '{noun.name}' in request body", type="HTTPBadRequest")
        with self.database.write() as connection:
            row = self._owned(connection, context, id, "update")
            values = checked(noun.attributes, noun.name, body[noun.name], context, "update")
            assert noun.update, "else there is no such route"
            noun.update(connection, context, row, values)
            shown = noun.show(connection, context, [found(connection, context, noun, id)])
        return Answer({noun.name: shown[0]})

    def delete(self, request: Request) -> Answer:
        """Remove it."""
        may_write(request.context, f"delete_{self.noun.name}")
        with self.database.write() as connection:
            row = self._owned(connection, request.context, request.params["id"], "delete")
            self.noun.delete(connection, request.context, row)
        return Answer(None, 204)

    def _owned(self, connection: Connection, context: Context, id: str, verb: str) -> RowMapping:
        row = found(connection, context, self.noun, id)
        if row["project_id"] != context.project_id and not context.is_admin:
            raise forbidden(f"{verb}_{self.noun.name}", "it belongs to another project, which shares it")
        return row


class Asked:
    """The query of a list: filters, fields, sort_key and sort_dir, limit and marker."""

    OWN = frozenset({"fields", "limit", "marker", "page_reverse", "sort_dir", "sort_key"})

    def __init__(self, noun: Noun, request: Request) -> None:
        self.noun, self.request = noun, request
        self.given: dict[str, list[str]] = {}
        for name, value in request.query:
            self.given.setdefault(name, []).append(value)
        self.limit = self._number("limit")

    def _number(self, name: str) -> int:
        value = self.given.get(name, ["0"])[-1]
        if not value.isdecimal() or len(value) > 9:
            raise InvalidRequest(f"Bad {name} value: '{value[:40]}' is not a number from 0 to 999999999.",
                        type="BadRequest")
        return int(value)

    def conditions(self, context: Context) -> list[ColumnElement[bool]]:
        """Of the filters. Raises ``InvalidRequest`` for one that is not known."""
        found = []
        for name, values in self.given.items():
            if name in self.OWN:
                continue
            if name in self.noun.filters:
                found.append(self.noun.filters[name](context, values))
            elif self._known(name, context) and (column := self._column(name)) is not None:
                found.append(column.in_([_plain(name, column, value) for value in values]))
            else:
                raise InvalidRequest(f"['{name}'] is invalid attribute for filtering", type="HTTPBadRequest")
        return found

    def _known(self, name: str, context: Context) -> bool:
        """Whether *name* is an attribute by which *context* may look: what only admins see, others do not find."""
        return name in ("id", "status", "created_at") or (
            name in self.noun.attributes and (context.is_admin or name not in self.noun.columns
                                              or not self.noun.attributes[name].admin))

    def _column(self, name: str) -> Any:
        name = self.noun.columns.get(name, "project_id" if name == "tenant_id" else name)
        return self.noun.table.c.get(name)

    def paged(self, connection: Connection, query: Any) -> Any:
        """*query* in order, from the marker on."""
        keys, directions = self.given.get("sort_key", []), self.given.get("sort_dir", [])
        order = []
        for number, name in enumerate([*keys, "id"]):
            column = self._column(name)
            if column is None or column.nullable or not self._known(name, self.request.context):
                raise InvalidRequest(f"['{name}'] is invalid attribute for sorting", type="HTTPBadRequest")
            order.append((column, number < len(directions) and directions[number] == "desc"))
        if not keys:
            order = [(self.noun.table.c.created_at, False), *order]
        if "marker" in self.given:
            query = query.where(self._after(connection, order, self.given["marker"][-1]))
        query = query.order_by(*(column.desc() if down else column.asc() for column, down in order))
        return query.limit(self.limit) if self.limit else query

    def _after(self, connection: Connection, order: Sequence[tuple[Any, bool]], marker: str) -> ColumnElement[bool]:
        row = connection.execute(select(*(column for column, _down in order)).where(
            self.noun.table.c.id == marker, self.noun.visible(self.request.context))).first()
        if row is None:
            raise InvalidRequest(f"marker: there is no {self.noun.name} {marker}.", type="BadRequest")
        return beyond(order, row)

    def next(self, last: str) -> str:
        """URL of the next page."""
        query = [(name, value) for name, value in self.request.query if name != "marker"]
        return f"{self.request.base}{self.request.path}?{urlencode([*query, ('marker', last)])}"

    def picked(self, document: Document) -> Document:
        """Only the ``fields`` asked for."""
        fields = self.given.get("fields")
        return {name: document[name] for name in document if name in fields} if fields else document


def _plain(name: str, column: Any, value: str) -> Any:
    """*value* as the column has it."""
    if isinstance(column.type, Boolean):
        if value.lower() not in TRUE + FALSE:
            raise invalid(name, f"'{value}' cannot be converted to boolean")
        return value.lower() in TRUE
    if isinstance(column.type, Integer):
        if not value.isdecimal() or len(value) > 9:
            raise invalid(name, f"'{value}' is not an integer")
        return int(value)
    return value
