# SPDX-License-Identifier: GPL-3.0-or-later
"""What else holds when a resource is created, changed or removed: references, epochs, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table, delete, select

from magnetar_core.errors import Conflict, Forbidden, InvalidRequest

from . import tables
from .resources import DOMAINS, ENDPOINTS, GROUPS, PROJECTS, REGIONS, ROLES, SERVICES, USERS, Row

#: Id of the domain that is there from the beginning.
DEFAULT = "default"
Values = dict[str, Any]


def _must_exist(connection: Connection, table: Table, id: str | None, field: str) -> None:
    if id is not None and connection.execute(select(table.c.id).where(table.c.id == id)).first() is None:
        raise InvalidRequest(f"{field} is {id}, and there is none of that id.")


def _in_domain(connection: Connection, values: Values, row: Row | None) -> None:
    if row is None:
        values["domain_id"] = values["domain_id"] or DEFAULT
        _must_exist(connection, tables.domains, values["domain_id"], "domain_id")


def _project(connection: Connection, values: Values, row: Row | None) -> None:
    _in_domain(connection, values, row)
    if row is None:
        values["parent_id"] = values["parent_id"] or values["domain_id"]
        if values["parent_id"] != values["domain_id"]:
            _must_exist(connection, tables.projects, values["parent_id"], "parent_id")
    _closing(values, row)


def _user(connection: Connection, values: Values, row: Row | None) -> None:
    _in_domain(connection, values, row)
    _must_exist(connection, tables.projects, values.get("default_project_id"), "default_project_id")
    _closing(values, row)
    if row is not None and "password" in values:
        values["epoch"] = row["epoch"] + 1


def _closing(values: Values, row: Row | None) -> None:
    """Tokens of what is disabled stay invalid when it is enabled again."""
    if row is not None and values.get("enabled") is False:
        values["epoch"] = row["epoch"] + 1


def _role(connection: Connection, values: Values, _row: Row | None) -> None:
    _must_exist(connection, tables.domains, values.get("domain_id"), "domain_id")


def _region(connection: Connection, values: Values, row: Row | None) -> None:
    _must_exist(connection, tables.regions, values.get("parent_region_id"), "parent_region_id")
    if row is not None and values.get("parent_region_id") == row["id"]:
        raise InvalidRequest("parent_region_id must be another region.")


def _endpoint(connection: Connection, values: Values, _row: Row | None) -> None:
    _must_exist(connection, tables.services, values.get("service_id"), "service_id")
    _must_exist(connection, tables.regions, values.get("region_id"), "region_id")
    if "url" in values:
        values["follows"] = None


def _nothing(connection: Connection, values: Values, row: Row | None) -> None:
    """Nothing else holds."""


#: Before a resource is created (no row yet) or changed: check and complete the values.
BEFORE: dict[str, Callable[[Connection, Values, Row | None], None]] = {
    DOMAINS.name: lambda _connection, values, row: _closing(values, row), PROJECTS.name: _project,
    USERS.name: _user, GROUPS.name: _in_domain, ROLES.name: _role, REGIONS.name: _region, SERVICES.name: _nothing,
    ENDPOINTS.name: _endpoint}


def removing(connection: Connection, name: str, row: Row) -> None:
    """Remove what goes with the resource, or raise ``Forbidden`` or 409 when it may not go."""
    if name == DOMAINS.name:
        _leave_domain(connection, row)
    if name == REGIONS.name:
        _leave_region(connection, row)
    given = tables.assignments.c
    if name in ("project", "domain"):
        connection.execute(delete(tables.assignments).where(given.target == name, given.target_id == row["id"]))
    if name in ("user", "group"):
        connection.execute(delete(tables.assignments).where(given.actor == name, given.actor_id == row["id"]))
    if name == PROJECTS.name:
        children = select(tables.projects.c.id).where(tables.projects.c.parent_id == row["id"])
        if connection.execute(children).first() is not None:
            raise Forbidden("The project has projects below it; remove these first.")


def _leave_domain(connection: Connection, row: Row) -> None:
    if row["enabled"]:
        raise Forbidden("An enabled domain cannot be removed; disable it first.")
    for table in (tables.projects, tables.users, tables.groups):
        if connection.execute(select(table.c.id).where(table.c.domain_id == row["id"])).first() is not None:
            raise Conflict("The domain still has projects, users or groups; remove these first.")


def _leave_region(connection: Connection, row: Row) -> None:
    for column in (tables.endpoints.c.region_id, tables.regions.c.parent_region_id):
        if connection.execute(select(column).where(column == row["id"])).first() is not None:
            raise Conflict("The region still has endpoints or regions below it; remove these first.")
