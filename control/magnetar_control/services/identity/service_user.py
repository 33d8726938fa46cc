# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens for requests between parts of the control plane, such as a conductor's to the image service on the API's
machine.

The tokens belong to a service user without a password, so no client can log in as this user. Only processes with access
to the API database can sign the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sqlalchemy import Connection, select

from magnetar_control.services import Identity
from magnetar_control.store.engine.database import insert_if_absent

from . import tables
from .bootstrap import SERVICE, ensure_named_row
from .resources import DEFAULT
from .tokens import Claims, Tokens, draw_token_id

#: The user, its project, and its role on the project.
USER, PROJECT, ROLE = "magnetar", "service", "admin"
#: Seconds that a token is valid, and before its end that it is renewed.
LIFE, EARLY = 3600.0, 600.0


#: The user whose tokens are sent to targets of dynamic vendordata. Its role is ``SERVICE``, because the targets belong
#: to other operators.
VENDORDATA = "vendordata"


class ServiceUser:
    """A source of tokens for the service user *name* with its *role*. A token is reused until shortly before it
    expires. The user is created when it is first needed."""

    def __init__(self, tokens: Tokens, name: str = USER, role: str = ROLE) -> None:
        self.tokens, self.name, self.role = tokens, name, role
        self._token, self._ends = "", 0.0

    def token(self, fresh: bool = False) -> str:
        """Return a token of the user, which may be cached; with *fresh*, a new one."""
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
        """Return the contents of a new token, issued at *moment* (seconds since the epoch); ``None`` unless the user
        exists and has the role."""
        users, projects, roles, assignment = tables.users.c, tables.projects.c, tables.roles.c, tables.assignments.c
        query = select(users.id, users.epoch, projects.id, projects.epoch).where(
            users.name == self.name, users.domain_id == DEFAULT, projects.name == PROJECT,
            projects.domain_id == DEFAULT, roles.name == self.role, assignment.target == "project",
            assignment.target_id == projects.id, assignment.actor == "user", assignment.actor_id == users.id,
            assignment.role_id == roles.id)
        row = connection.execute(query).first()
        return row and Claims(draw_token_id(), *row[:2], moment, moment + LIFE, ("token",), "project", *row[2:])

    def _made(self, connection: Connection, moment: float) -> Claims:
        """Create the user, its project and its role assignment if they are missing. Return the contents of a token
        issued at *moment* (seconds since the epoch)."""
        project = ensure_named_row(connection, tables.projects, PROJECT, parent_id=DEFAULT, domain_id=DEFAULT)
        user = ensure_named_row(connection, tables.users, self.name,
                                description="Parts of the control plane; has no password", domain_id=DEFAULT)
        insert_if_absent(connection, tables.assignments, target="project", target_id=project, actor="user",
                         actor_id=user, role_id=ensure_named_row(connection, tables.roles, self.role))
        claims = self._claims(connection, moment)
        assert claims is not None
        return claims


def vendordata_token_source(identity: Identity) -> Callable[[bool], str]:
    """Return a function that returns tokens for requests to targets of dynamic vendordata; called with ``True``, a new
    token. With an external Keystone as *identity*, the tokens belong to the user in the settings, otherwise to a
    ``ServiceUser``."""
    tokens = getattr(identity, "tokens", None)
    token_source: Callable[[bool], str] = getattr(identity, "token", None) or ServiceUser(
        cast("Tokens", tokens), VENDORDATA, SERVICE).token
    return token_source
