# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of identity v3 that are created, shown, listed, changed and removed alike, and their fields.

A key that is no field is kept in ``extra`` and shown beside the fields, as Keystone does (its schemas allow
additional properties).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import Connection, Table, and_, select
from sqlalchemy.sql.elements import ColumnElement

from magnetar_control.store.database import now
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import UNSET, Field
from magnetar_core.values import Boolean, Choices, ListOf, MapOf, Nullable, Text, Value
from magnetar_core.versions import Version

from . import passwords, tables

Row = Mapping[str, Any]
#: What a client never sets and an answer never shows.
HIDDEN = frozenset({"epoch", "extra", "created_at", "updated_at", "password", "secret", "follows"})
FIXED, CHANGING = "create", "create update"


class NotBlank(Text):
    """Text that does not consist of blanks."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The text."""
        if not (text := super().check(value, path, version)).strip():
            raise InvalidField(path, "must not be empty")
        return text


def named(value: Value, default: Any = UNSET, on: str = CHANGING) -> Field:
    """A field that every new one has: given, or the *default*."""
    return Field(value, "", on=on, required=default is UNSET, default=default)


LONG = 1 << 16
NAME = named(NotBlank(0, 255))
DESCRIPTION, DESCRIBED = named(Nullable(Text(0, LONG)), None), named(Nullable(Text(0, LONG)), "")
ENABLED = named(Boolean(), True)
REFERENCE = Nullable(Text(0, 64))
DOMAIN = named(REFERENCE, None, on=FIXED)
#: Any JSON object; texts that are tags.
OPTIONS = named(MapOf(Text(), Value(), 1000), {})
TAGS = named(ListOf(Text(1, 255, r"[^,/]*", "must have 1 to 255 characters, without comma and slash"), 80), [])
PASSWORD = Text(1, passwords.LONGEST)
#: Clients give regions ids; those of others are drawn.
REGION_ID = Text(1, 64, r"[^/]*", "must have 1 to 64 characters, without slash")


@dataclass(frozen=True, kw_only=True)
class IdentityResource:
    """*filters*: columns by which a list may be asked; *unset*: fields that are left out of documents when they are
    null; *constant*: what every document says; *aliases*: further names of fields."""

    name: str
    plural: str
    table: Table
    fields: Mapping[str, Field]
    filters: tuple[str, ...] = ("name",)
    unset: tuple[str, ...] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def values(self, wanted: Mapping[str, Any], making: bool) -> dict[str, Any]:
        """The columns of what a client wants, checked. *making* fills defaults in and asks for what is required. Raises
        ``InvalidField``."""
        found: dict[str, Any] = {}
        for name, known in self.fields.items():
            if name in wanted and (making or not known.fixed):
                found[name] = as_column(known.value.check(wanted[name], name))
            elif making and known.required:
                raise InvalidField(name, f"is missing; a {self.name} needs it")
            elif making:
                found[name] = as_column(known.default)
        names = set(self.fields) | HIDDEN | {"id", "links"} | set(self.constant)
        extra = {key: value for key, value in wanted.items() if key not in names}
        if "\\u0000" in (text := orjson.dumps(extra).decode()):
            raise InvalidRequest("No text may hold a NUL character.")
        return {**found, "extra": text}

    def document(self, row: Row) -> dict[str, Any]:
        """A row as callers get it."""
        # SQLAlchemy's names of columns are a kind of text that orjson does not take for keys.
        known = {str(key): value for key, value in row.items()
                 if key not in HIDDEN and not (value is None and key in self.unset)}
        for name, declared in self.fields.items():
            if isinstance(declared.default, list | dict) and isinstance(known.get(name), str):
                known[name] = orjson.loads(known[name])
        known.update((alias, row[name]) for alias, name in self.aliases.items())
        return {**orjson.loads(row["extra"]), **self.constant, **known}

    def where(self, filters: Mapping[str, Any]) -> list[ColumnElement[bool]]:
        """Conditions of a list."""
        return [self.table.c[name] == value for name, value in filters.items()]

    def rows(self, connection: Connection, conditions: Sequence[ColumnElement[bool]] = ()) -> list[Row]:
        """The rows under all *conditions*, by name."""
        order = [self.table.c.name] if "name" in self.table.c else []
        found = connection.execute(select(self.table).where(and_(True, *conditions)).order_by(*order, self.table.c.id))
        return [dict(row) for row in found.mappings()]

    def row(self, connection: Connection, id: str) -> Row:
        """The row of *id*; raises ``NotFound``."""
        found = connection.execute(select(self.table).where(self.table.c.id == id)).mappings().first()
        if found is None:
            raise NotFound(f"Could not find {self.name}: {id}.")
        return dict(found)


def as_column(value: Any) -> Any:
    """Lists and objects as JSON text."""
    return orjson.dumps(value).decode() if isinstance(value, list | dict) else value


def new_row(values: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
    """*values* with an id and times."""
    return {"id": id or uuid.uuid4().hex, "created_at": now(), **values}


DOMAINS = IdentityResource(
    name="domain", plural="domains", table=tables.domains, filters=("name", "enabled"),
    fields={"name": NAME, "description": DESCRIBED, "enabled": ENABLED}, constant={"options": {}, "tags": []})
PROJECTS = IdentityResource(
    name="project", plural="projects", table=tables.projects, filters=("name", "domain_id", "enabled", "parent_id"),
    fields={"name": named(NotBlank(0, 64)), "domain_id": DOMAIN, "description": DESCRIBED, "enabled": ENABLED,
            "parent_id": DOMAIN, "tags": TAGS, "options": OPTIONS}, constant={"is_domain": False})
USERS = IdentityResource(
    name="user", plural="users", table=tables.users, filters=("name", "domain_id", "enabled"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIPTION, "enabled": ENABLED, "email": DESCRIPTION,
            "default_project_id": named(REFERENCE, None), "options": OPTIONS}, constant={"password_expires_at": None},
    unset=("default_project_id", "description", "email"))
GROUPS = IdentityResource(
    name="group", plural="groups", table=tables.groups, filters=("name", "domain_id"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIBED})
ROLES = IdentityResource(
    name="role", plural="roles", table=tables.roles, filters=("name", "domain_id"),
    fields={"name": NAME, "description": DESCRIPTION, "domain_id": DOMAIN, "options": OPTIONS})
REGIONS = IdentityResource(
    name="region", plural="regions", table=tables.regions, filters=("parent_region_id",),
    fields={"description": DESCRIBED, "parent_region_id": named(REFERENCE, None)})
SERVICES = IdentityResource(
    name="service", plural="services", table=tables.services, filters=("name", "type"),
    fields={"name": named(Nullable(Text(0, 255)), None), "type": NAME, "description": DESCRIPTION, "enabled": ENABLED},
    unset=("description",))
ENDPOINTS = IdentityResource(
    name="endpoint", plural="endpoints", table=tables.endpoints, filters=("interface", "service_id", "region_id"),
    fields={"service_id": named(NotBlank(0, 64)), "interface": named(Choices("public", "internal", "admin")),
            "region_id": named(REFERENCE, None), "url": named(NotBlank(0, LONG)), "enabled": ENABLED,
            "name": named(Nullable(Text(0, 255)), None)}, unset=("name",), aliases={"region": "region_id"})

RESOURCES = (DOMAINS, PROJECTS, USERS, GROUPS, ROLES, REGIONS, SERVICES, ENDPOINTS)
