# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles given and taken, on projects, domains and the system, to users and groups; and roles that others imply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, select

from magnetar_control.services import Document, Documents
from magnetar_core.errors import NotFound

from . import assignments, tables
from .resources import DOMAINS, GROUPS, PROJECTS, ROLES, USERS, Row
from .tokens import Tokens

#: Target and actor to their resources; the system is one.
TARGETS = {"project": PROJECTS, "domain": DOMAINS}
ACTORS = {"user": USERS, "group": GROUPS}

#: A role, and those that it implies.
Inference = tuple[Row, list[Row]]
Inferences = list[Inference]


class RoleAssignments:
    """Roles of users and groups. An assignment is named by target, target_id (left out for the system), actor, actor_id
    and role_id; each id is looked up first (``NotFound``)."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def roles(self, **named: str) -> Documents:
        """The roles that are assigned themselves."""
        with self.tokens.database.read() as connection:
            ids = assignments.given_roles(connection, **_found(connection, named))
            rows = ROLES.rows(connection, [tables.roles.c.id.in_(ids)])
        return [ROLES.document(row) for row in rows]

    def check_given(self, **named: str) -> None:
        """Raises ``NotFound`` where the role is not assigned."""
        with self.tokens.database.read() as connection:
            if not assignments.has(connection, **_found(connection, named)):
                raise _missing(named)

    def give(self, **named: str) -> None:
        """Assign a role; nothing when it is."""
        with self.tokens.change() as connection:
            assignments.give(connection, **_found(connection, named))

    def take(self, **named: str) -> None:
        """Take a role away. Raises ``NotFound`` where it is not assigned."""
        with self.tokens.change() as connection:
            if not assignments.take(connection, **_found(connection, named)):
                raise _missing(named)

    def list(self, equal: Mapping[str, str], effective: bool, names: bool) -> tuple[Documents, Mapping[str, Document]]:
        """Assignments whose columns are *equal*, and what the ids in them are called where *names* are asked for.
        *effective*: those to groups are their members', and implied roles are added."""
        with self.tokens.database.read() as connection:
            if effective:
                where = {name: value for name, value in equal.items() if name.startswith("target")}
                rows = [row for row in assignments.spread(connection, assignments.matching(connection, **where))
                        if all(equal.get(name, row[name]) == row[name] for name in ("actor_id", "role_id"))]
            else:
                rows = assignments.matching(connection, **equal)
            return [dict(row) for row in rows], _names(connection) if names else {}

    def inferences(self) -> Inferences:
        """Roles, each with those that it implies itself."""
        with self.tokens.database.read() as connection:
            rows = {row["id"]: row for row in ROLES.rows(connection)}
            pairs = connection.execute(select(tables.implications)).all()
        found: dict[str, set[str]] = {}
        for prior, after in pairs:
            found.setdefault(prior, set()).add(after)
        return [(rows[prior], [rows[after] for after in sorted(implied)]) for prior, implied in sorted(found.items())]

    def implied(self, prior_id: str) -> Inference:
        """One role, and those that it implies itself."""
        with self.tokens.database.read() as connection:
            prior = ROLES.row(connection, prior_id)
            ids = select(tables.implications.c.implied_id).where(tables.implications.c.prior_id == prior["id"])
            return prior, ROLES.rows(connection, [tables.roles.c.id.in_(ids)])

    def imply(self, prior_id: str, implied_id: str) -> tuple[Row, Row]:
        """Let a role imply another; both."""
        with self.tokens.change() as connection:
            prior, implied = ROLES.row(connection, prior_id), ROLES.row(connection, implied_id)
            assignments.imply(connection, prior["id"], implied["id"])
        return prior, implied

    def remove_implied(self, prior_id: str, implied_id: str) -> None:
        """Let a role imply another no more. Raises ``NotFound`` where it does not."""
        found = tables.implications.c
        with self.tokens.change() as connection:
            if not connection.execute(delete(tables.implications).where(
                    found.prior_id == prior_id, found.implied_id == implied_id)).rowcount:
                raise NotFound("The one role does not imply the other.")


def _found(connection: Connection, named: Mapping[str, str]) -> dict[str, str]:
    """The columns of an assignment, each id looked up."""
    target, actor = named["target"], named["actor"]
    found = {"target": target, "actor": actor, "actor_id": ACTORS[actor].row(connection, named["actor_id"])["id"],
             "target_id": TARGETS[target].row(connection, named["target_id"])["id"] if target in TARGETS else
             assignments.ALL}
    return found | ({"role_id": ROLES.row(connection, named["role_id"])["id"]} if "role_id" in named else {})


def _missing(named: Mapping[str, str]) -> NotFound:
    return NotFound(f"The {named['actor']} has not this role on the {named['target']}.")


def _names(connection: Connection) -> dict[str, Document]:
    """Id to name, and domain where there is one, of everything that an assignment names."""
    domains: dict[str, Any] = dict(tuple(row) for row in connection.execute(
        select(tables.domains.c.id, tables.domains.c.name)))
    found: dict[str, Document] = {id: {"name": name} for id, name in domains.items()}
    for table in (tables.projects, tables.users, tables.groups):
        for id, name, domain_id in connection.execute(select(table.c.id, table.c.name, table.c.domain_id)):
            found[id] = {"name": name, "domain": {"id": domain_id, "name": domains[domain_id]}}
    for id, name in connection.execute(select(tables.roles.c.id, tables.roles.c.name)):
        found[id] = {"name": name}
    return found
