# SPDX-License-Identifier: GPL-3.0-or-later
"""Groups: who is a member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from magnetar_control.services import Documents
from magnetar_core.errors import NotFound

from .resources import GROUPS, USERS
from .tables import members, users
from .tokens import Tokens


def list_members(tokens: Tokens, group_id: str, filters: Mapping[str, Any]) -> Documents:
    """Users of a group."""
    with tokens.database.read() as connection:
        group = GROUPS.row(connection, group_id)
        ids = select(members.c.user_id).where(members.c.group_id == group["id"])
        rows = USERS.rows(connection, [users.c.id.in_(ids), *USERS.where(filters)])
    return [USERS.document(row) for row in rows]


def check_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Raises ``NotFound`` where the user is no member."""
    with tokens.database.read() as connection:
        if connection.execute(select(members).where(*_member(connection, group_id, user_id))).first() is None:
            raise NotFound("The user is no member of the group.")


def add_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Make a user member; nothing when it is."""
    with tokens.change() as connection:
        if connection.execute(select(members).where(*_member(connection, group_id, user_id))).first() is None:
            connection.execute(insert(members).values(group_id=group_id, user_id=user_id))


def remove_member(tokens: Tokens, group_id: str, user_id: str) -> None:
    """Make a user member no more. Raises ``NotFound`` where it is none."""
    with tokens.change() as connection:
        if not connection.execute(delete(members).where(*_member(connection, group_id, user_id))).rowcount:
            raise NotFound("The user is no member of the group.")


def _member(connection: Connection, group_id: str, user_id: str) -> list[Any]:
    group, user = GROUPS.row(connection, group_id), USERS.row(connection, user_id)
    return [members.c.group_id == group["id"], members.c.user_id == user["id"]]
