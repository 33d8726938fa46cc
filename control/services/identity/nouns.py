# SPDX-License-Identifier: GPL-3.0-or-later
"""The nouns of identity v3 that are made, shown, listed, changed and removed alike, and the check of their fields.

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
from magnetar_core.errors import InvalidRequest, NotFound

from . import passwords, tables

Row = Mapping[str, Any]
#: What a client never sets and an answer never shows.
HIDDEN = frozenset({"epoch", "extra", "created_at", "updated_at", "password", "secret", "follows"})
TRUE, FALSE = ("true", "1", "yes", ""), ("false", "0", "no")


@dataclass(frozen=True, kw_only=True)
class Field:
    """*type* is what JSON makes of it; *fixed*: set once; *choices*: the texts that are allowed."""

    name: str
    type: type = str
    required: bool = False
    nullable: bool = True
    fixed: bool = False
    default: Any = None
    longest: int = 255
    choices: tuple[str, ...] = ()

    def checked(self, value: Any) -> Any:
        """The value as the table keeps it; raises ``InvalidRequest`` naming field and rule."""
        if value is None and self.nullable:
            return None
        if not isinstance(value, self.type) or (self.type is int and isinstance(value, bool)):
            raise InvalidRequest(f"{self.name} must be {WORDS[self.type]}.")
        if isinstance(value, str):
            self._text(value)
        return orjson.dumps(value).decode() if self.type in (dict, list) else value

    def _text(self, value: str) -> None:
        if "\0" in value:
            raise InvalidRequest(f"{self.name} must not hold a NUL character.")
        if len(value) > self.longest:
            raise InvalidRequest(f"{self.name} has {len(value)} characters; at most {self.longest} are allowed.")
        if self.required and not value.strip():
            raise InvalidRequest(f"{self.name} must not be empty.")
        if self.choices and value not in self.choices:
            raise InvalidRequest(f"{self.name} must be one of {', '.join(self.choices)}.")


WORDS = {str: "text", bool: "true or false", dict: "an object", list: "a list", int: "an integer"}
LONG = 1 << 16
NAME = Field(name="name", required=True, nullable=False)
DESCRIPTION = Field(name="description", longest=LONG)
DESCRIBED = Field(name="description", longest=LONG, default="")
ENABLED = Field(name="enabled", type=bool, nullable=False, default=True)
DOMAIN = Field(name="domain_id", longest=64, fixed=True)
OPTIONS = Field(name="options", type=dict, nullable=False, default={})


@dataclass(frozen=True, kw_only=True)
class Noun:
    """*filters*: columns by which a list may be asked; *unset*: fields that are left out of answers when they are null;
    *constant*: what every answer says; *aliases*: further names of fields."""

    name: str
    plural: str
    table: Table
    fields: tuple[Field, ...]
    filters: tuple[str, ...] = ("name",)
    unset: tuple[str, ...] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def values(self, body: Any, making: bool) -> dict[str, Any]:
        """The columns of what a client wants, checked. *making* fills defaults in and asks for what is required."""
        wanted = body.get(self.name) if isinstance(body, dict) else None
        if not isinstance(wanted, dict):
            raise InvalidRequest(f'The body must be an object {{"{self.name}": {{…}}}}.')
        found: dict[str, Any] = {}
        for known in self.fields:
            if known.name in wanted and (making or not known.fixed):
                found[known.name] = known.checked(wanted[known.name])
            elif making and known.required:
                raise InvalidRequest(f"{known.name} is missing; a {self.name} needs it.")
            elif making:
                document = known.type in (dict, list)
                found[known.name] = orjson.dumps(known.default).decode() if document else known.default
        names = {known.name for known in self.fields} | HIDDEN | {"id", "links"} | set(self.constant)
        extra = {key: value for key, value in wanted.items() if key not in names}
        if "\\u0000" in (text := orjson.dumps(extra).decode()):
            raise InvalidRequest("No text may hold a NUL character.")
        return {**found, "extra": text}

    def document(self, row: Row, base: str) -> dict[str, Any]:
        """A row as clients see it; *base* is the URL of /v3."""
        # SQLAlchemy's names of columns are a kind of text that orjson does not take for keys.
        known = {str(key): value for key, value in row.items()
                 if key not in HIDDEN and not (value is None and key in self.unset)}
        for known_field in self.fields:
            if known_field.type in (dict, list) and isinstance(known.get(known_field.name), str):
                known[known_field.name] = orjson.loads(known[known_field.name])
        known.update((alias, row[name]) for alias, name in self.aliases.items())
        return {**orjson.loads(row["extra"]), **self.constant, **known,
                "links": {"self": f"{base}/{self.plural}/{row['id']}"}}

    def where(self, query: Sequence[tuple[str, str]]) -> list[ColumnElement[bool]]:
        """Conditions of a list; parameters that are no filter are passed over, as Keystone does."""
        found = []
        for name, value in query:
            if name in self.filters:
                column = self.table.c[name]
                found.append(column == _boolean(name, value) if column.type.python_type is bool else column == value)
        return found

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


def _boolean(name: str, value: str) -> bool:
    if value.lower() in TRUE:
        return True
    if value.lower() in FALSE:
        return False
    raise InvalidRequest(f"{name} in the query must be true or false.")


def new_row(values: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
    """*values* with an id and times."""
    return {"id": id or uuid.uuid4().hex, "created_at": now(), **values}


def with_password(values: dict[str, Any], body: Any) -> dict[str, Any]:
    """A user's *values* with the hash of the password in *body*; outside of any transaction, because it takes long."""
    password = body["user"].get("password")
    if password is not None:
        values["password"] = passwords.hashed(checked_password(password))
    return values


