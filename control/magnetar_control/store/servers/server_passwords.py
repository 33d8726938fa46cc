# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords that guests leave for their users (os-server-password), encrypted with the users' keys.

A host tells its conductors what a guest has left, again and again. What was cleared is remembered by its digest, so
that a host that has not heard of it does not bring it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select, update

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import servers

#: Told of servers that may have another password, or none: made once, since hosts tell often.
_TOLD = select(servers.c.id, servers.c.password, servers.c.cleared_password).where(
    servers.c.id.in_(bindparam("ids", expanding=True)), servers.c.host == bindparam("at"),
    servers.c.deleted_at.is_(None))


def digest(password: str) -> str:
    """By which a password that was cleared is known again."""
    return hashlib.sha256(password.encode()).hexdigest()


def differing(connection: Connection, host: str, told: Mapping[str, str]) -> list[tuple[Any, bool]]:
    """Of the servers of *host* that have passwords there (by uuid): the rows of which we know another, and whether it
    was cleared here."""
    rows = connection.execute(_TOLD, {"ids": list(told), "at": host}).all() if told else []
    return [(row, row.cleared_password == digest(told[row.id])) for row in rows if row.password != told[row.id]]


def keep(connection: Connection, host: str, id: str, password: str) -> None:
    """Note what the guest has left, unless it was cleared meanwhile."""
    connection.execute(update(servers).where(
        servers.c.id == id, servers.c.host == host, servers.c.deleted_at.is_(None),
        or_(servers.c.cleared_password.is_(None), servers.c.cleared_password != digest(password)),
    ).values(password=password, cleared_password=None, updated_at=now()))


def clear(connection: Connection, id: str, password: str) -> None:
    """Forget the *password* that a server has."""
    connection.execute(update(servers).where(servers.c.id == id, servers.c.password == password).values(
        password=None, cleared_password=digest(password), updated_at=now()))
