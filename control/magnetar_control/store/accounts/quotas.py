# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of all services: limits that administrators have set, of projects, of users in projects, and of quota classes
(the defaults); and whether there is room within one, which stays true until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from sqlalchemy import Connection, bindparam, delete, or_, select

from magnetar_control.store.engine.database import INSERT, advisory_lock
from magnetar_control.store.engine.tables import quotas

#: The class, and holder, of the defaults.
DEFAULT = "default"
#: Limits, or what is used of them, by resource; -1 is no limit.
Limits = dict[str, int]
_FOUND = select(quotas).where(quotas.c.project_id.in_(bindparam("holders", expanding=True)))


def of_user(project: str, user: str) -> str:
    """The holder of a user's limits in a project."""
    return f"{project}/{user}"


def of_class(name: str) -> str:
    """The holder of a quota class; only that of the defaults has an effect, as in Nova."""
    return name if name == DEFAULT else f"class/{name}"


def found(connection: Connection, holders: Iterable[str]) -> dict[str, Limits]:
    """Limits that are set, by holder and resource."""
    limits: dict[str, Limits] = {}
    for row in connection.execute(_FOUND, {"holders": list(holders)}).all():
        limits.setdefault(row.project_id, {})[row.resource] = row.limit
    return limits


def merged(defaults: Mapping[str, int], given: Mapping[str, Mapping[str, int]], *holders: str) -> Limits:
    """The limit of each resource of *defaults*: that of the first of *holders* that has one in *given* (of ``found``),
    else the default."""
    limits = dict(defaults)
    for holder in reversed(holders):
        limits.update((name, limit) for name, limit in given.get(holder, {}).items() if name in limits)
    return limits


def limits(connection: Connection, defaults: Mapping[str, int], *holders: str) -> Limits:
    """As ``merged``, of what is set. One query."""
    return merged(defaults, found(connection, holders), *holders)


def holders(connection: Connection, resources: Collection[str]) -> list[str]:
    """The projects that have limits of their own of any of *resources*, in order."""
    query = select(quotas.c.project_id).where(quotas.c.resource.in_(resources), quotas.c.project_id != DEFAULT,
                                              ~quotas.c.project_id.contains("/"))
    return list(connection.execute(query.distinct().order_by(quotas.c.project_id)).scalars())


def turn(connection: Connection, whose: str) -> None:
    """Lock the quota of *whose* (a project, or one kind of what somebody has) until the transaction ends, so that
    counts stay true."""
    advisory_lock(connection, "quota", whose)


def has_room(connection: Connection, limit: int, count: Callable[[], int], whose: str | None) -> bool:
    """Whether there is room for one more beside what *count* tells; with *whose* until the transaction ends: who wants
    another of that waits."""
    if limit < 0:
        return True
    if whose is not None:
        turn(connection, whose)
    return count() < limit


def put(connection: Connection, holder: str, limits: Mapping[str, int]) -> None:
    """Set limits; others stay."""
    for resource, limit in limits.items():
        query = INSERT[connection.dialect.name](quotas).values(project_id=holder, resource=resource, limit=limit)
        connection.execute(query.on_conflict_do_update(
            index_elements=["project_id", "resource"], set_={"limit": query.excluded.limit}))


def reset(connection: Connection, resources: Collection[str], project: str, user: str | None = None) -> None:
    """Remove the limits on *resources* of a user in the project, or of the project with all of its users."""
    whose = quotas.c.project_id == of_user(project, user) if user is not None else or_(
        quotas.c.project_id == project, quotas.c.project_id.startswith(project + "/", autoescape=True))
    connection.execute(delete(quotas).where(whose, quotas.c.resource.in_(resources)))