def checked_password(password: Any) -> str:
    """A password that may be set; raises ``InvalidRequest``."""
    if not isinstance(password, str) or not password or "\0" in password:
        raise InvalidRequest("password must be text that is not empty and holds no NUL character.")
    if len(password) > passwords.LONGEST:
        raise InvalidRequest(f"password has {len(password)} characters; at most {passwords.LONGEST} are allowed.")
    return password


DOMAINS = Noun(name="domain", plural="domains", table=tables.domains, filters=("name", "enabled"),
               fields=(NAME, DESCRIBED, ENABLED), constant={"options": {}, "tags": []})
PROJECTS = Noun(
    name="project", plural="projects", table=tables.projects, filters=("name", "domain_id", "enabled", "parent_id"),
    fields=(Field(name="name", required=True, nullable=False, longest=64), DOMAIN, DESCRIBED, ENABLED,
            Field(name="parent_id", longest=64, fixed=True), Field(name="tags", type=list, nullable=False, default=[]),
            OPTIONS), constant={"is_domain": False})
USERS = Noun(
    name="user", plural="users", table=tables.users, filters=("name", "domain_id", "enabled"),
    fields=(NAME, DOMAIN, DESCRIPTION, ENABLED, Field(name="email", longest=LONG),
            Field(name="default_project_id", longest=64), OPTIONS), constant={"password_expires_at": None},
    unset=("default_project_id", "description", "email"))
GROUPS = Noun(name="group", plural="groups", table=tables.groups, filters=("name", "domain_id"),
              fields=(NAME, DOMAIN, DESCRIBED))
ROLES = Noun(name="role", plural="roles", table=tables.roles, filters=("name", "domain_id"),
             fields=(NAME, DESCRIPTION, DOMAIN, OPTIONS))
REGIONS = Noun(name="region", plural="regions", table=tables.regions, filters=("parent_region_id",),
               fields=(DESCRIBED, Field(name="parent_region_id", longest=64)))
SERVICES = Noun(name="service", plural="services", table=tables.services, filters=("name", "type"),
                fields=(Field(name="name"), Field(name="type", required=True, nullable=False), DESCRIPTION, ENABLED),
                unset=("description",))
ENDPOINTS = Noun(
    name="endpoint", plural="endpoints", table=tables.endpoints, filters=("interface", "service_id", "region_id"),
    fields=(Field(name="service_id", required=True, nullable=False, longest=64),
            Field(name="interface", required=True, nullable=False, choices=("public", "internal", "admin")),
            Field(name="region_id", longest=64), Field(name="url", required=True, nullable=False, longest=LONG),
            ENABLED, Field(name="name")), unset=("name",), aliases={"region": "region_id"})

NOUNS = (DOMAINS, PROJECTS, USERS, GROUPS, ROLES, REGIONS, SERVICES, ENDPOINTS)
