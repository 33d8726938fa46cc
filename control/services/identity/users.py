# SPDX-License-Identifier: GPL-3.0-or-later
"""Users: their passwords, groups, and the projects and domains on which they have roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import update

from magnetar_control.services import Documents
from magnetar_control.store.database import now
from magnetar_core.errors import Unauthenticated

from . import assignments, passwords, tables
from .resources import GROUPS, PASSWORD, USERS, IdentityResource
from .tokens import Tokens


def change_password(tokens: Tokens, user_id: str, original: str, password: Any) -> None:
    """Change it, knowing the old one. All tokens of the user end. Raises ``Unauthenticated``, ``InvalidField``."""
    new = PASSWORD.check(password, "password")
    with tokens.database.read() as connection:
        row = USERS.row(connection, user_id)
    if not passwords.matches(original, row["password"]):
        raise Unauthenticated("original_password is not the user's password.")
    kept = passwords.hashed(new)
    with tokens.change() as connection:
        user = tables.users
        connection.execute(update(user).where(user.c.id == user_id).values(
            password=kept, epoch=user.c.epoch + 1, updated_at=now()))


def groups(tokens: Tokens, user_id: str, filters: Mapping[str, Any]) -> Documents:
    """Groups of which a user is a member."""
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        rows = GROUPS.rows(connection, [tables.groups.c.id.in_(assignments.groups_of(user_id)),
                                        *GROUPS.where(filters)])
    return [GROUPS.document(row) for row in rows]


def targets(tokens: Tokens, user_id: str, resource: IdentityResource, filters: Mapping[str, Any],
            check: bool = False) -> Documents:
    """Enabled projects or domains on which a user has a role. *check*: raises ``NotFound`` where there is no such
    user."""
    table = resource.table
    with tokens.database.read() as connection:
        if check:
            USERS.row(connection, user_id)
        ids = assignments.targets_of(connection, user_id, resource.name)
        rows = resource.rows(connection, [table.c.id.in_(ids), table.c.enabled.is_(True), *resource.where(filters)])
    return [resource.document(row) for row in rows]


def has_system_role(tokens: Tokens, user_id: str) -> bool:
    """Whether a user has a role on the system."""
    with tokens.database.read() as connection:
        return bool(assignments.targets_of(connection, user_id, "system"))
