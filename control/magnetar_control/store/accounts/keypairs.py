# SPDX-License-Identifier: GPL-3.0-or-later
"""Key pairs: each belongs to a user, and its name is unique among the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select

from magnetar_control.store.engine.database import added, now
from magnetar_control.store.engine.tables import keypairs

#: Made once: that takes longer than to ask it.
_ONE = select(keypairs).where(keypairs.c.user_id == bindparam("user"), keypairs.c.name == bindparam("name"))


def find(connection: Connection, user: str, name: str) -> Row[Any] | None:
    """The key pair of that name."""
    return connection.execute(_ONE, {"user": user, "name": name}).one_or_none()


def page(connection: Connection, user: str, limit: int | None = None, marker: str | None = None) -> \
        Sequence[Row[Any]] | None:
    """The user's, by name, after the one named *marker*; ``None`` when there is no such marker."""
    question = select(keypairs).where(keypairs.c.user_id == user).order_by(keypairs.c.name).limit(limit)
    if marker is not None:
        if find(connection, user, marker) is None:
            return None
        question = question.where(keypairs.c.name > marker)
    return connection.execute(question).all()


def count(connection: Connection, user: str) -> int:
    """How many the user has."""
    question = select(func.count()).select_from(keypairs).where(keypairs.c.user_id == user)
    return int(connection.execute(question).scalar_one())


def make(connection: Connection, **values: Any) -> bool:
    """A new one; False when the user has one of that name."""
    return added(connection, keypairs, created_at=now(), **values)


def remove(connection: Connection, user: str, name: str) -> bool:
    """Delete it; False when there is none."""
    return connection.execute(delete(keypairs).where(
        keypairs.c.user_id == user, keypairs.c.name == name)).rowcount == 1
