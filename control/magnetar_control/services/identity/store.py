# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be done with all resources of identity v3: list, show, create, change and remove them; and what else holds
then: references, epochs, and what goes with a resource."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.engine.database import added, now
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NotFound

from . import assignments, passwords, tables
from .hierarchy import above
from .resources import DEFAULT, PASSWORD, REGION_ID, IdentityResource, Row, new_row, one
from .tokens import Tokens

#: Texts; ``list`` is a method below.
Tags = list[str]
#: So many projects lie below each other at most (Keystone's default of max_project_tree_depth).
LEVELS = 5
#: Who may see one without being an administrator, given the ids of what they have roles on.
SEEN: dict[str, Callable[[Context, Row, list[str]], bool]] = {
    "region": lambda _context, _row, _targets: True,
    "user": lambda context, row, _targets: row["id"] == context.user_id,
    "project": lambda _context, row, targets: row["id"] in targets,
    "domain": lambda context, row, targets: row["id"] in (context.user_domain_id, context.project_domain_id, *targets)}
#: What keeps a resource from going: columns that name it, and the error.
NAMED_BY = {
    "domain": ((tables.projects.c.domain_id, tables.users.c.domain_id, tables.groups.c.domain_id), Conflict,
               "The domain still has projects, users or groups; remove these first."),
    "region": ((tables.endpoints.c.region_id, tables.regions.c.parent_region_id), Conflict,
               "The region still has endpoints or regions below it; remove these first."),
    "project": ((tables.projects.c.parent_id,), Forbidden,
                "The project has projects below it; remove these first.")}


class IdentityStore:
    """The resources of one kind. What only administrators may do, the face sees to."""

    def __init__(self, resource: IdentityResource, tokens: Tokens) -> None:
        self.resource, self.tokens = resource, tokens

    def list(self, filters: Mapping[str, Any]) -> Documents:
        """Those whose columns are as *filters* say, by name."""
        with self.tokens.database.read() as connection:
            return self.resource.documents(connection, **{**self.resource.unasked, **filters})

    def show(self, context: Context, id: str) -> Document:
        """One. Raises ``NotFound``, also where the caller may not know of it."""
        name = self.resource.name
        with self.tokens.database.read() as connection:
            row = self.resource.row(connection, id)
            if not context.is_admin:
                targets = [id for kind in ("project", "domain")
                           for id in assignments.targets_of(connection, context.user_id, kind)]
                if not SEEN[name](context, row, targets):
                    raise NotFound(f"Could not find {name}: {row['id']}.")
        return self.resource.document(row)

    def create(self, wanted: Mapping[str, Any]) -> Document:
        """A new one. Raises ``InvalidField``, ``Conflict``."""
        row = new_row(self._values(wanted, making=True), self._id(wanted))
        with self._change(row) as connection:
            _make_region(connection, self.resource, wanted)
            complete(connection, self.resource, row, None)
            connection.execute(insert(self.resource.table).values(row))
            return self.resource.document(self.resource.row(connection, row["id"]))

    def update(self, id: str, wanted: Mapping[str, Any]) -> Document:
        """Change what is given; a further key that is given as null goes. Raises ``InvalidField``, ``NotFound``,
        ``Conflict``."""
        values = self._values(wanted, making=False)
        with self._change(values) as connection:
            return self._update(connection, self.resource.row(connection, id), values, wanted)

    def change_tags(self, id: str, change: Callable[[Tags], Tags]) -> Tags:
        """Let the tags be what *change* makes of them; two at once do not undo each other. Raises as ``update``."""
        with self.tokens.change() as connection:
            row = self.resource.row(connection, id)
            wanted = {"tags": change(self.resource.document(row)["tags"])}
            found: Tags = self._update(connection, row, self.resource.values(wanted, making=False), wanted)["tags"]
            return found

    def _update(self, connection: Connection, row: Row, values: Document, wanted: Mapping[str, Any]) -> Document:
        self._check_change(row, wanted)
        _make_region(connection, self.resource, wanted)
        complete(connection, self.resource, values, row)
        self._merge_options(row, values, wanted)
        extra = orjson.loads(row["extra"]) | orjson.loads(values["extra"])
        values["extra"] = orjson.dumps({key: value for key, value in extra.items() if value is not None}).decode()
        connection.execute(update(self.resource.table).filter_by(id=row["id"]).values(**values, updated_at=now()))
        return self.resource.document(self.resource.row(connection, row["id"]))

    def delete(self, id: str) -> None:
        """Remove it, with what belongs to it. Raises ``NotFound``, ``Forbidden``, ``Conflict``."""
        name = self.resource.name
        with self.tokens.change() as connection:
            row = self.resource.row(connection, id)
            if self._is_immutable(row):
                raise Forbidden(f"The {name} {id} is immutable. Set its option immutable to false first.")
            if name == "domain" and row["enabled"]:
                raise Forbidden("An enabled domain cannot be removed; disable it first.")
            columns, error, why = NAMED_BY.get(name, ((), Conflict, ""))
            for column in columns:
                if connection.execute(select(column).where(column == id)).first() is not None:
                    raise error(why)
            for role, names in (("target", ("project", "domain")), ("actor", ("user", "group"))):
                if name in names:
                    connection.execute(delete(tables.assignments).filter_by(**{role: name, f"{role}_id": id}))
            connection.execute(delete(self.resource.table).filter_by(id=id))

    def _is_immutable(self, row: Row) -> bool:
        return bool(self.resource.document(row).get("options", {}).get("immutable"))

    def _check_change(self, row: Row, wanted: Mapping[str, Any]) -> None:
        """Raises ``Forbidden`` where it is immutable and stays so, ``InvalidField`` for what never changes."""
        name, options = self.resource.name, wanted.get("options") or {}
        if self._is_immutable(row) and (set(wanted) != {"options"} or options.get("immutable", True)):
            raise Forbidden(f"The {name} {row['id']} is immutable. Set its option immutable to false first, and "
                            "nothing else in that request.")
        for field in ("id", *(field for field, known in self.resource.fields.items() if known.fixed)):
            if field in wanted and wanted[field] != row[field]:
                raise InvalidField(field, f"of a {name} cannot be changed; it is {row[field]}", wanted[field])

    def _merge_options(self, row: Row, values: Document, wanted: Mapping[str, Any]) -> None:
        """Options that are not given stay; those given as null go."""
        known = self.resource.fields.get("options")
        if known is not None and "options" in wanted:
            both = {**self.resource.document(row)["options"], **known.value.check(wanted["options"], "options")}
            left = {name: value for name, value in both.items() if value is not None}
            if "options" in self.resource.table.c:
                values["options"] = orjson.dumps(left).decode()
            else:
                values["extra"] = orjson.dumps({**orjson.loads(values["extra"]), "options": left}).decode()

    @contextlib.contextmanager
    def _change(self, values: Mapping[str, Any]) -> Iterator[Connection]:
        try:
            with self.tokens.change() as connection:
                yield connection
        except IntegrityError as error:
            raise Conflict(f"Conflict occurred attempting to store {self.resource.name} - there is one named "
                           f"{values.get('name')} already.") from error

    def _values(self, wanted: Mapping[str, Any], making: bool) -> Document:
        """The columns; a user's with the hash of the password, outside of any transaction, because it takes long."""
        values = self.resource.values(wanted, making)
        if self.resource.name == "user" and wanted.get("password") is not None:
            values["password"] = passwords.hashed(PASSWORD.check(wanted["password"], "password"))
        return values

    def _id(self, wanted: Mapping[str, Any]) -> str | None:
        """Clients name regions; ids of the others are drawn. Raises ``InvalidField``, ``Conflict``."""
        if wanted.get("id") is None:
            return None
        if self.resource.name != "region":
            raise InvalidField("id", f"of a {self.resource.name} is drawn here; leave it out", wanted["id"])
        id: str = REGION_ID.check(wanted["id"], "id")
        with self.tokens.database.read() as connection:
            if one(connection, tables.regions, id=id):
                raise Conflict(f"There is a region {id} already.")
        return id


