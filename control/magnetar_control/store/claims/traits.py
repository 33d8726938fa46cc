# SPDX-License-Identifier: GPL-3.0-or-later
"""Custom traits created by operators. Functions take the connection of a transaction of the API database."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_control.store.engine.tables import traits


def fetch_trait_names(connection: Connection) -> frozenset[str]:
    """Return the names of all custom traits."""
    return frozenset(connection.execute(select(traits.c.name)).scalars())


def insert_trait_row(connection: Connection, name: str) -> bool:
    """Insert a trait; return ``False`` when it exists."""
    return insert_if_absent(connection, traits, name=name, created_at=utc_now())


def remove_trait_row(connection: Connection, name: str) -> bool:
    """Delete a trait; return ``False`` when it does not exist."""
    return connection.execute(delete(traits).where(traits.c.name == name)).rowcount == 1
