# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of resources of identity v3 that can be created, shown, listed, updated and deleted, and their fields. A
key that is not a field is stored in ``extra`` and shown next to the fields, as in Keystone (its schemas allow
additional properties)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Table, select

from magnetar_control.services.lacking import Lacking
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Documents
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import UNSET, Field
from magnetar_core.values import Boolean, Choices, ListOf, Nullable, Text, Value
from magnetar_core.versions import Version

from . import passwords, tables

Row = Mapping[str, Any]
#: Id of the domain that always exists.
DEFAULT = "default"
#: Columns that clients never set and responses never show.
HIDDEN = frozenset({"epoch", "extra", "created_at", "updated_at", "password", "secret", "follows"})
FIXED, CHANGING = "create", "create update"


class NotBlank(Text):
    """A field type: text that must contain a character other than a blank."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """Return the text *value*. Raises ``InvalidField`` for a text that is empty or only blanks. *path*: the name of
        the field, for the error.
        """
        if not (text := super().check(value, path, version)).strip():
            raise InvalidField(path, "must not be empty")
        return text


class Secret(Text):
    """A field type: text that error responses never repeat, such as a password, even if a client sends a number or an
    object instead."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if not isinstance(value, str):
            raise InvalidField(path, "must be text; put it in quotes")
        return super().check(value, path, version)


def declare_field(value: Value, default: Any = UNSET, on: str = CHANGING) -> Field:
    """Return a field of a resource with the type *value*. *default*: the field's value in a new resource if the request
    lacks it; without a default the field is required. *on*: ``FIXED`` if it can be set only at creation, ``CHANGING``
    if it can also be changed."""
    return Field(value, "", on=on, required=default is UNSET, default=default)


class ResourceOptions(Value):
    """A field type: the object ``options`` of a resource. *options*: the type of each allowed option. A null in a
    request removes an option."""

    def __init__(self, **options: Value) -> None:
        self.known = options

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """Return the object *value* after checking each option in it. Raises ``InvalidField`` for an option that this
        service does not support. *path*: the name of the field, for the error."""
        if not isinstance(value, dict):
            raise InvalidField(path, "must be an object", value)
        for name in value:
            if name not in self.known:
                raise InvalidField(f"{path}.{name[:80]}", f"is nothing that acts here; there are "
                                   f"{', '.join(sorted(self.known))}")
        return {name: setting if setting is None else self.known[name].check(setting, f"{path}.{name}", version)
                for name, setting in value.items()}

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False,
                "properties": {name: value.schema(version) for name, value in self.known.items()}}


LONG = 1 << 16
NAME = declare_field(NotBlank(0, 255))
DESCRIPTION, DESCRIBED = declare_field(Nullable(Text(0, LONG)), None), declare_field(Nullable(Text(0, LONG)), "")
ENABLED = declare_field(Boolean(), True)
REFERENCE = Nullable(Text(0, 64))
DOMAIN = declare_field(REFERENCE, None, on=FIXED)
#: An immutable resource can be neither changed nor deleted until the option is unset.
OPTIONS = declare_field(ResourceOptions(immutable=Boolean()), {})
_ONE_METHOD = "people have a password, and no second method such as totp"
#: ``lock_password``: the user cannot change the password. Passwords never expire, and inactivity has no effect, so the
#: exemptions from these rules change nothing.
USER_OPTIONS = declare_field(ResourceOptions(
    lock_password=Boolean(), ignore_password_expiry=Boolean(), ignore_change_password_upon_first_use=Boolean(),
    ignore_user_inactivity=Boolean(),
    ignore_lockout_failure_attempts=Lacking("must be false: no account is locked; who fails too often waits", False),
    multi_factor_auth_enabled=Lacking(f"must be false: {_ONE_METHOD}", False),
    multi_factor_auth_rules=Lacking(f"must be []: {_ONE_METHOD}", [])), {})