def _make_region(connection: Connection, resource: IdentityResource, wanted: Mapping[str, Any]) -> None:
    """Endpoints that old clients make name the ``region``, which is made where it is not there, as in Keystone."""
    if resource.name == "endpoint" and wanted.get("region") and wanted.get("region_id") is None:
        added(connection, tables.regions, **new_row({"description": ""}, REGION_ID.check(wanted["region"], "region")))


def _place(connection: Connection, values: Document) -> None:
    """The domain of a new project: that of its parent, where it has one. Raises ``InvalidRequest``, ``Forbidden``."""
    id = values["parent_id"]
    parent = one(connection, tables.projects, id=id)
    domain_id = parent["domain_id"] if parent else id
    if parent is None and one(connection, tables.domains, id=id) is None:
        raise InvalidRequest(f"parent_id is {id}, and there is none of that id.")
    if values["domain_id"] and values["domain_id"] != domain_id:
        raise InvalidRequest(f"domain_id is {values['domain_id']}, and the parent {id} is in domain {domain_id}. Leave "
                             "domain_id out, or choose a parent there.")
    if parent and len(above(connection, id)) >= LEVELS:
        raise Forbidden(f"Max hierarchy depth reached for {id} branch: at most {LEVELS} projects lie below each other.")
    values["domain_id"] = domain_id


def complete(connection: Connection, resource: IdentityResource, values: Document, row: Row | None) -> None:
    """Check and complete the values of a resource that is created (no *row* yet) or changed."""
    def check_reference(table: Any, field: str) -> None:
        id = values.get(field)
        if id is not None and one(connection, table, id=id) is None:
            raise InvalidRequest(f"{field} is {id}, and there is none of that id.")

    if row is None and resource.name == "project" and values["parent_id"]:
        _place(connection, values)
    if row is None and resource.name in ("project", "user", "group"):
        values["domain_id"] = values["domain_id"] or DEFAULT
    for field, table in resource.references.items():
        check_reference(table, field)
    if row is None and resource.name == "project":
        values["parent_id"] = values["parent_id"] or values["domain_id"]
    if resource.name == "region" and row is not None and values.get("parent_region_id") == row["id"]:
        raise InvalidRequest("parent_region_id must be another region.")
    if row is not None and ("password" in values or ("epoch" in row and values.get("enabled") is False)):
        # Tokens by an older password end; those of what is disabled stay invalid when it is enabled again.
        values["epoch"] = row["epoch"] + 1
    if resource.name == "endpoint" and "url" in values:
        values["follows"] = None
