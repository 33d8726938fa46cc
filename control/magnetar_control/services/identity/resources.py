# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources of identity v3 that are created, shown, listed, changed and removed alike, and their fields. A key that
is no field is kept in ``extra`` and shown beside the fields, as Keystone does (its schemas allow more properties)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Table, select

from magnetar_control.services import Documents
from magnetar_control.services.lacking import Lacking
from magnetar_control.store.engine.database import now
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import UNSET, Field
from magnetar_core.values import Boolean, Choices, ListOf, Nullable, Text, Value
from magnetar_core.versions import Version

from . import passwords, tables

Row = Mapping[str, Any]
#: Id of the domain that is there from the beginning.
DEFAULT = "default"
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


class Secret(Text):
    """Text that no answer repeats, also where it is a number or an object by mistake."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if not isinstance(value, str):
            raise InvalidField(path, "must be text; put it in quotes")
        return super().check(value, path, version)


def named(value: Value, default: Any = UNSET, on: str = CHANGING) -> Field:
    """A field that every new one has: given, or the *default*."""
    return Field(value, "", on=on, required=default is UNSET, default=default)


class ResourceOptions(Value):
    """The options of a resource: *known* ones by name. null takes one away."""

    def __init__(self, **known: Value) -> None:
        self.known = known

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """Those given. Raises ``InvalidField`` for one that nothing acts on."""
        if not isinstance(value, dict):
            raise InvalidField(path, "must be an object", value)
        for name in value:
            if name not in self.known:
                raise InvalidField(f"{path}.{name[:80]}", f"is nothing that acts here; there are "
                                   f"{', '.join(sorted(self.known))}")
        return {name: given if given is None else self.known[name].check(given, f"{path}.{name}", version)
                for name, given in value.items()}

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False,
                "properties": {name: value.schema(version) for name, value in self.known.items()}}


LONG = 1 << 16
NAME = named(NotBlank(0, 255))
DESCRIPTION, DESCRIBED = named(Nullable(Text(0, LONG)), None), named(Nullable(Text(0, LONG)), "")
ENABLED = named(Boolean(), True)
REFERENCE = Nullable(Text(0, 64))
DOMAIN = named(REFERENCE, None, on=FIXED)
#: What is immutable neither changes nor goes, until it is immutable no more.
OPTIONS = named(ResourceOptions(immutable=Boolean()), {})
_ONE_METHOD = "people have a password, and no second method such as totp"
#: ``lock_password``: the user cannot change the password. No password expires, and nobody is too long away, so the
#: exemptions from that say what is so anyway.
USER_OPTIONS = named(ResourceOptions(
    lock_password=Boolean(), ignore_password_expiry=Boolean(), ignore_change_password_upon_first_use=Boolean(),
    ignore_user_inactivity=Boolean(),
    ignore_lockout_failure_attempts=Lacking("must be false: no account is locked; who fails too often waits", False),
    multi_factor_auth_enabled=Lacking(f"must be false: {_ONE_METHOD}", False),
    multi_factor_auth_rules=Lacking(f"must be []: {_ONE_METHOD}", [])), {})
#: Texts that are tags.
TAGS = named(ListOf(Text(1, 255, r"[^,/\x00-\x1f\x7f]*", "must have 1 to 255 characters, without comma, slash and "
                         "control characters"), 80, unique=True), [])
PASSWORD = Secret(1, passwords.LONGEST)
#: Clients give regions ids; those of others are drawn.
REGION_ID = Text(1, 64, r"[^/]*", "must have 1 to 64 characters, without slash")


@dataclass(frozen=True, kw_only=True)
class IdentityResource:
    """*filters*: columns by which a list may be asked; *unasked*: what they are where it is not; *unset*: fields that
    are left out of documents when they are null; *constant*: what every document says; *aliases*: further names of
    fields; *references*: the tables to whose rows fields refer; *only*: what may be given with one value or null. A
    field without a column is kept in ``extra``."""

    name: str
    plural: str
    table: Table
    fields: Mapping[str, Field]
    filters: tuple[str, ...] = ("name",)
    unasked: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    constant: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, Table] = field(default_factory=dict)
    only: Mapping[str, Lacking] = field(default_factory=dict)

    def values(self, wanted: Mapping[str, Any], making: bool) -> dict[str, Any]:
        """The columns of what a client wants, checked: lists and objects as JSON text. *making* fills defaults in and
        asks for what is required. Raises ``InvalidField``."""
        found: dict[str, Any] = {}
        wanted = {**{self.aliases[name]: value for name, value in wanted.items() if name in self.aliases}, **wanted}
        for name, one_value in self.only.items():
            one_value.check(wanted.get(name), name)
        for name, known in self.fields.items():
            if name in wanted and (making or not known.fixed):
                value = known.value.check(wanted[name], name)
                if making and isinstance(known.value, ResourceOptions):
                    value = {name: given for name, given in value.items() if given is not None}
            elif making and known.required:
                raise InvalidField(name, f"is missing; a {self.name} needs it")
            elif making:
                value = known.default
            else:
                continue
            found[name] = value
        names = set(self.fields) | HIDDEN | {"id", "links"} | set(self.constant) | set(self.only) | set(self.aliases)
        extra = {key: value for key, value in wanted.items() if key not in names}
        extra |= {name: found.pop(name) for name in [*found] if name not in self.table.c}
        found = {name: orjson.dumps(value).decode() if isinstance(value, list | dict) else value
                 for name, value in found.items()}
        if "\\u0000" in (text := orjson.dumps(extra).decode()):
            raise InvalidRequest("No text may hold a NUL character.")
        return {**found, "extra": text}

    def document(self, row: Mapping[Any, Any]) -> dict[str, Any]:
        """A row as callers get it."""
        # SQLAlchemy's names of columns are a kind of text that orjson does not take for keys.
        known = {str(key): value for key, value in row.items()
                 if key not in HIDDEN and not (value is None and key in self.unset)}
        for name, declared in self.fields.items():
            if isinstance(declared.default, list | dict) and isinstance(known.get(name), str):
                known[name] = orjson.loads(known[name])
        known.update((alias, row[name]) for alias, name in self.aliases.items())
        without = {name: declared.default for name, declared in self.fields.items() if name not in self.table.c}
        return {**without, **orjson.loads(row["extra"]), **self.constant, **known}

    def documents(self, connection: Connection, *conditions: ColumnElement[bool], **filters: Any) -> Documents:
        """Those under all *conditions*, whose columns are as *filters* say, by name."""
        order = [self.table.c.name] if "name" in self.table.c else []
        query = select(self.table).where(*conditions).filter_by(**filters).order_by(*order, self.table.c.id)
        return [self.document(row) for row in connection.execute(query).mappings()]

    def row(self, connection: Connection, id: str, **owner: str) -> Row:
        """The row of *id*, with the *owner* where that is given; raises ``NotFound``."""
        row = one(connection, self.table, id=id, **owner)
        if row is None:
            raise NotFound(f"Could not find {self.name}: {id}.")
        return row


def one(connection: Connection, table: Table, **equal: Any) -> dict[str, Any] | None:
    """The row whose columns are *equal*, where there is one."""
    row = connection.execute(select(table).filter_by(**equal)).mappings().first()
    return dict(row) if row else None


def new_row(values: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
    """*values* with an id and times."""
    return {"id": id or uuid.uuid4().hex, "created_at": now(), **values}


IN_DOMAIN = {"domain_id": tables.domains}
DOMAINS = IdentityResource(
    name="domain", plural="domains", table=tables.domains, filters=("name", "enabled"),
    fields={"name": NAME, "description": DESCRIBED, "enabled": ENABLED, "tags": TAGS, "options": OPTIONS})
PROJECTS = IdentityResource(
    name="project", plural="projects", table=tables.projects, filters=("name", "domain_id", "enabled", "parent_id"),
    fields={"name": named(NotBlank(0, 64)), "domain_id": DOMAIN, "description": DESCRIBED, "enabled": ENABLED,
            "parent_id": DOMAIN, "tags": TAGS, "options": OPTIONS}, constant={"is_domain": False}, references=IN_DOMAIN,
    only={"is_domain": Lacking("must be false: a project is no domain here; make one with POST /v3/domains", False)})
USERS = IdentityResource(
    name="user", plural="users", table=tables.users, filters=("name", "domain_id", "enabled", "default_project_id"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIPTION, "enabled": ENABLED, "email": DESCRIPTION,
            "default_project_id": named(REFERENCE, None), "options": USER_OPTIONS},
    constant={"password_expires_at": None}, unset=("default_project_id", "description", "email"),
    only={"password_expires_at": Lacking("must be null: no password expires"),
          "federated": Lacking("must be []: nobody logs in by another identity provider", [])},
    references={**IN_DOMAIN, "default_project_id": tables.projects})
GROUPS = IdentityResource(
    name="group", plural="groups", table=tables.groups, filters=("name", "domain_id"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIBED}, references=IN_DOMAIN)
ROLES = IdentityResource(
    name="role", plural="roles", table=tables.roles, filters=("name", "domain_id"), references=IN_DOMAIN,
    unasked={"domain_id": None},  # those of no domain
    fields={"name": NAME, "description": DESCRIPTION, "domain_id": DOMAIN, "options": OPTIONS})
REGIONS = IdentityResource(
    name="region", plural="regions", table=tables.regions, filters=("parent_region_id",),
    fields={"description": DESCRIBED, "parent_region_id": named(REFERENCE, None)},
    references={"parent_region_id": tables.regions})
SERVICES = IdentityResource(
    name="service", plural="services", table=tables.services, filters=("name", "type", "enabled"),
    unset=("description",), fields={
        "name": named(Nullable(Text(0, 255)), None), "type": NAME, "description": DESCRIPTION, "enabled": ENABLED})
ENDPOINTS = IdentityResource(
    name="endpoint", plural="endpoints", table=tables.endpoints,
    filters=("interface", "service_id", "region_id", "enabled"),
    fields={"service_id": named(NotBlank(0, 64)), "interface": named(Choices("public", "internal", "admin")),
            "region_id": named(REFERENCE, None), "url": named(NotBlank(0, LONG)), "enabled": ENABLED,
            "name": named(Nullable(Text(0, 255)), None)}, unset=("name",), aliases={"region": "region_id"},
    references={"service_id": tables.services, "region_id": tables.regions})
RESOURCES = (DOMAINS, PROJECTS, USERS, GROUPS, ROLES, REGIONS, SERVICES, ENDPOINTS)
