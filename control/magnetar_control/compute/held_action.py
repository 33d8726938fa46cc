# SPDX-License-Identifier: GPL-3.0-or-later
"""An action that needs something of another service first (a volume, a port), where the caller is told at once whether
that can be had.

The action is written down, but held back from the conductors for a moment. Then the API reserves what it needs, and
lets the conductors have the action, or takes it back. If the API dies in between, a conductor takes the action when the
moment is over, and reserves by itself: nothing is reserved that no action knows of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.tables import action_events, actions
from magnetar_control.store.servers import servers

from .caller import Caller
from .target import Target, changed_meanwhile

#: Seconds for which an action is held back.
HELD = 10.0
List = list[dict[str, Any]]
Change = Callable[[List], List]


class HeldAction(NamedTuple):
    """One held action; *number* is that of its row."""

    caller: Caller
    target: Target
    number: int

    def release(self) -> bool:
        """Let the conductors have the action. False when it is not there any more, because the server is deleted;
        True also when a conductor has taken it by itself."""
        with self.target.database.write() as connection:
            done = connection.execute(update(actions).where(
                actions.c.id == self.number, actions.c.state == "queued").values(not_before=None)).rowcount
            self.target.database.ring(connection, servers.ACTIONS_BELL)
            return bool(done) or self._state(connection) in ("running", "done")

    def withdraw(self, change: Change | None = None) -> None:
        """Take the action back as if it had never been asked for, unless a conductor works on it or has done it. One
        that has failed meanwhile stays, as users may have seen it, without what it was to *change*."""
        with self.target.database.write() as connection:
            gone = connection.execute(delete(actions).where(
                actions.c.id == self.number, actions.c.state == "queued")).rowcount
            if change and (gone or self._state(connection) == "failed"):
                servers.revise(connection, self.target.row.id, "volumes", change)

    def wait(self, limit: float) -> str | None:
        """Wait until the action has ended: ``done`` or ``failed``; ``None`` after *limit* seconds."""
        database, deadline = self.target.database, time.monotonic() + limit
        while True:
            seen = database.bell.count(servers.SERVERS_BELL)
            with database.read() as connection:
                state = self._state(connection)
            if state in ("done", "failed", None):
                return state or "failed"
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            database.bell.wait(servers.SERVERS_BELL, seen, left)

    def cancel(self) -> str | None:
        """Cancel the action: its flow takes back what it has begun. Return the action's state where it has ended,
        else ``None``."""
        with self.target.database.write() as connection:
            done = connection.execute(update(actions).where(
                actions.c.id == self.number, actions.c.state.in_(("queued", "running"))).values(
                cancel=True, not_before=None)).rowcount
            self.target.database.ring(connection, servers.ACTIONS_BELL)
            return None if done else self._state(connection) or "failed"

    def _state(self, connection: Connection) -> str | None:
        return connection.execute(select(actions.c.state).where(actions.c.id == self.number)).scalar()

    def deleted(self) -> bool:
        """Whether the server is deleted, or about to be."""
        with self.target.database.read() as connection:
            server = servers.row(connection, self.target.row.id)
        return server is None or server.deleted_at is not None or server.task_state in (
            servers.DELETING, servers.SOFT_DELETING)

    def failure(self) -> str:
        """Why the action failed: to admins, what its last event says; to users, what the server's fault says."""
        with self.target.database.read() as connection:
            if not self.caller.is_admin:
                server = servers.row(connection, self.target.row.id)
                return str(orjson.loads(server.fault)["message"]) if server and server.fault else ""
            return connection.execute(select(action_events.c.details).where(
                action_events.c.action_id == self.number).order_by(action_events.c.id.desc()).limit(1)).scalar() or ""


def hold(caller: Caller, target: Target, key: str, args: Mapping[str, Any], change: Change | None = None) -> HeldAction:
    """Write the action *key* down, held back, and *change* the server's volumes in the same transaction. *change* may
    raise the core's errors. Raises ``Conflict`` when the server has changed since it was read."""
    id, database = target.row.id, target.database
    with database.write() as connection:
        row = servers.row(connection, id, lock=True)
        if row is None or not servers.allowed(row, key) or not servers.ask(
                connection, row, key, caller.request_id, caller.context.user_id, caller.project, args):
            raise changed_meanwhile(target, key)
        if change:
            servers.revise(connection, id, "volumes", change)
        number = int(connection.execute(select(actions.c.id).where(
            actions.c.server_id == id, actions.c.action == key).order_by(actions.c.id.desc()).limit(1)).scalar_one())
        connection.execute(update(actions).where(actions.c.id == number).values(not_before=database.clock(HELD)))
    return HeldAction(caller, target, number)
