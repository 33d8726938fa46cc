# SPDX-License-Identifier: GPL-3.0-or-later
"""Users: their passwords, groups and their members, and the projects and domains on which users have roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, select, update

from magnetar_control.services import Documents
from magnetar_control.store.engine.database import added, now
from magnetar_core.errors import Forbidden, NotFound, Unauthenticated

from . import assignments, passwords, tables
from .login_failures import Attempt
from .resources import GROUPS, PASSWORD, USERS, IdentityResource, one
from .tokens import Tokens


def change_password(tokens: Tokens, user_id: str, original: str, password: Any, address: str = "") -> None:
    """Change it, knowing the old one; wrong ones count as failed logins from *address*. All tokens of the user end.
    Raises ``Unauthenticated``, ``Forbidden`` (lock_password), ``InvalidField``, ``TooManyLogins``."""
    new, attempt = PASSWORD.check(password, "password"), Attempt(tokens.database, user_id, address, tokens.clock())
    with tokens.database.read() as connection:
        row = USERS.row(connection, user_id)
        if USERS.document(row)["options"].get("lock_password"):
            raise Forbidden("The user cannot change the password: lock_password is set. Ask an administrator.")
        attempt.check(connection)
    if not passwords.matches(original, row["password"]):
        attempt.failed("change of a password")
        raise Unauthenticated("original_password is not the user's password.")
    attempt.succeeded("change of a password")
    kept = passwords.hashed(new)
    with tokens.change() as connection:
        connection.execute(update(tables.users).filter_by(id=user_id).values(
            password=kept, epoch=tables.users.c.epoch + 1, updated_at=now()))


def groups(tokens: Tokens, user_id: str, filters: Mapping[str, Any]) -> Documents:
    """Groups of which a user is a member."""
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        return GROUPS.documents(connection, tables.groups.c.id.in_(assignments.groups_of(user_id)), **filters)


def targets(tokens: Tokens, user_id: str, resource: IdentityResource, filters: Mapping[str, Any],
            check: bool = False) -> Documents:
    """Enabled projects or domains on which a user has a role. *check*: raises ``NotFound`` where there is no such
    user."""
    table = resource.table.c
    with tokens.database.read() as connection:
        if check:
            USERS.row(connection, user_id)
        ids = assignments.targets_of(connection, user_id, resource.name)
        return resource.documents(connection, table.id.in_(ids), table.enabled.is_(True), **filters)


def has_system_role(tokens: Tokens, user_id: str) -> bool:
    """Whether a user has a role on the system."""
    with tokens.database.read() as connection:
        return bool(assignments.targets_of(connection, user_id, "system"))


def list_members(tokens: Tokens, group_id: str, filters: Mapping[str, Any]) -> Documents:
    """Users of a group."""
    with tokens.database.read() as connection:
        GROUPS.row(connection, group_id)
        ids = select(tables.members.c.user_id).filter_by(group_id=group_id)
        return USERS.documents(connection, tables.users.c.id.in_(ids), **filters)


def check_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Raises ``NotFound`` where the user is no member."""
    with tokens.database.read() as connection:
        if one(connection, tables.members, **_member(connection, group_id, user_id)) is None:
            raise NotFound("The user is no member of the group.")


def add_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Make a user member; nothing when it is."""
    with tokens.change() as connection:
        added(connection, tables.members, **_member(connection, group_id, user_id))


def remove_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Make a user member no more. Raises ``NotFound`` where it is none."""
    with tokens.change() as connection:
        query = delete(tables.members).filter_by(**_member(connection, group_id, user_id))
        if not connection.execute(query).rowcount:
            raise NotFound("The user is no member of the group.")


def _member(connection: Connection, group_id: str, user_id: str) -> dict[str, str]:
    return {"group_id": GROUPS.row(connection, group_id)["id"], "user_id": USERS.row(connection, user_id)["id"]}
