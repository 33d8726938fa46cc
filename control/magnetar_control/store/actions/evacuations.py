# SPDX-License-Identifier: GPL-3.0-or-later
"""Evacuations in the queue: what waits for a dead host makes way for them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import actions


def hasten(connection: Connection, server_id: str) -> None:
    """Let the queued actions of a server be taken at once: they end when their host does not answer, since an
    evacuation waits for its turn."""
    connection.execute(update(actions).where(actions.c.server_id == server_id, actions.c.state == "queued").values(
        not_before=None))


def waits(connection: Connection, server_id: str) -> bool:
    """Whether an evacuation of the server waits for its turn."""
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == server_id, actions.c.action == "evacuate", actions.c.state == "queued").limit(
        1)).first() is not None


def note(connection: Connection, number: int, **values: Any) -> None:
    """Set columns of an evacuation that goes on."""
    connection.execute(update(actions).where(actions.c.id == number).values(updated_at=now(), **values))
