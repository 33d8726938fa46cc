# SPDX-License-Identifier: GPL-3.0-or-later
"""Effective roles of users on targets, from role assignments, groups and implied roles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, or_, select

from magnetar_core.document import Documents

from . import tables
from .resources import Row

#: The id of the only target of the kind ``system``.
ALL = "all"


def implied_role_closure(connection: Connection) -> dict[str, set[str]]:
    """Return {id of a role: ids of all roles that it implies, directly or indirectly, including itself} for all roles.
    Cycles of implied roles are allowed."""
    below = defaultdict(set)
    for prior, implied in connection.execute(select(tables.implications.c.prior_id, tables.implications.c.implied_id)):
        below[prior].add(implied)
    closure: dict[str, set[str]] = {}
    for (role_id,) in connection.execute(select(tables.roles.c.id)):
        reached, todo = {role_id}, [role_id]
        while todo:
            new = below[todo.pop()] - reached
            reached |= new
            todo += new
        closure[role_id] = reached
    return closure


def group_ids_query(user_id: str) -> Any:
    """Return a subquery for the ids of a user's groups."""
    return select(tables.members.c.group_id).where(tables.members.c.user_id == user_id)


def _of_user(user_id: str) -> Any:
    """Return the SQL condition for role assignments to the user or to a group of the user."""
    columns = tables.assignments.c
    return or_((columns.actor == "user") & (columns.actor_id == user_id),
               (columns.actor == "group") & columns.actor_id.in_(group_ids_query(user_id)))


def effective_roles(connection: Connection, user_id: str, target: str, target_id: str) -> list[dict[str, str]]:
    """Return the roles {id, name} that a user has on a project, a domain or the system, sorted by name. These are roles
    assigned to the user or the user's groups, and all roles that they imply. *target*: project, domain or system.
    *target_id*: the id of the project or domain."""
    columns = tables.assignments.c
    direct = connection.execute(select(columns.role_id).filter_by(target=target, target_id=target_id).where(
        _of_user(user_id))).scalars().all()
    if not direct:
        return []
    below = implied_role_closure(connection)
    return fetch_role_names(connection, set().union(*(below[role_id] for role_id in direct)))


def keeps_role(connection: Connection, user_id: str, project_id: str, role_name: str,
               removed: Callable[[Mapping[Any, Any]], bool]) -> bool:
    """Return whether a user would still have the role *role_name* on a project, directly, by a group or by an implied
    role, if some role assignments were removed. *removed*: returns whether the assignment in a row is one of these."""
    rows = connection.execute(select(tables.assignments).filter_by(target="project", target_id=project_id).where(
        _of_user(user_id))).mappings().all()
    remaining = [row["role_id"] for row in rows if not removed(row)]
    role_id = connection.execute(select(tables.roles.c.id).filter_by(name=role_name)).scalar()
    below = implied_role_closure(connection)
    return any(role_id in below.get(id, ()) for id in remaining)


def fetch_role_names(connection: Connection, ids: Iterable[str]) -> list[dict[str, str]]:
    """Return the roles {id, name} with these *ids*, sorted by name."""
    role = tables.roles.c
    return [{"id": id, "name": name} for id, name in connection.execute(
        select(role.id, role.name).where(role.id.in_(list(ids))).order_by(role.name))]


def role_target_ids(connection: Connection, user_id: str, target: str) -> list[str]:
    """Return the ids of the projects or domains (*target*: which of the two) on which a user has any role."""
    columns = tables.assignments.c
    return list(connection.execute(select(columns.target_id).where(
        columns.target == target, _of_user(user_id)).distinct()).scalars())


def expand_assignments(connection: Connection, rows: Iterable[Row]) -> Documents:
    """Return the effective role assignments for *rows* of the table of assignments: assignments to groups become
    assignments to the groups' members, and implied roles are added."""
    of_group = defaultdict(list)
    for group_id, user_id in connection.execute(select(tables.members.c.group_id, tables.members.c.user_id)):
        of_group[group_id].append(user_id)
    below, documents = implied_role_closure(connection), {}
    for row in rows:
        for user_id in of_group[row["actor_id"]] if row["actor"] == "group" else [row["actor_id"]]:
            for role_id in sorted(below.get(row["role_id"], ())):
                key = (row["target"], row["target_id"], user_id, role_id)
                documents[key] = dict(zip(("target", "target_id", "actor_id", "role_id"), key, strict=True),
                                      actor="user")
    return [documents[key] for key in sorted(documents)]
