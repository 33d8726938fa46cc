# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens by which one part of the control plane asks another: a conductor the image service on the API's machine.

The user has no password, so nobody logs in as it. Who may sign tokens has the API database, and so everything anyway.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from . import assignments, tables
from .bootstrap import named
from .changes import DEFAULT
from .claims import Claims, new_id
from .tokens import Tokens

#: The user, its project, and its role there.
USER, PROJECT, ROLE = "magnetar", "service", "admin"
#: Seconds that a token is good, and before its end that it is made anew.
LIFE, EARLY = 3600.0, 600.0


class ServiceUser:
    """Gives tokens of the service user; one is used until shortly before its end."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._token, self._ends = "", 0.0

    def token(self, fresh: bool = False) -> str:
        """A token; a new one when *fresh*."""
        moment = self.tokens.clock()
        if fresh or self._ends - EARLY <= moment:
            with self.tokens.database.read() as connection:
                found = _user(connection)
            if found is None:
                with self.tokens.change() as connection:
                    _made(connection)
            with self.tokens.database.read() as connection:
                self._token = self.tokens.sign(connection, _claims(connection, moment))
            self._ends = moment + LIFE
        return self._token


def _user(connection: Connection) -> str | None:
    """The id of the user, when it has its role."""
    users, roles = tables.users, tables.roles
    query = select(users.c.id).join(tables.assignments, tables.assignments.c.actor_id == users.c.id).join(
        roles, roles.c.id == tables.assignments.c.role_id).where(
        users.c.name == USER, users.c.domain_id == DEFAULT, roles.c.name == ROLE,
        tables.assignments.c.target == "project")
    found: str | None = connection.execute(query).scalar()
    return found


def _made(connection: Connection) -> None:
    """User, project and role, where they are missing."""
    common = {"domain_id": DEFAULT, "enabled": True, "epoch": 0}
    project = named(connection, tables.projects, PROJECT, parent_id=DEFAULT, **common)
    user = named(connection, tables.users, USER, description="Parts of the control plane; has no password", **common)
    assignments.give(connection, target="project", target_id=project, actor="user", actor_id=user,
                role_id=named(connection, tables.roles, ROLE))


def _claims(connection: Connection, moment: float) -> Claims:
    def row(table: object, name: str) -> tuple[str, int]:
        found = connection.execute(select(table.c.id, table.c.epoch).where(  # type: ignore[attr-defined]
            table.c.name == name, table.c.domain_id == DEFAULT)).one()  # type: ignore[attr-defined]
        return found.id, found.epoch

    user, project = row(tables.users, USER), row(tables.projects, PROJECT)
    return Claims(new_id(), *user, moment, moment + LIFE, ("token",), "project", *project)
