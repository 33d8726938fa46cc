# SPDX-License-Identifier: GPL-3.0-or-later
"""Guests that must be told of a change that is in no column of their servers, such as a floating IP."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, update

from magnetar_control.store.engine.tables import servers

_DUE = update(servers).where(servers.c.id == bindparam("server"), servers.c.leaving.is_(None)).values(
    guest_revision=servers.c.guest_revision + 1, guest_data_due=True)


def mark_due(connection: Connection, server_id: str) -> None:
    """Note that the guest of a server must be told. A conductor tells it."""
    connection.execute(_DUE, {"server": server_id})
