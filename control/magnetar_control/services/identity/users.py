# SPDX-License-Identifier: GPL-3.0-or-later
"""Users: their passwords, their groups and members of groups, and the projects and domains where users have roles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_core.document import Documents
from magnetar_core.errors import Forbidden, NotFound, Unauthenticated

from . import assignments, passwords, tables
from .login_failures import CredentialCheck
from .resources import GROUPS, PASSWORD, USERS, IdentityResource, fetch_identity_row
from .tokens import Tokens


def change_user_password(tokens: Tokens, user_id: str, original: str, password: Any, address: str = "") -> None:
    """Change a user's password after checking the present one, *original*. All tokens of the user become invalid.

    A wrong *original* counts as a failed login from *address* (the client's IP address). Raises ``Unauthenticated``,
    ``InvalidField``, ``TooManyLogins``, and ``Forbidden`` if the user has the option lock_password.
    """
    new, attempt = PASSWORD.check(password, "password"), CredentialCheck(tokens.database, user_id, address,
                                                                         tokens.clock())
    with tokens.database.read() as connection:
        row = USERS.row(connection, user_id)
        if USERS.document(row)["options"].get("lock_password"):
            raise Forbidden("The user cannot change the password: lock_password is set. Ask an administrator.")
        attempt.check(connection)
    if not passwords.password_matches(original, row["password"]):
        attempt.failed("change of a password")
        raise Unauthenticated("original_password is not the user's password.")
    attempt.succeeded("change of a password")
    password_hash = passwords.hash_password(new)
    with tokens.change() as connection:
        connection.execute(update(tables.users).filter_by(id=user_id).values(
            password=password_hash, epoch=tables.users.c.epoch + 1, updated_at=utc_now()))


def list_user_groups(tokens: Tokens, user_id: str, filters: Mapping[str, Any]) -> Documents:
    """Return the groups of a user that match *filters* (value by column)."""
    with tokens.database.read() as connection:
        USERS.row(connection, user_id)
        return GROUPS.documents(connection, tables.groups.c.id.in_(assignments.group_ids_query(user_id)), **filters)


def list_user_targets(tokens: Tokens, user_id: str, resource: IdentityResource, filters: Mapping[str, Any],
                      check: bool = False) -> Documents:
    """Return the enabled projects or domains (*resource* decides which) on which a user has a role, if they match
    *filters* (value by column). *check*: raise ``NotFound`` for an unknown user."""
    table = resource.table.c
    with tokens.database.read() as connection:
        if check:
            USERS.row(connection, user_id)
        ids = assignments.role_target_ids(connection, user_id, resource.name)
        return resource.documents(connection, table.id.in_(ids), table.enabled.is_(True), **filters)


def has_system_role(tokens: Tokens, user_id: str) -> bool:
    """Return whether a user has a role on the system."""
    with tokens.database.read() as connection:
        return bool(assignments.role_target_ids(connection, user_id, "system"))


def list_members(tokens: Tokens, group_id: str, filters: Mapping[str, Any]) -> Documents:
    """Return the users in the group *group_id* that match *filters* (value by column)."""
    with tokens.database.read() as connection:
        GROUPS.row(connection, group_id)
        ids = select(tables.members.c.user_id).filter_by(group_id=group_id)
        return USERS.documents(connection, tables.users.c.id.in_(ids), **filters)


def check_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Raise ``NotFound`` when the user is not a member of the group."""
    with tokens.database.read() as connection:
        if fetch_identity_row(connection, tables.members, **_member(connection, group_id, user_id)) is None:
            raise NotFound("The user is no member of the group.")


def add_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Add a user to a group. Do nothing if the user is already a member."""
    with tokens.change() as connection:
        insert_if_absent(connection, tables.members, **_member(connection, group_id, user_id))


def remove_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Remove a user from a group. Raises ``NotFound`` when the user is not a member."""
    with tokens.change() as connection:
        query = delete(tables.members).filter_by(**_member(connection, group_id, user_id))
        if not connection.execute(query).rowcount:
            raise NotFound("The user is no member of the group.")


def set_members(tokens: Tokens, group_id: str, user_ids: Collection[str]) -> None:
    """Replace the members of a group by the users *user_ids*. Raises ``NotFound`` for an unknown group."""
    members = tables.members
    with tokens.change() as connection:
        GROUPS.row(connection, group_id)
        current_ids = set(connection.execute(select(members.c.user_id).filter_by(group_id=group_id)).scalars())
        for user_id in sorted(current_ids - set(user_ids)):
            connection.execute(delete(members).filter_by(group_id=group_id, user_id=user_id))
        for user_id in sorted(set(user_ids) - current_ids):
            connection.execute(insert(members).values(group_id=group_id, user_id=user_id))


def _member(connection: Connection, group_id: str, user_id: str) -> dict[str, str]:
    return {"group_id": GROUPS.row(connection, group_id)["id"], "user_id": USERS.row(connection, user_id)["id"]}
