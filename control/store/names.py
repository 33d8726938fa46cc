# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers by name, for whoever asks for "a server called so", and what a request has asked of one."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Connection, Row, func, select

from .database import Database
from .store import Store
from .tables import actions, servers

Found = Row[Any]


def named(store: Store, project_id: str, name: str) -> list[tuple[Database, Found]]:
    """The servers of a project that have this name. One query for each cell, cell0 first: a server on its way to its
    cell is written there before it leaves cell0, so it is never missed."""
    found: dict[str, tuple[Database, Found]] = {}
    for _cell, database in store.databases():
        with database.read() as connection:
            rows = connection.execute(select(servers).where(
                servers.c.project_id == project_id, servers.c.name == name, servers.c.deleted_at.is_(None)).order_by(
                servers.c.created_at, servers.c.id)).all()
        found.update((row.id, (database, row)) for row in rows)
    return list(found.values())


def alone(connection: Connection, *words: str) -> None:
    """Until this transaction ends, nobody else gets past here with the same words; on SQLite nobody writes at all."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big", signed=True)
        connection.execute(select(func.pg_advisory_xact_lock(number)))


def asked_by(connection: Connection, id: str, request_id: str) -> list[str]:
    """All actions that this request has asked of a server, in order."""
    return list(connection.execute(select(actions.c.action).where(
        actions.c.server_id == id, actions.c.request_id == request_id).order_by(actions.c.id)).scalars())


def asked(connection: Connection, id: str, request_id: str, key: str) -> Any:
    """The action *key* that this request asked of a server; ``None`` when it did not."""
    return connection.execute(select(actions).where(
        actions.c.server_id == id, actions.c.request_id == request_id, actions.c.action == key)).one_or_none()
