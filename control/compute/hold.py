# SPDX-License-Identifier: GPL-3.0-or-later
"""An action that needs something of another service first (a volume, a port), and an answer about that at once.

The action is written down, held back from the conductors for a moment; then the API claims what it needs, and lets the
conductors have the action, or takes it back. If the API dies in between, a conductor takes the action when the moment
is over, and claims by itself: nothing is claimed that no action knows of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from sqlalchemy import delete, select, update

from magnetar_control.store import servers
from magnetar_control.store.tables import action_events, actions
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Conflict

#: Seconds for which an action is held back.
HELD = 10.0
List = list[dict[str, Any]]


def held(call: Any, key: str, args: Mapping[str, Any], column: str = "volumes",
         change: Callable[[List], List] | None = None) -> int:
    """Write *key* down and *change* a list of the server in the same transaction; returns the action's number.
    *change* may raise the core's errors. Raises ``Conflict`` when the server has changed meanwhile."""
    id, database = call.server.id, call.database
    with database.write() as connection:
        row = servers.row(connection, id, lock=True)
        if row is None or not servers.allowed(row, key) or not servers.ask(
                connection, row, key, call.request_id, call.context.user_id, call.project, args):
            raise Conflict(f"Cannot '{ACTIONS[key].label}' instance {id}: something else is being done to it. Try "
                           "again in a moment.")
        if change:
            servers.revise(connection, id, column, change)
        number = int(connection.execute(select(actions.c.id).where(
            actions.c.server_id == id, actions.c.action == key).order_by(actions.c.id.desc()).limit(1)).scalar_one())
        connection.execute(update(actions).where(actions.c.id == number).values(not_before=database.clock(HELD)))
    return number


def given(call: Any, number: int) -> bool:
    """Let the conductors have the action; False when the server is going meanwhile, or they took it by themselves."""
    with call.database.write() as connection:
        done = connection.execute(update(actions).where(actions.c.id == number, actions.c.state == "queued").values(
            not_before=None)).rowcount
        call.database.ring(connection, servers.ACTIONS_BELL)
        return bool(done) or connection.execute(select(actions.c.state).where(
            actions.c.id == number)).scalar() in ("running", "done")


def withdrawn(call: Any, number: int, column: str = "volumes", change: Callable[[List], List] | None = None) -> None:
    """Take the action back as if it had never been asked for, unless a conductor has it already, or has done it. One
    that was dropped meanwhile stays, as users may have seen it, without what it was to change."""
    with call.database.write() as connection:
        gone = connection.execute(delete(actions).where(actions.c.id == number, actions.c.state == "queued")).rowcount
        if change and (gone or connection.execute(select(actions.c.state).where(
                actions.c.id == number)).scalar() == "failed"):
            servers.revise(connection, call.server.id, column, change)


def ended(call: Any, number: int, limit: float) -> str | None:
    """Wait until the action has ended: ``done`` or ``failed``; ``None`` after *limit* seconds."""
    database, deadline = call.database, time.monotonic() + limit
    while True:
        seen = database.bell.count(servers.SERVERS_BELL)
        with database.read() as connection:
            state = connection.execute(select(actions.c.state).where(actions.c.id == number)).scalar()
        if state in ("done", "failed", None):
            return state or "failed"
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        database.bell.wait(servers.SERVERS_BELL, seen, left)


def why(call: Any, number: int) -> str:
    """What the last event of a failed action says to admins; to users, what the server's fault says."""
    with call.database.read() as connection:
        if not call.context.is_admin:
            server = servers.row(connection, call.server.id)
            return str(orjson.loads(server.fault)["message"]) if server and server.fault else ""
        return connection.execute(select(action_events.c.details).where(
            action_events.c.action_id == number).order_by(action_events.c.id.desc()).limit(1)).scalar() or ""
