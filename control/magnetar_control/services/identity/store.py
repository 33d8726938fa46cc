# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations on all resources of identity v3: list, show, create, update and delete. They check references,
increase epochs, which ends older tokens, and delete the rows that depend on a deleted resource."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.services import Context
from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, Forbidden, InvalidField, InvalidRequest, NotFound

from . import assignments, passwords, tables
from .hierarchy import project_ids_above
from .resources import DEFAULT, PASSWORD, REGION_ID, IdentityResource, Row, fetch_identity_row, new_row
from .tokens import Tokens

#: A list of texts, defined here because ``list`` is a method below.
Tags = list[str]
#: Maximum depth of projects (Keystone's default of max_project_tree_depth).
LEVELS = 5
#: Checks whether a caller who is no administrator may see a resource, given the ids of targets that the caller has
#: roles on.
SEEN: dict[str, Callable[[Context, Row, list[str]], bool]] = {
    "region": lambda _context, _row, _targets: True,
    "user": lambda context, row, _targets: row["id"] == context.user_id,
    "project": lambda _context, row, targets: row["id"] in targets,
    "domain": lambda context, row, targets: row["id"] in (context.user_domain_id, context.project_domain_id, *targets)}
#: Conditions that prevent the deletion of a resource: columns that refer to it, and the error.
NAMED_BY = {
    "domain": ((tables.projects.c.domain_id, tables.users.c.domain_id, tables.groups.c.domain_id), Conflict,
               "The domain still has projects, users or groups; remove these first."),
    "region": ((tables.endpoints.c.region_id, tables.regions.c.parent_region_id), Conflict,
               "The region still has endpoints or regions below it; remove these first."),
    "project": ((tables.projects.c.parent_id,), Forbidden,
                "The project has projects below it; remove these first.")}