#: Tags of domains and projects.
TAGS = declare_field(ListOf(Text(1, 255, r"[^,/\x00-\x1f\x7f]*",
                                 "must have 1 to 255 characters, without comma, slash and "
                                 "control characters"), 80, unique=True), [])
PASSWORD = Secret(1, passwords.LONGEST)
#: The id of a region, which clients choose; other resources get random ids.
REGION_ID = Text(1, 64, r"[^/]*", "must have 1 to 64 characters, without slash")


@dataclass(frozen=True, kw_only=True)
class IdentityResource:
    """The definition of a resource type of the Identity API, such as user or project.

    ``filters``: columns by which a list can be filtered. ``unasked``: default values of filters. ``unset``: fields that
    responses omit when they are null. ``constant``: fields with a fixed value in all responses. ``aliases``: other
    accepted names of fields. ``references``: {field: table whose ids the field contains}. ``only``: fields that accept
    a single value or null. A field without a column in ``table`` is stored in the column ``extra``.
    """

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

    def values(self, body: Mapping[str, Any], making: bool) -> dict[str, Any]:
        """Check the *body* of a request, and return the values of the columns. *making*: the request creates a
        resource, so add defaults and demand required fields. Raises ``InvalidField``."""
        columns: dict[str, Any] = {}
        body = {**{self.aliases[name]: value for name, value in body.items() if name in self.aliases}, **body}
        for name, one_value in self.only.items():
            one_value.check(body.get(name), name)
        for name, declared in self.fields.items():
            if name in body and (making or not declared.fixed):
                value = declared.value.check(body[name], name)
                if making and isinstance(declared.value, ResourceOptions):
                    value = {name: setting for name, setting in value.items() if setting is not None}
            elif making and declared.required:
                raise InvalidField(name, f"is missing; a {self.name} needs it")
            elif making:
                value = declared.default
            else:
                continue
            columns[name] = value
        names = set(self.fields) | HIDDEN | {"id", "links"} | set(self.constant) | set(self.only) | set(self.aliases)
        extra = {key: value for key, value in body.items() if key not in names}
        extra |= {name: columns.pop(name) for name in [*columns] if name not in self.table.c}
        if b"\\u0000" in orjson.dumps(extra):
            raise InvalidRequest("No text may hold a NUL character.")
        return {**columns, "extra": extra}

    def document(self, row: Mapping[Any, Any]) -> dict[str, Any]:
        """Return a row of the table as the object in API responses."""
        # orjson does not accept SQLAlchemy's column names as keys, because they are a subclass of str.
        shown = {str(key): value for key, value in row.items()
                 if key not in HIDDEN and not (value is None and key in self.unset)}
        shown.update((alias, row[name]) for alias, name in self.aliases.items())
        without = {name: declared.default for name, declared in self.fields.items() if name not in self.table.c}
        return {**without, **row["extra"], **self.constant, **shown}

    def rows(self, connection: Connection, *conditions: ColumnElement[bool], **filters: Any) -> list[Row]:
        """Return the rows that match all SQL *conditions* and *filters* (value by column), sorted by name."""
        order = [self.table.c.name] if "name" in self.table.c else []
        query = select(self.table).where(*conditions).filter_by(**filters).order_by(*order, self.table.c.id)
        return [dict(row) for row in connection.execute(query).mappings()]

    def documents(self, connection: Connection, *conditions: ColumnElement[bool], **filters: Any) -> Documents:
        """Return the resources that match all SQL *conditions* and *filters* (value by column) as objects for API
        responses, sorted by name."""
        return [self.document(row) for row in self.rows(connection, *conditions, **filters)]

    def row(self, connection: Connection, id: str, **owner: str) -> Row:
        """Return the row with this *id*. Raises ``NotFound``. *owner*: values of columns; a row with another value in
        one of these columns counts as not found."""
        row = fetch_identity_row(connection, self.table, id=id, **owner)
        if row is None:
            raise NotFound(f"Could not find {self.name}: {id}.")
        return row


