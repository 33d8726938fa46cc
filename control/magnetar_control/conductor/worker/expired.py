# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that have waited long enough in some state: conductors queue their next action."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, select

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.servers import servers

from .conductor import Conductor

#: Returns the servers that have waited since before a moment.
Late = Callable[[Connection, str], Sequence[Any]]
#: Returns the row of a server to request the action with; ``None`` if it does not wait any more.
Still = Callable[[Connection, Any], Any]


def ask_for_expired(conductor: Conductor, seconds: float, late: Late, key: str,
                    still: Still = lambda _connection, server: server) -> int:
    """Queue the action *key* for each server that has been in some state for more than *seconds*, for example the
    offload of servers that were shelved that long ago. Return the number of queued actions. If *seconds* is zero or
    negative, do nothing.

    *late*: called with a connection and the time *seconds* ago; returns the servers that have been in the state since
    before that time. *still*: called with a connection and one of these servers in the transaction that queues its
    action; returns the server's row, or ``None`` if the server has left the state, for example because another
    conductor was first.
    """
    count, database = 0, conductor.database
    if seconds <= 0:
        return 0
    with database.read() as connection:
        waiting = late(connection, utc_now(-seconds))
    for server in waiting:
        with database.write() as connection:
            row = still(connection, server)
            if row is not None and servers.request_server_action(connection, row, key, f"req-{uuid.uuid4()}",
                                                                 row.user_id, row.project_id):
                count += 1
                database.notify(connection, servers.ACTIONS_CHANGED)
    return count


def waiting_since(vm_state: str, column: str, connection: Connection, moment: str) -> Sequence[Any]:
    """Return the servers that have this *vm_state*, no task_state, and a time before *moment* in *column* (such as
    ``soft_deleted_at``)."""
    return connection.execute(select(table).where(
        table.c[column] < moment, table.c.vm_state == vm_state, table.c.task_state.is_(None),
        table.c.deleted_at.is_(None))).all()
