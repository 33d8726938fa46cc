# SPDX-License-Identifier: GPL-3.0-or-later
"""Server groups: members share a host or are kept apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import server_group_members, server_groups


def find(connection: Connection, id: str) -> Row[Any] | None:
    """The group."""
    return connection.execute(select(server_groups).where(server_groups.c.id == id)).one_or_none()


def page(connection: Connection, project: str | None, limit: int, offset: int = 0) -> Sequence[Row[Any]]:
    """Groups of a project, or of all, by creation."""
    question = select(server_groups).order_by(server_groups.c.created_at, server_groups.c.id)
    if project is not None:
        question = question.where(server_groups.c.project_id == project)
    return connection.execute(question.limit(limit).offset(offset)).all()


def members(connection: Connection, groups: Iterable[str]) -> dict[str, list[str]]:
    """Uuids of the servers in each of *groups*; deleted servers are no members."""
    found: dict[str, list[str]] = {}
    table = server_group_members
    question = select(table.c.group_id, table.c.server_id).where(table.c.group_id.in_(list(groups)))
    for group, server in connection.execute(question.order_by(table.c.server_id)).all():
        found.setdefault(group, []).append(server)
    return found


def count(connection: Connection, project: str, user: str | None = None) -> int:
    """How many groups a project (one user in it) has."""
    question = select(func.count()).select_from(server_groups).where(server_groups.c.project_id == project)
    if user is not None:
        question = question.where(server_groups.c.user_id == user)
    return int(connection.execute(question).scalar_one())


def make(connection: Connection, **values: Any) -> None:
    """A new group."""
    connection.execute(insert(server_groups).values(created_at=now(), **values))


def remove(connection: Connection, id: str) -> bool:
    """Delete it; its servers stay. False when there is none."""
    return connection.execute(delete(server_groups).where(server_groups.c.id == id)).rowcount == 1