class IdentityStore:
    """Access to the stored resources of one type, such as users. The caller checks permissions, except for ``show``."""

    def __init__(self, resource: IdentityResource, tokens: Tokens) -> None:
        self.resource, self.tokens = resource, tokens

    def list(self, filters: Mapping[str, Any]) -> Documents:
        """Return the resources that match *filters* (value by column), sorted by name."""
        with self.tokens.database.read() as connection:
            return self.resource.documents(connection, **{**self.resource.unasked, **filters})

    def show(self, context: Context, id: str) -> Document:
        """Return the resource *id*. Raises ``NotFound``, also if the caller may not see it."""
        name = self.resource.name
        with self.tokens.database.read() as connection:
            row = self.resource.row(connection, id)
            if not context.is_admin:
                targets = [id for kind in ("project", "domain")
                           for id in assignments.role_target_ids(connection, context.user_id, kind)]
                if not SEEN[name](context, row, targets):
                    raise NotFound(f"Could not find {name}: {row['id']}.")
        return self.resource.document(row)

    def create(self, body: Mapping[str, Any]) -> Document:
        """Create a resource from the request *body*, and return it. Raises ``InvalidField``, ``Conflict``."""
        row = new_row(self._values(body, making=True), self._id(body))
        with self._change(row) as connection:
            _make_region(connection, self.resource, body)
            complete_identity_values(connection, self.resource, row, None)
            connection.execute(insert(self.resource.table).values(row))
            return self.resource.document(self.resource.row(connection, row["id"]))

    def update(self, id: str, body: Mapping[str, Any]) -> Document:
        """Change the fields of a resource that are in the request *body*, and return the resource. A null removes a key
        that is stored in ``extra``. Raises ``InvalidField``, ``NotFound``, ``Conflict``."""
        values = self._values(body, making=False)
        with self._change(values) as connection:
            return self._update(connection, self.resource.row(connection, id), values, body)

    def change_tags(self, id: str, change: Callable[[Tags], Tags]) -> Tags:
        """Set the tags of a resource to the result of *change*, which takes the present tags, and return the new tags.
        This runs in one transaction, so that concurrent changes are not lost. Raises the errors of ``update``."""
        with self.tokens.change() as connection:
            row = self.resource.row(connection, id)
            body = {"tags": change(self.resource.document(row)["tags"])}
            tags: Tags = self._update(connection, row, self.resource.values(body, making=False), body)["tags"]
            return tags

    def _update(self, connection: Connection, row: Row, values: Document, body: Mapping[str, Any]) -> Document:
        self._check_change(row, body)
        _make_region(connection, self.resource, body)
        complete_identity_values(connection, self.resource, values, row)
        self._merge_options(row, values, body)
        extra = {**row["extra"], **values["extra"]}
        values["extra"] = {key: value for key, value in extra.items() if value is not None}
        connection.execute(update(self.resource.table).filter_by(id=row["id"]).values(**values, updated_at=utc_now()))
        return self.resource.document(self.resource.row(connection, row["id"]))

    def delete(self, id: str, enabled_domain: bool = False) -> None:
        """Delete a resource with everything that belongs to it, such as its role assignments. *enabled_domain*: also
        allow the deletion of a domain that is enabled. Raises ``NotFound``, ``Forbidden``, ``Conflict``."""
        name = self.resource.name
        with self.tokens.change() as connection:
            row = self.resource.row(connection, id)
            self.check_mutable(row)
            if name == "domain" and row["enabled"] and not enabled_domain:
                raise Forbidden("An enabled domain cannot be removed; disable it first.")
            self.check_unused(connection, id)
            for role, names in (("target", ("project", "domain")), ("actor", ("user", "group"))):
                if name in names:
                    connection.execute(delete(tables.assignments).filter_by(**{role: name, f"{role}_id": id}))
            connection.execute(delete(self.resource.table).filter_by(id=id))

    def check_mutable(self, row: Row) -> None:
        """Raise ``Forbidden`` if the resource in *row* has the option ``immutable``, so that it must not be deleted."""
        if self._is_immutable(row):
            raise Forbidden(f"The {self.resource.name} {row['id']} is immutable. Set its option immutable to false "
                            "first.")

    def check_unused(self, connection: Connection, id: str) -> None:
        """Raise ``Conflict`` or ``Forbidden`` if other resources refer to the resource *id*, so that it must not be
        deleted."""
        columns, error, why = NAMED_BY.get(self.resource.name, ((), Conflict, ""))
        for column in columns:
            if connection.execute(select(column).where(column == id)).first() is not None:
                raise error(why)

    def _is_immutable(self, row: Row) -> bool:
        return bool(self.resource.document(row).get("options", {}).get("immutable"))

    def _check_change(self, row: Row, body: Mapping[str, Any]) -> None:
        """Check whether the request *body* may change the resource in *row*. Raises ``Forbidden`` if the resource is
        immutable, unless *body* unsets its option ``immutable``. Raises ``InvalidField`` for a change of a field that
        cannot be changed."""
        name, options = self.resource.name, body.get("options") or {}
        if self._is_immutable(row) and (set(body) != {"options"} or options.get("immutable", True)):
            raise Forbidden(f"The {name} {row['id']} is immutable. Set its option immutable to false first, and "
                            "nothing else in that request.")
        for field in ("id", *(field for field, declared in self.resource.fields.items() if declared.fixed)):
            if field in body and body[field] != row[field]:
                raise InvalidField(field, f"of a {name} cannot be changed; it is {row[field]}", body[field])

    def _merge_options(self, row: Row, values: Document, body: Mapping[str, Any]) -> None:
        """If the request *body* has options, set the options in *values* (the columns to write) to the options in
        *row*, changed by the options in *body*. An option that is null in *body* is removed."""
        declared = self.resource.fields.get("options")
        if declared is not None and "options" in body:
            both = {**self.resource.document(row)["options"], **declared.value.check(body["options"], "options")}
            remaining = {name: value for name, value in both.items() if value is not None}
            if "options" in self.resource.table.c:
                values["options"] = remaining
            else:
                values["extra"] = {**values["extra"], "options": remaining}

    @contextlib.contextmanager
    def _change(self, values: Mapping[str, Any]) -> Iterator[Connection]:
        try:
            with self.tokens.change() as connection:
                yield connection
        except IntegrityError as error:
            raise Conflict(f"Conflict occurred attempting to store {self.resource.name} - there is one named "
                           f"{values.get('name')} already.") from error

    def _values(self, body: Mapping[str, Any], making: bool) -> Document:
        """Return the columns for the request *body*, with a hash in place of a user's password. *making*: the request
        creates a resource, so add defaults. Call this outside of transactions, because hashing takes long."""
        values = self.resource.values(body, making)
        if self.resource.name == "user" and body.get("password") is not None:
            values["password"] = passwords.hash_password(PASSWORD.check(body["password"], "password"))
        return values

    def _id(self, body: Mapping[str, Any]) -> str | None:
        """Return the ``id`` in the request *body*; ``None`` without one. Only a region may be created with an id.
        Raises ``InvalidField`` for other resources, and ``Conflict`` if the region exists."""
        if body.get("id") is None:
            return None
        if self.resource.name != "region":
            raise InvalidField("id", f"of a {self.resource.name} is drawn here; leave it out", body["id"])
        id: str = REGION_ID.check(body["id"], "id")
        with self.tokens.database.read() as connection:
            if fetch_identity_row(connection, tables.regions, id=id):
                raise Conflict(f"There is a region {id} already.")
        return id


