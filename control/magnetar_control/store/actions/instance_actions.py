# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: the action table as users read it, also of deleted servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select

from magnetar_control.store.engine.tables import action_events, actions


def page(connection: Connection, server_id: str, shown: Sequence[str], limit: int | None = None,
         marker: str | None = None, since: str | None = None, before: str | None = None) -> Sequence[Row[Any]] | None:
    """The rows of a server's actions with the keys *shown*, newest first; ``None`` when there is no such *marker* (a
    request id). *since*, *before*: bounds of their last change."""
    where = [actions.c.server_id == server_id, actions.c.action.in_(shown)]
    if marker is not None:
        at = connection.execute(select(actions.c.id).where(
            *where, actions.c.request_id == marker).order_by(actions.c.id)).scalars().first()
        if at is None:
            return None
        where.append(actions.c.id < at)
    if since is not None:
        where.append(actions.c.updated_at >= since)
    if before is not None:
        where.append(actions.c.updated_at <= before)
    return connection.execute(select(actions).where(*where).order_by(actions.c.id.desc()).limit(limit)).all()


def one(connection: Connection, server_id: str, shown: Sequence[str], request_id: str) -> Row[Any] | None:
    """The action that a request asked for, of those with the keys *shown*."""
    return connection.execute(select(actions).where(
        actions.c.server_id == server_id, actions.c.request_id == request_id,
        actions.c.action.in_(shown)).order_by(actions.c.id.desc()).limit(1)).one_or_none()


def events(connection: Connection, action: int) -> Sequence[Row[Any]]:
    """The events of an action, newest first."""
    return connection.execute(select(action_events).where(action_events.c.action_id == action).order_by(
        action_events.c.id.desc())).all()


def keys_of_request(connection: Connection, server_id: str, request_id: str) -> list[str]:
    """The keys of all actions that a request has asked of a server, in order."""
    return list(connection.execute(select(actions.c.action).where(
        actions.c.server_id == server_id, actions.c.request_id == request_id).order_by(actions.c.id)).scalars())


def times_begun(connection: Connection, number: int, event: str, host: str | None) -> int:
    """How often an event of an action has begun at a host."""
    return int(connection.execute(select(func.count()).select_from(action_events).where(
        action_events.c.action_id == number, action_events.c.event == event,
        action_events.c.host == host)).scalar_one())
