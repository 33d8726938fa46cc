# SPDX-License-Identifier: GPL-3.0-or-later
"""Server groups: members share a host or are kept on different ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.rows import DocumentColumn, StoredRow
from magnetar_control.store.engine.tables import server_group_members, server_groups


class ServerGroupRow(StoredRow):
    """A row of the table ``server_groups``."""

    id: str
    name: str
    project_id: str
    user_id: str
    policy: str
    created_at: str
    updated_at: str | None

    rules = DocumentColumn[Mapping[str, int]]()


def fetch_server_group_row(connection: Connection, id: str) -> ServerGroupRow | None:
    """Return the server group with this id; ``None`` when there is none."""
    return ServerGroupRow.optional(connection.execute(select(server_groups).where(
        server_groups.c.id == id)).one_or_none())


def fetch_server_group_rows(connection: Connection, project: str | None, limit: int,
                            offset: int = 0) -> list[ServerGroupRow]:
    """Return at most *limit* server groups, ordered by creation time, after skipping the first *offset*. *project*:
    only groups of this project; ``None`` for all projects."""
    question = select(server_groups).order_by(server_groups.c.created_at, server_groups.c.id)
    if project is not None:
        question = question.where(server_groups.c.project_id == project)
    return ServerGroupRow.several(connection.execute(question.limit(limit).offset(offset)))


def fetch_group_members(connection: Connection, groups: Iterable[str]) -> dict[str, list[str]]:
    """Return the uuids of the servers in each of these groups, by group uuid. Deleted servers are not included."""
    servers_by_group: dict[str, list[str]] = {}
    table = server_group_members
    question = select(table.c.group_id, table.c.server_id).where(table.c.group_id.in_(list(groups)))
    for group, server in connection.execute(question.order_by(table.c.server_id)).all():
        servers_by_group.setdefault(group, []).append(server)
    return servers_by_group


def count_server_group_rows(connection: Connection, project: str, user: str | None = None) -> int:
    """Return how many server groups a project has. *user*: count only the groups of this user."""
    question = select(func.count()).select_from(server_groups).where(server_groups.c.project_id == project)
    if user is not None:
        question = question.where(server_groups.c.user_id == user)
    return int(connection.execute(question).scalar_one())


def insert_server_group_row(connection: Connection, **values: Any) -> None:
    """Insert a server group."""
    connection.execute(insert(server_groups).values(created_at=utc_now(), **values))


def remove_server_group_row(connection: Connection, id: str) -> bool:
    """Delete a server group; its servers stay. Return ``False`` when there is none."""
    return connection.execute(delete(server_groups).where(server_groups.c.id == id)).rowcount == 1
