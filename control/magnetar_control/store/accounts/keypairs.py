# SPDX-License-Identifier: GPL-3.0-or-later
"""Key pairs. Each belongs to a user, and its name is unique among the user's key pairs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, select

from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import keypairs


class KeypairRow(SelectedRow):
    """A row of the table ``keypairs``."""

    number: int
    user_id: str
    name: str
    type: str
    fingerprint: str
    public_key: str
    created_at: str
    updated_at: str | None


_ALL = KeypairRow.selection(keypairs)
#: The query for one key pair. Built once: building it takes longer than executing it.
_ONE = _ALL.where(keypairs.c.user_id == bindparam("user"), keypairs.c.name == bindparam("name"))


def fetch_keypair_row(connection: Connection, user: str, name: str) -> KeypairRow | None:
    """Return the key pair called *name* of the user *user*; ``None`` when there is none."""
    return KeypairRow.optional(connection.execute(_ONE, {"user": user, "name": name}).one_or_none())


def fetch_keypair_rows(connection: Connection, user: str, limit: int | None = None, marker: str | None = None) -> \
        list[KeypairRow] | None:
    """Return a page of the user's key pairs, sorted by name, at most *limit*. *marker*: the name of the last key pair
    of the previous page. Return ``None`` if there is no key pair with this name."""
    question = _ALL.where(keypairs.c.user_id == user).order_by(keypairs.c.name).limit(limit)
    if marker is not None:
        if fetch_keypair_row(connection, user, marker) is None:
            return None
        question = question.where(keypairs.c.name > marker)
    return KeypairRow.several(connection.execute(question))


def count_keypair_rows(connection: Connection, user: str) -> int:
    """Return how many key pairs the user has."""
    question = select(func.count()).select_from(keypairs).where(keypairs.c.user_id == user)
    return int(connection.execute(question).scalar_one())


def insert_keypair_row(connection: Connection, **values: Any) -> bool:
    """Insert a key pair with the column *values*. Return ``False`` if the user already has a key pair with this name.
    """
    return insert_if_absent(connection, keypairs, created_at=utc_now(), **values)


def remove_keypair_row(connection: Connection, user: str, name: str) -> bool:
    """Delete the key pair called *name* of the user *user*. Return ``False`` if there is none."""
    return connection.execute(delete(keypairs).where(
        keypairs.c.user_id == user, keypairs.c.name == name)).rowcount == 1
