# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions that first reserve a resource of another service (a volume, a port), so that the answer can say whether the
resource is available.

The action is written, but held back from the conductors for ``HELD`` seconds. Then the API reserves the resource, and
either releases the action to the conductors or withdraws it. If the API dies in between, a conductor takes the action
after that time, and makes the reservation itself: nothing is reserved without an action.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.tables import action_events, actions
from magnetar_control.store.servers import servers

from .caller import Caller
from .target import ServerTarget, changed_meanwhile

#: Seconds for which an action is held back.
HELD = 10.0
List = list[dict[str, Any]]
Change = Callable[[List], List]


class HeldAction(NamedTuple):
    """An action in the queue that conductors do not start until it is released. The API uses the delay to reserve a
    volume first. *number*: the id of the action's row."""

    caller: Caller
    target: ServerTarget
    number: int

    def release(self) -> bool:
        """Let the conductors start the action. Return ``True`` if the conductors can start the action now or have
        already started it. Return ``False`` if the action has failed, or is gone because the server is deleted."""
        with self.target.database.write() as connection:
            done = connection.execute(update(actions).where(
                actions.c.id == self.number, actions.c.state == "queued").values(not_before=None)).rowcount
            self.target.database.notify(connection, servers.ACTIONS_CHANGED)
            return bool(done) or self._state(connection) in ("running", "done")

    def withdraw(self, change: Change | None = None) -> None:
        """Remove the action from the queue, unless a conductor works on the action or the action has ended. *change*: a
        function that reverts an earlier change of the server's list of volumes; it is applied if the action is removed
        or has failed."""
        with self.target.database.write() as connection:
            removed_rows = connection.execute(delete(actions).where(
                actions.c.id == self.number, actions.c.state == "queued")).rowcount
            if change and (removed_rows or self._state(connection) == "failed"):
                servers.update_list_column(connection, self.target.row.id, "volumes", change)

    def wait(self, limit: float) -> str | None:
        """Wait until the action has ended, and return its state, ``done`` or ``failed``. Return ``None`` if it has not
        ended after *limit* seconds."""
        database, deadline = self.target.database, time.monotonic() + limit
        while True:
            signal_count = database.signals.count(servers.SERVERS_CHANGED)
            with database.read() as connection:
                state = self._state(connection)
            if state in ("done", "failed", None):
                return state or "failed"
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            database.signals.wait(servers.SERVERS_CHANGED, signal_count, remaining)

    def cancel(self) -> str | None:
        """Cancel the action; the conductor then undoes the steps that have begun. If the action has already ended,
        return its state; otherwise return ``None``."""
        with self.target.database.write() as connection:
            done = connection.execute(update(actions).where(
                actions.c.id == self.number, actions.c.state.in_(("queued", "running"))).values(
                cancel=True, not_before=None)).rowcount
            self.target.database.notify(connection, servers.ACTIONS_CHANGED)
            return None if done else self._state(connection) or "failed"

    def _state(self, connection: Connection) -> str | None:
        return connection.execute(select(actions.c.state).where(actions.c.id == self.number)).scalar()

    def deleted(self) -> bool:
        """Return whether the server is deleted or being deleted."""
        with self.target.database.read() as connection:
            server = servers.fetch_server_row(connection, self.target.row.id)
        return server is None or server.deleted_at is not None or server.task_state in (
            servers.DELETING, servers.SOFT_DELETING)

    def failure(self) -> str:
        """Return the reason why the action failed: for admins the details of its last event, for users the server's
        fault."""
        with self.target.database.read() as connection:
            if not self.caller.is_admin:
                server = servers.fetch_server_row(connection, self.target.row.id)
                return str(server.fault["message"]) if server and server.fault else ""
            return connection.execute(select(action_events.c.details).where(
                action_events.c.action_id == self.number).order_by(action_events.c.id.desc()).limit(1)).scalar() or ""


def hold_action(caller: Caller, target: ServerTarget, key: str, args: Mapping[str, Any],
                change: Change | None = None) -> HeldAction:
    """Queue the action *key* with the arguments *args* in a state in which conductors do not start it yet, and return
    it as a ``HeldAction``. *change*: a function that returns the server's new list of volumes from the current one; it
    is applied in the same transaction, and may refuse the action by raising a ``MagnetarError``. Raises ``Conflict``
    when the server has changed since the caller read it."""
    id, database = target.row.id, target.database
    with database.write() as connection:
        row = servers.fetch_server_row(connection, id, lock=True)
        if row is None or not servers.action_is_allowed(row, key) or not servers.request_server_action(
                connection, row, key, caller.request_id, caller.context.user_id, caller.project, args):
            raise changed_meanwhile(target, key)
        if change:
            servers.update_list_column(connection, id, "volumes", change)
        number = int(connection.execute(select(actions.c.id).where(
            actions.c.server_id == id, actions.c.action == key).order_by(actions.c.id.desc()).limit(1)).scalar_one())
        connection.execute(update(actions).where(actions.c.id == number).values(not_before=database.clock(HELD)))
    return HeldAction(caller, target, number)
