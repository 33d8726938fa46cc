# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: the action table as users read it, also of deleted servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from . import servers
from .database import Database
from .store import Store
from .tables import action_events, actions


@dataclass(frozen=True)
class ActionQuery:
    """A page of a server's actions with the keys *shown*, newest first. *marker*: a request id. *since*, *before*:
    bounds of their last change."""

    server_id: str
    shown: Sequence[str]
    limit: int | None = None
    marker: str | None = None
    since: str | None = None
    before: str | None = None


def server(store: Store, id: str, *, deleted: bool) -> tuple[Database, Row[Any]] | None:
    """The server and its database; with *deleted*, also a deleted one."""
    for database in servers.places(store, id):
        with database.read() as connection:
            row = servers.row(connection, id)
        if row is not None and (deleted or row.deleted_at is None):
            return database, row
    return None


def page(connection: Connection, wanted: ActionQuery) -> Sequence[Row[Any]] | None:
    """The rows; ``None`` when there is no such marker."""
    where = [actions.c.server_id == wanted.server_id, actions.c.action.in_(wanted.shown)]
    if wanted.marker is not None:
        at = connection.execute(select(actions.c.id).where(
            *where, actions.c.request_id == wanted.marker).order_by(actions.c.id)).scalars().first()
        if at is None:
            return None
        where.append(actions.c.id < at)
    if wanted.since is not None:
        where.append(actions.c.updated_at >= wanted.since)
    if wanted.before is not None:
        where.append(actions.c.updated_at <= wanted.before)
    return connection.execute(select(actions).where(*where).order_by(actions.c.id.desc()).limit(wanted.limit)).all()


def one(connection: Connection, wanted: ActionQuery, request_id: str) -> Row[Any] | None:
    """The action that a request asked for."""
    return connection.execute(select(actions).where(
        actions.c.server_id == wanted.server_id, actions.c.request_id == request_id,
        actions.c.action.in_(wanted.shown)).order_by(actions.c.id.desc()).limit(1)).one_or_none()


def events(connection: Connection, action: int) -> Sequence[Row[Any]]:
    """The events of an action, newest first."""
    return connection.execute(select(action_events).where(action_events.c.action_id == action).order_by(
        action_events.c.id.desc())).all()


def keys_of_request(connection: Connection, server_id: str, request_id: str) -> list[str]:
    """The keys of all actions that a request has asked of a server, in order."""
    return list(connection.execute(select(actions.c.action).where(
        actions.c.server_id == server_id, actions.c.request_id == request_id).order_by(actions.c.id)).scalars())


def of_request(connection: Connection, server_id: str, request_id: str, key: str) -> Row[Any] | None:
    """The action *key* that a request has asked of a server; ``None`` when it has not."""
    return connection.execute(select(actions).where(
        actions.c.server_id == server_id, actions.c.request_id == request_id, actions.c.action == key)).one_or_none()