def _make_region(connection: Connection, resource: IdentityResource, body: Mapping[str, Any]) -> None:
    """If *body* requests a new endpoint, and names its region as old clients do (field ``region`` instead of
    ``region_id``), create this region unless it exists, as Keystone does. Do nothing for other types than endpoints
    (*resource*)."""
    if resource.name == "endpoint" and body.get("region") and body.get("region_id") is None:
        insert_if_absent(connection, tables.regions, **new_row({"description": ""},
                                                               REGION_ID.check(body["region"], "region")))


def _set_domain(connection: Connection, values: Document) -> None:
    """Set the domain of a new project to the domain of the project's parent. *values*: the columns of the new project.
    Raises ``InvalidRequest`` if the parent is unknown or in another domain than the requested one, and ``Forbidden`` if
    projects would be nested too deeply."""
    id = values["parent_id"]
    parent = fetch_identity_row(connection, tables.projects, id=id)
    domain_id = parent["domain_id"] if parent else id
    if parent is None and fetch_identity_row(connection, tables.domains, id=id) is None:
        raise InvalidRequest(f"parent_id is {id}, and there is none of that id.")
    if values["domain_id"] and values["domain_id"] != domain_id:
        raise InvalidRequest(f"domain_id is {values['domain_id']}, and the parent {id} is in domain {domain_id}. Leave "
                             "domain_id out, or choose a parent there.")
    if parent and len(project_ids_above(connection, id)) >= LEVELS:
        raise Forbidden(f"Max hierarchy depth reached for {id} branch: at most {LEVELS} projects lie below each other.")
    values["domain_id"] = domain_id


def complete_identity_values(connection: Connection, resource: IdentityResource, values: Document,
                             row: Row | None) -> None:
    """Complete *values*, the columns to write: check that the objects to which they refer exist, add defaults, and
    increase ``epoch`` if tokens that were issued before must become invalid. *row*: the present row; ``None`` for a new
    resource. Raises ``InvalidRequest``, ``Forbidden``."""
    def check_reference(table: Any, field: str) -> None:
        id = values.get(field)
        if id is not None and fetch_identity_row(connection, table, id=id) is None:
            raise InvalidRequest(f"{field} is {id}, and there is none of that id.")

    if row is None and resource.name == "project" and values["parent_id"]:
        _set_domain(connection, values)
    if row is None and resource.name in ("project", "user", "group"):
        values["domain_id"] = values["domain_id"] or DEFAULT
    for field, table in resource.references.items():
        check_reference(table, field)
    if row is None and resource.name == "project":
        values["parent_id"] = values["parent_id"] or values["domain_id"]
    if resource.name == "region" and row is not None and values.get("parent_region_id") == row["id"]:
        raise InvalidRequest("parent_region_id must be another region.")
    if row is not None and ("password" in values or ("epoch" in row and values.get("enabled") is False)):
        # Tokens from before a password change end; tokens of disabled rows stay invalid after they are enabled again.
        values["epoch"] = row["epoch"] + 1
    if resource.name == "endpoint" and "url" in values:
        values["follows"] = None
