# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has which role on what because of role assignments, groups and implied roles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, or_, select

from magnetar_control.services import Documents

from . import tables
from .resources import Row

#: The id of the only thing of target ``system``.
ALL = "all"


def closure(connection: Connection) -> dict[str, set[str]]:
    """Role id to the ids of all roles that it brings along, itself included; cycles do no harm."""
    below = defaultdict(set)
    for prior, after in connection.execute(select(tables.implications.c.prior_id, tables.implications.c.implied_id)):
        below[prior].add(after)
    found: dict[str, set[str]] = {}
    for (role_id,) in connection.execute(select(tables.roles.c.id)):
        reached, todo = {role_id}, [role_id]
        while todo:
            new = below[todo.pop()] - reached
            reached |= new
            todo += new
        found[role_id] = reached
    return found


def groups_of(user_id: str) -> Any:
    """A subquery: the ids of a user's groups."""
    return select(tables.members.c.group_id).where(tables.members.c.user_id == user_id)


def _of_user(user_id: str) -> Any:
    """The condition of assignments to the user or to one of the user's groups."""
    given = tables.assignments.c
    return or_((given.actor == "user") & (given.actor_id == user_id),
               (given.actor == "group") & given.actor_id.in_(groups_of(user_id)))


def effective(connection: Connection, user_id: str, target: str, target_id: str) -> list[dict[str, str]]:
    """The roles {id, name} that a user has there, by name: own, of groups, implied."""
    given = tables.assignments.c
    direct = connection.execute(select(given.role_id).filter_by(target=target, target_id=target_id).where(
        _of_user(user_id))).scalars().all()
    if not direct:
        return []
    below = closure(connection)
    return names(connection, set().union(*(below[role_id] for role_id in direct)))


def names(connection: Connection, ids: Iterable[str]) -> list[dict[str, str]]:
    """Roles {id, name} of *ids*, by name."""
    role = tables.roles.c
    return [{"id": id, "name": name} for id, name in connection.execute(
        select(role.id, role.name).where(role.id.in_(list(ids))).order_by(role.name))]


def targets_of(connection: Connection, user_id: str, target: str) -> list[str]:
    """Ids of the projects or domains on which a user has any role."""
    given = tables.assignments.c
    return list(connection.execute(select(given.target_id).where(
        given.target == target, _of_user(user_id)).distinct()).scalars())


def spread(connection: Connection, rows: Iterable[Row]) -> Documents:
    """Effective assignments: those to groups become their members', and implied roles are added."""
    of_group = defaultdict(list)
    for group_id, user_id in connection.execute(select(tables.members.c.group_id, tables.members.c.user_id)):
        of_group[group_id].append(user_id)
    below, found = closure(connection), {}
    for row in rows:
        for user_id in of_group[row["actor_id"]] if row["actor"] == "group" else [row["actor_id"]]:
            for role_id in sorted(below.get(row["role_id"], ())):
                key = (row["target"], row["target_id"], user_id, role_id)
                found[key] = dict(zip(("target", "target_id", "actor_id", "role_id"), key, strict=True), actor="user")
    return [found[key] for key in sorted(found)]
