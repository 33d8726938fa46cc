# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords that guests store for their users (os-server-password), encrypted with the users' keys.

A host reports the guest's password to its conductors repeatedly. The digest of a cleared password is kept, so that a
host that does not know about the clearing does not restore it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select, update

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import servers

#: The query for the stored passwords of servers on a host. Built once, because hosts report often.
_STORED_PASSWORDS = select(servers.c.id, servers.c.password, servers.c.cleared_password).where(
    servers.c.id.in_(bindparam("ids", expanding=True)), servers.c.host == bindparam("at"),
    servers.c.deleted_at.is_(None))


def password_digest(password: str) -> str:
    """Return the SHA-256 digest of a guest's encrypted password. The digest is stored after a user clears the password,
    so that the same password is not stored again."""
    return hashlib.sha256(password.encode()).hexdigest()


def fetch_differing_passwords(connection: Connection, host: str,
                              host_passwords: Mapping[str, str]) -> list[tuple[Any, bool]]:
    """Compare the guests' passwords that a host reports with the stored ones. Return (server row, whether its user has
    cleared the reported password) for each server whose password differs. *host_passwords*: by server uuid."""
    rows = connection.execute(_STORED_PASSWORDS,
                              {"ids": list(host_passwords), "at": host}).all() if host_passwords else []
    return [(row, row.cleared_password == password_digest(host_passwords[row.id])) for row in rows
            if row.password != host_passwords[row.id]]


def save_password_column(connection: Connection, host: str, id: str, password: str) -> None:
    """Store the password that the guest on *host* has set for its server, unless a user has cleared this password."""
    connection.execute(update(servers).where(
        servers.c.id == id, servers.c.host == host, servers.c.deleted_at.is_(None),
        or_(servers.c.cleared_password.is_(None), servers.c.cleared_password != password_digest(password)),
    ).values(password=password, cleared_password=None, updated_at=utc_now()))


def clear_password_columns(connection: Connection, id: str, password: str) -> None:
    """Remove the stored password of a server if it is still *password*. Store the digest of the password, so that this
    password is not stored again."""
    connection.execute(update(servers).where(servers.c.id == id, servers.c.password == password).values(
        password=None, cleared_password=password_digest(password), updated_at=utc_now()))