def fetch_identity_row(connection: Connection, table: Table, **equal: Any) -> dict[str, Any] | None:
    """Return the first row of *table* whose columns have the values *equal*; ``None`` if there is none."""
    row = connection.execute(select(table).filter_by(**equal)).mappings().first()
    return dict(row) if row else None


def new_row(values: Mapping[str, Any], id: str | None = None) -> dict[str, Any]:
    """Return the columns *values* with an id and the time of creation added. *id*: random by default."""
    return {"id": id or uuid.uuid4().hex, "created_at": utc_now(), **values}


IN_DOMAIN = {"domain_id": tables.domains}
DOMAINS = IdentityResource(
    name="domain", plural="domains", table=tables.domains, filters=("name", "enabled"),
    fields={"name": NAME, "description": DESCRIBED, "enabled": ENABLED, "tags": TAGS, "options": OPTIONS})
PROJECTS = IdentityResource(
    name="project", plural="projects", table=tables.projects, filters=("name", "domain_id", "enabled", "parent_id"),
    fields={"name": declare_field(NotBlank(0, 64)), "domain_id": DOMAIN, "description": DESCRIBED, "enabled": ENABLED,
            "parent_id": DOMAIN, "tags": TAGS, "options": OPTIONS}, constant={"is_domain": False}, references=IN_DOMAIN,
    only={"is_domain": Lacking("must be false: a project is no domain here; make one with POST /v3/domains", False)})
USERS = IdentityResource(
    name="user", plural="users", table=tables.users, filters=("name", "domain_id", "enabled", "default_project_id"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIPTION, "enabled": ENABLED, "email": DESCRIPTION,
            "default_project_id": declare_field(REFERENCE, None), "options": USER_OPTIONS},
    constant={"password_expires_at": None}, unset=("default_project_id", "description", "email"),
    only={"password_expires_at": Lacking("must be null: no password expires"),
          "federated": Lacking("must be []: nobody logs in by another identity provider", [])},
    references={**IN_DOMAIN, "default_project_id": tables.projects})
GROUPS = IdentityResource(
    name="group", plural="groups", table=tables.groups, filters=("name", "domain_id"),
    fields={"name": NAME, "domain_id": DOMAIN, "description": DESCRIBED}, references=IN_DOMAIN)
ROLES = IdentityResource(
    name="role", plural="roles", table=tables.roles, filters=("name", "domain_id"), references=IN_DOMAIN,
    unasked={"domain_id": None},  # roles without a domain
    fields={"name": NAME, "description": DESCRIPTION, "domain_id": DOMAIN, "options": OPTIONS})
REGIONS = IdentityResource(
    name="region", plural="regions", table=tables.regions, filters=("parent_region_id",),
    fields={"description": DESCRIBED, "parent_region_id": declare_field(REFERENCE, None)},
    references={"parent_region_id": tables.regions})
SERVICES = IdentityResource(
    name="service", plural="services", table=tables.services, filters=("name", "type", "enabled"),
    unset=("description",), fields={
        "name": declare_field(Nullable(Text(0, 255)), None), "type": NAME, "description": DESCRIPTION,
        "enabled": ENABLED})
ENDPOINTS = IdentityResource(
    name="endpoint", plural="endpoints", table=tables.endpoints,
    filters=("interface", "service_id", "region_id", "enabled"),
    fields={"service_id": declare_field(NotBlank(0, 64)), "interface": declare_field(Choices("public", "internal",
                                                                                             "admin")),
            "region_id": declare_field(REFERENCE, None), "url": declare_field(NotBlank(0, LONG)), "enabled": ENABLED,
            "name": declare_field(Nullable(Text(0, 255)), None)}, unset=("name",), aliases={"region": "region_id"},
    references={"service_id": tables.services, "region_id": tables.regions})
RESOURCES = (DOMAINS, PROJECTS, USERS, GROUPS, ROLES, REGIONS, SERVICES, ENDPOINTS)
