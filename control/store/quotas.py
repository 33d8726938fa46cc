# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits that administrators have set: of projects, of users in projects, and of quota classes (the defaults)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, bindparam, delete, or_, select

from .database import INSERT, advisory_lock
from .tables import quotas

#: The class, and holder, of the defaults.
DEFAULT = "default"
_FOUND = select(quotas).where(quotas.c.project_id.in_(bindparam("holders", expanding=True)))


def of_user(project: str, user: str) -> str:
    """The holder of a user's limits in a project."""
    return f"{project}/{user}"


def of_class(name: str) -> str:
    """The holder of a quota class; only that of the defaults has an effect, as in Nova."""
    return name if name == DEFAULT else f"class/{name}"


def found(connection: Connection, holders: Iterable[str]) -> dict[str, dict[str, int]]:
    """Limits that are set, by holder and resource."""
    limits: dict[str, dict[str, int]] = {}
    for row in connection.execute(_FOUND, {"holders": list(holders)}).all():
        limits.setdefault(row.project_id, {})[row.resource] = row.limit
    return limits


def turn(connection: Connection, whose: str) -> None:
    """Lock the quota of *whose* (a project, or one kind of what somebody has) until the transaction ends, so that
    counts stay true."""
    advisory_lock(connection, "quota", whose)


def put(connection: Connection, holder: str, limits: Mapping[str, int]) -> None:
    """Set limits; others stay."""
    for resource, limit in limits.items():
        query = INSERT[connection.dialect.name](quotas).values(project_id=holder, resource=resource, limit=limit)
        connection.execute(query.on_conflict_do_update(
            index_elements=["project_id", "resource"], set_={"limit": query.excluded.limit}))


def reset(connection: Connection, project: str, user: str | None = None) -> None:
    """Remove the limits of a user in the project, or of the project with all of its users."""
    whose = quotas.c.project_id == of_user(project, user) if user is not None else or_(
        quotas.c.project_id == project, quotas.c.project_id.startswith(project + "/", autoescape=True))
    connection.execute(delete(quotas).where(whose))
