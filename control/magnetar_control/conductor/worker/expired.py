# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers in which something has waited for long enough, so that the conductors ask for what comes next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.servers import servers

from .environment import Environment

#: Finds servers that have waited since before a moment.
Late = Callable[[Connection, str], Sequence[Any]]
#: The row of a server with which the action is asked for; ``None`` where it does not wait any more.
Still = Callable[[Connection, Any], Any]


def ask_for_expired(conductor: Environment, seconds: float, late: Late, key: str,
                    still: Still = lambda _connection, server: server) -> int:
    """Ask for the action *key* at the servers that *late* finds; returns how many. None wait so long with *seconds* of
    0 or less. Each has its own transaction, in which *still* looks again: another conductor may have been first."""
    count, database = 0, conductor.database
    if seconds <= 0:
        return 0
    with database.read() as connection:
        waiting = late(connection, now(-seconds))
    for server in waiting:
        with database.write() as connection:
            row = still(connection, server)
            if row is not None and servers.ask(connection, row, key, f"req-{uuid.uuid4()}", row.user_id,
                                               row.project_id):
                count += 1
                database.ring(connection, servers.ACTIONS_BELL)
    return count


def waiting_since(vm_state: str, column: str, connection: Connection, moment: str) -> Sequence[Any]:
    """Servers in a *vm_state* to which nothing is done, and whose *column* has a time before a *moment*."""
    return connection.execute(select(table).where(
        table.c[column] < moment, table.c.vm_state == vm_state, table.c.task_state.is_(None),
        table.c.deleted_at.is_(None))).all()
