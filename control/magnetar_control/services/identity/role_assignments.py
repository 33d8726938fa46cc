# SPDX-License-Identifier: GPL-3.0-or-later
"""Roles given and taken, on projects, domains and the system, to users and groups; and roles that others imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, delete, select

from magnetar_control.services import Document, Documents
from magnetar_control.store.engine.database import added
from magnetar_core.errors import NotFound

from . import assignments, tables
from .hierarchy import below
from .resources import DOMAINS, GROUPS, PROJECTS, ROLES, USERS, Row, one
from .tokens import Tokens

#: Target and actor to their resources; the system is one.
TARGETS = {"project": PROJECTS, "domain": DOMAINS}
ACTORS = {"user": USERS, "group": GROUPS}

#: A role, and those that it implies.
Inference = tuple[Row, Documents]


class RoleAssignments:
    """Roles of users and groups. An assignment is named by target, target_id (left out for the system), actor, actor_id
    and role_id; each id is looked up first (``NotFound``)."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def roles(self, **named: str) -> Documents:
        """The roles that are assigned themselves."""
        with self.tokens.database.read() as connection:
            ids = select(tables.assignments.c.role_id).filter_by(**_found(connection, named))
            return ROLES.documents(connection, tables.roles.c.id.in_(ids))

    def check_given(self, **named: str) -> None:
        """Raises ``NotFound`` where the role is not assigned."""
        with self.tokens.database.read() as connection:
            if one(connection, tables.assignments, **_found(connection, named)) is None:
                raise _missing(named)

    def give(self, **named: str) -> None:
        """Assign a role; nothing when it is."""
        with self.tokens.change() as connection:
            added(connection, tables.assignments, **_found(connection, named))

    def take(self, **named: str) -> None:
        """Take a role away. Raises ``NotFound`` where it is not assigned."""
        with self.tokens.change() as connection:
            if not connection.execute(delete(tables.assignments).filter_by(**_found(connection, named))).rowcount:
                raise _missing(named)

    def list(self, equal: Mapping[str, str], effective: bool, names: bool,
             subtree: bool = False) -> tuple[Documents, Mapping[str, Document]]:
        """Assignments whose columns are *equal*, and what the ids in them are called where *names* are asked for.
        *effective*: those to groups are their members', and implied roles are added; *subtree*: those on projects below
        the target too."""
        with self.tokens.database.read() as connection:
            where = {name: value for name, value in equal.items() if not effective or name.startswith("target")}
            query = select(tables.assignments).order_by(*tables.assignments.c)
            if subtree:
                query = query.where(tables.assignments.c.target_id.in_(below(connection, where.pop("target_id"))))
            query = query.filter_by(**where)
            rows = [dict(row) for row in connection.execute(query).mappings()]
            if effective:
                rows = [row for row in assignments.spread(connection, rows)
                        if all(equal.get(name, row[name]) == row[name] for name in ("actor_id", "role_id"))]
            return rows, _names(connection) if names else {}

    def inferences(self) -> Iterable[Inference]:
        """Roles, each with those that it implies itself."""
        with self.tokens.database.read() as connection:
            rows = {row["id"]: row for row in ROLES.documents(connection)}
            pairs = connection.execute(select(tables.implications)).all()
        found: dict[str, set[str]] = {}
        for prior, after in pairs:
            found.setdefault(prior, set()).add(after)
        return [(rows[prior], [rows[after] for after in sorted(implied)]) for prior, implied in sorted(found.items())]

    def implied(self, prior_id: str) -> Inference:
        """One role, and those that it implies itself."""
        with self.tokens.database.read() as connection:
            prior = ROLES.row(connection, prior_id)
            ids = select(tables.implications.c.implied_id).filter_by(prior_id=prior_id)
            return prior, ROLES.documents(connection, tables.roles.c.id.in_(ids))

    def imply(self, prior_id: str, implied_id: str) -> tuple[Row, Row]:
        """Let a role imply another; both."""
        with self.tokens.change() as connection:
            prior, implied = ROLES.row(connection, prior_id), ROLES.row(connection, implied_id)
            added(connection, tables.implications, prior_id=prior_id, implied_id=implied_id)
        return prior, implied

    def remove_implied(self, prior_id: str, implied_id: str) -> None:
        """Let a role imply another no more. Raises ``NotFound`` where it does not."""
        query = delete(tables.implications).filter_by(prior_id=prior_id, implied_id=implied_id)
        with self.tokens.change() as connection:
            if not connection.execute(query).rowcount:
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
    found: dict[str, Document] = {id: {"name": name} for table in (tables.domains, tables.roles)
                                  for id, name in connection.execute(select(table.c.id, table.c.name))}
    for table in (tables.projects, tables.users, tables.groups):
        for id, name, domain_id in connection.execute(select(table.c.id, table.c.name, table.c.domain_id)):
            found[id] = {"name": name, "domain": {"id": domain_id, **found[domain_id]}}
    return found
