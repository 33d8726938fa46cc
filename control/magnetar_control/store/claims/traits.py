# SPDX-License-Identifier: GPL-3.0-or-later
"""Custom traits that operators have made. Functions take the connection of a transaction of the API database."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from magnetar_control.store.engine.database import added, now
from magnetar_control.store.engine.tables import traits


def every(connection: Connection) -> frozenset[str]:
    """All."""
    return frozenset(connection.execute(select(traits.c.name)).scalars())


def add(connection: Connection, name: str) -> bool:
    """Make one; ``False`` where there is one of that name."""
    return added(connection, traits, name=name, created_at=now())


def drop(connection: Connection, name: str) -> bool:
    """Remove one; ``False`` where there is none of that name."""
    return connection.execute(delete(traits).where(traits.c.name == name)).rowcount == 1
