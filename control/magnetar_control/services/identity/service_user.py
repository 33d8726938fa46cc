# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens by which one part of the control plane asks another: a conductor the image service on the API's machine.

The user has no password, so nobody logs in as it. Who may sign tokens has the API database, and so everything anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sqlalchemy import Connection, select

from magnetar_control.services import Identity
from magnetar_control.store.engine.database import added

from . import tables
from .bootstrap import SERVICE, named
from .resources import DEFAULT
from .tokens import Claims, Tokens, new_id

#: The user, its project, and its role there.
USER, PROJECT, ROLE = "magnetar", "service", "admin"
#: Seconds that a token is good, and before its end that it is made anew.
LIFE, EARLY = 3600.0, 600.0


#: The user whose tokens targets of dynamic vendordata are sent. Its role is ``SERVICE``: they are other people's
#: services.
VENDORDATA = "vendordata"


class ServiceUser:
    """Gives tokens of the service user *name* with its *role*; one is used until shortly before its end."""

    def __init__(self, tokens: Tokens, name: str = USER, role: str = ROLE) -> None:
        self.tokens, self.name, self.role = tokens, name, role
        self._token, self._ends = "", 0.0

    def token(self, fresh: bool = False) -> str:
        """A token; a new one when *fresh*."""
        moment = self.tokens.clock()
        if fresh or self._ends - EARLY <= moment:
            with self.tokens.database.read() as connection:
                claims = self._claims(connection, moment)
            if claims is None:
                with self.tokens.change() as connection:
                    claims = self._made(connection, moment)
            with self.tokens.database.read() as connection:
                self._token, self._ends = self.tokens.sign(connection, claims), moment + LIFE
        return self._token

    def _claims(self, connection: Connection, moment: float) -> Claims | None:
        """What the token says, when the user has its role."""
        users, projects, roles, given = tables.users.c, tables.projects.c, tables.roles.c, tables.assignments.c
        query = select(users.id, users.epoch, projects.id, projects.epoch).where(
            users.name == self.name, users.domain_id == DEFAULT, projects.name == PROJECT,
            projects.domain_id == DEFAULT, roles.name == self.role, given.target == "project",
            given.target_id == projects.id, given.actor == "user", given.actor_id == users.id,
            given.role_id == roles.id)
        found = connection.execute(query).first()
        return found and Claims(new_id(), *found[:2], moment, moment + LIFE, ("token",), "project", *found[2:])

    def _made(self, connection: Connection, moment: float) -> Claims:
        """The same, with user, project and role made where they are missing."""
        project = named(connection, tables.projects, PROJECT, parent_id=DEFAULT, domain_id=DEFAULT)
        user = named(connection, tables.users, self.name, description="Parts of the control plane; has no password",
                     domain_id=DEFAULT)
        added(connection, tables.assignments, target="project", target_id=project, actor="user", actor_id=user,
              role_id=named(connection, tables.roles, self.role))
        claims = self._claims(connection, moment)
        assert claims is not None
        return claims


def of_vendordata(identity: Identity) -> Callable[[bool], str]:
    """What gives the tokens that targets of dynamic vendordata are sent. Of a real Keystone it is the user of the
    settings."""
    tokens = getattr(identity, "tokens", None)
    found: Callable[[bool], str] = getattr(identity, "token", None) or ServiceUser(
        cast("Tokens", tokens), VENDORDATA, SERVICE).token
    return found
