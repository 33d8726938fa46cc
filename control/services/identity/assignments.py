# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of role assignments, groups and implied roles, and who has which role on what because of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, delete, insert, or_, select

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
    direct = connection.execute(select(given.role_id).where(
        given.target == target, given.target_id == target_id, _of_user(user_id))).scalars().all()
    if not direct:
        return []
    below = closure(connection)
    ids = set().union(*(below[role_id] for role_id in direct))
    return names(connection, ids)


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


def give(connection: Connection, **grant: str) -> None:
    """Make an assignment (target, target_id, actor, actor_id, role_id); nothing when it is there."""
    if not has(connection, **grant):
        connection.execute(insert(tables.assignments).values(**grant))


def imply(connection: Connection, prior: str, implied: str) -> None:
    """Let the role *prior* imply another; nothing when it does."""
    found = tables.implications
    if connection.execute(select(found).filter_by(prior_id=prior, implied_id=implied)).first() is None:
        connection.execute(insert(found).values(prior_id=prior, implied_id=implied))


def has(connection: Connection, **grant: str) -> bool:
    """Whether the assignment is there, itself and not by groups or implication."""
    return connection.execute(select(tables.assignments.c.role_id).where(*_equal(grant))).first() is not None


def take(connection: Connection, **grant: str) -> bool:
    """Remove the assignment; whether it was there."""
    return connection.execute(delete(tables.assignments).where(*_equal(grant))).rowcount > 0


def given_roles(connection: Connection, **grant: str) -> list[str]:
    """Ids of the roles that are directly assigned."""
    return list(connection.execute(select(tables.assignments.c.role_id).where(*_equal(grant))).scalars())


def matching(connection: Connection, **equal: str) -> list[Row]:
    """Assignments under conditions, as they were made."""
    given = tables.assignments.c
    found = connection.execute(select(tables.assignments).where(*_equal(equal)).order_by(
        given.target, given.target_id, given.actor, given.actor_id, given.role_id))
    return [dict(row) for row in found.mappings()]


def spread(connection: Connection, rows: Iterable[Row]) -> list[Row]:
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


def _equal(conditions: dict[str, str]) -> list[Any]:
    return [tables.assignments.c[name] == value for name, value in conditions.items()]
