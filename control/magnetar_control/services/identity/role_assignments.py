# SPDX-License-Identifier: GPL-3.0-or-later
"""Role assignments to users and groups on projects, domains and the system; and implied roles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, select

from magnetar_control.store.engine.database import insert_if_absent
from magnetar_core.document import Document, Documents
from magnetar_core.errors import NotFound

from . import assignments, tables
from .hierarchy import projects_below
from .lookup import FEW
from .resources import DOMAINS, GROUPS, PROJECTS, ROLES, USERS, Row, fetch_identity_row
from .tokens import Tokens

#: Kinds of targets and actors to their resources. The system has none.
TARGETS = {"project": PROJECTS, "domain": DOMAINS}
ACTORS = {"user": USERS, "group": GROUPS}

#: A role, and the roles that it implies.
Inference = tuple[Row, Documents]


class RoleAssignments:
    """Role assignments to users and groups on projects, domains and the system. The keyword arguments *named* identify
    an assignment: target (project, domain or system), target_id (not for the system), actor (user or group), actor_id,
    role_id. All methods raise ``NotFound`` for an unknown id."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def roles(self, **named: str) -> Documents:
        """Return the roles that are directly assigned to an actor on a target. *named*: target (project, domain or
        system), target_id, actor (user or group), actor_id."""
        with self.tokens.database.read() as connection:
            ids = select(tables.assignments.c.role_id).filter_by(**_assignment_columns(connection, named))
            return ROLES.documents(connection, tables.roles.c.id.in_(ids))

    def check_assigned(self, **named: str) -> None:
        """Raise ``NotFound`` unless the assignment exists. *named*: target (project, domain or system), target_id,
        actor (user or group), actor_id, role_id."""
        with self.tokens.database.read() as connection:
            if fetch_identity_row(connection, tables.assignments, **_assignment_columns(connection, named)) is None:
                raise _missing(named)

    def assign_role(self, **named: str) -> None:
        """Create a role assignment; do nothing if it exists. *named*: target (project, domain or system), target_id,
        actor (user or group), actor_id, role_id."""
        with self.tokens.change() as connection:
            insert_if_absent(connection, tables.assignments, **_assignment_columns(connection, named))

    def unassign_role(self, **named: str) -> None:
        """Delete a role assignment. *named*: target (project, domain or system), target_id, actor (user or group),
        actor_id, role_id. Raises ``NotFound`` if the assignment does not exist."""
        with self.tokens.change() as connection:
            if not connection.execute(delete(tables.assignments).filter_by(**_assignment_columns(connection,
                                                                                                 named))).rowcount:
                raise _missing(named)

    def list(self, equal: Mapping[str, str], effective: bool, names: bool,
             subtree: bool = False) -> tuple[Documents, Mapping[str, Document]]:
        """Return (role assignments whose columns have the values *equal*, {id: object} of the roles, users and other
        objects in these assignments).

        *names*: if false, the mapping of objects is empty. *effective*: replace assignments to groups by assignments to
        their members, and add implied roles. *subtree*: include assignments on projects below the target project.
        """
        with self.tokens.database.read() as connection:
            where = {name: value for name, value in equal.items() if not effective or name.startswith("target")}
            query = select(tables.assignments).order_by(*tables.assignments.c)
            if subtree:
                query = query.where(tables.assignments.c.target_id.in_(projects_below(connection,
                                                                                      where.pop("target_id"))))
            query = query.filter_by(**where)
            rows = [dict(row) for row in connection.execute(query).mappings()]
            if effective:
                rows = [row for row in assignments.expand_assignments(connection, rows)
                        if all(equal.get(name, row[name]) == row[name] for name in ("actor_id", "role_id"))]
            ids = {row[column] for row in rows for column in ("target_id", "actor_id", "role_id")} if names else set()
            return rows, _names(connection, ids if len(ids) <= FEW else None) if names else {}

    def inferences(self) -> Iterable[Inference]:
        """Return (role, roles that it directly implies) for each role that implies others."""
        with self.tokens.database.read() as connection:
            rows = {row["id"]: row for row in ROLES.documents(connection)}
            pairs = connection.execute(select(tables.implications)).all()
        implied_by_prior: dict[str, set[str]] = {}
        for prior, implied_id in pairs:
            implied_by_prior.setdefault(prior, set()).add(implied_id)
        return [(rows[prior], [rows[implied_id] for implied_id in sorted(implied)]) for prior,
                implied in sorted(implied_by_prior.items())]

    def implied(self, prior_id: str) -> Inference:
        """Return (the role *prior_id*, the roles that it directly implies)."""
        with self.tokens.database.read() as connection:
            prior = ROLES.row(connection, prior_id)
            ids = select(tables.implications.c.implied_id).filter_by(prior_id=prior_id)
            return prior, ROLES.documents(connection, tables.roles.c.id.in_(ids))

    def imply(self, prior_id: str, implied_id: str) -> tuple[Row, Row]:
        """Make the role *prior_id* imply the role *implied_id*. Return both roles in this order."""
        with self.tokens.change() as connection:
            prior, implied = ROLES.row(connection, prior_id), ROLES.row(connection, implied_id)
            insert_if_absent(connection, tables.implications, prior_id=prior_id, implied_id=implied_id)
        return prior, implied

    def remove_implied(self, prior_id: str, implied_id: str) -> None:
        """Remove the rule that the role *prior_id* implies the role *implied_id*. Raises ``NotFound`` if there is no
        such rule."""
        query = delete(tables.implications).filter_by(prior_id=prior_id, implied_id=implied_id)
        with self.tokens.change() as connection:
            if not connection.execute(query).rowcount:
                raise NotFound("The one role does not imply the other.")


def _assignment_columns(connection: Connection, named: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the role assignment that *named* identifies: target (project, domain or system), target_id,
    actor (user or group), actor_id and, optionally, role_id. Raises ``NotFound`` for an unknown id."""
    target, actor = named["target"], named["actor"]
    columns = {"target": target, "actor": actor, "actor_id": ACTORS[actor].row(connection, named["actor_id"])["id"],
               "target_id": TARGETS[target].row(connection, named["target_id"])["id"] if target in TARGETS else
               assignments.ALL}
    return columns | ({"role_id": ROLES.row(connection, named["role_id"])["id"]} if "role_id" in named else {})


def _missing(named: Mapping[str, str]) -> NotFound:
    return NotFound(f"The {named['actor']} has not this role on the {named['target']}.")


def _names(connection: Connection, ids: Collection[str] | None) -> dict[str, Document]:
    """Return {id: {name, domain}} of the projects, users, groups and roles with these *ids* (``None``: of all), and of
    all domains. For roles and domains, ``domain`` is missing."""
    def rows(table: Table, *columns: ColumnElement[Any]) -> Any:
        query = select(table.c.id, table.c.name, *columns)
        return connection.execute(query if ids is None or table is tables.domains else query.where(table.c.id.in_(ids)))

    names_by_id: dict[str, Document] = {id: {"name": name} for table in (tables.domains, tables.roles)
                                        for id, name in rows(table)}
    for table in (tables.projects, tables.users, tables.groups):
        for id, name, domain_id in rows(table, table.c.domain_id):
            names_by_id[id] = {"name": name, "domain": {"id": domain_id, **names_by_id[domain_id]}}
    return names_by_id
