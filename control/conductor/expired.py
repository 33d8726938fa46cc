# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers in which something has waited for long enough, so that the conductors ask for what comes next."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from magnetar_control.store import servers
from magnetar_control.store.database import now

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
