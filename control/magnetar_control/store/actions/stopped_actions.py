# SPDX-License-Identifier: GPL-3.0-or-later
"""The functions that stop actions because of other requests: running actions are cancelled, and most queued ones are
dropped.

Stop actions before locking the server's row: a conductor that ends an action locks the action's row first, too.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Connection, and_, bindparam, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.expression import ColumnElement, Update, true

from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import actions, servers

from .action_row import StoppedAction
from .actions import interrupt_event_rows, strip_password_argument

#: Actions that stay in the queue although they are cancelled: only their own flow can finish or remove their image.
OWING = ("createImage", "createBackup")
#: Messages of queued actions that are dropped.
DELETED = "The server was deleted meanwhile."
RESET = "An administrator reset the server's state before this was done."
OVERTAKEN = "A later action came over this before it was done."
#: Actions that a reset of the state keeps. ``GOING``: deletions. ``LEFT_BEHIND``: actions that only their own flow can
#: end. If dropped, they would leave an image without content, a volume or port reserved or detaching, or a server
#: between two hosts.
GOING = ("delete", "forceDelete")
LEFT_BEHIND = (*OWING, "attach_volume", "detach_volume", "swap_volume", "attach_interface", "shelve", "shelveOffload",
               "unshelve", "evacuate")
_RESET, _NAMED = actions.c.action.not_in(GOING), actions.c.action.in_(bindparam("keys", expanding=True))


def cancel_server_actions(connection: Connection, server_id: str, *, stays: bool = False) -> list[StoppedAction]:
    """Cancel the running actions of a server that is being deleted, and remove the queued ones from the queue. Queued
    actions that create images (``OWING``) are not removed.

    *stays*: whether the server is only soft-deleted; then the queued actions in ``LEFT_BEHIND`` are not removed either,
    because they release reserved resources. Return those of the removed actions that had started: the caller must
    report that these ended, because no conductor will.
    """
    return _stop(connection, true(), LEFT_BEHIND if stays else OWING, DELETED, server=server_id)


def reset_server_actions(connection: Connection, server_id: str) -> list[StoppedAction]:
    """Cancel the running actions of a server and drop the queued ones, because an administrator resets its state.
    Deletions continue, and queued actions that must release reserved resources (``LEFT_BEHIND``) stay. Return the
    dropped actions that had started."""
    return _stop(connection, _RESET, LEFT_BEHIND, RESET, server=server_id)


def deletion_is_pending(connection: Connection, server_id: str) -> bool:
    """Return whether a deletion of the server is queued or running."""
    waits = actions.c.action.in_(GOING) & actions.c.state.in_(("queued", "running"))
    return connection.execute(select(actions.c.id).where(actions.c.server_id == server_id, waits)).first() is not None


def overtake_server_actions(connection: Connection, server_id: str, keys: Collection[str]) -> list[StoppedAction]:
    """Cancel the running actions of a server whose names are in *keys* (such as ``resize``), and remove the queued ones
    with these names from the queue, because a later action replaces them. Return those of the removed actions that had
    started."""
    return _stop(connection, _NAMED, (), OVERTAKEN, server=server_id, keys=list(keys)) if keys else []


@cache
def _stops(which: ColumnElement[bool], taken: tuple[str, ...]) -> tuple[Update, ReturningUpdate[Any]]:
    """Return two UPDATE statements for the actions of one server: the first cancels running actions, the second drops
    queued ones. *which*: the condition for actions to stop. *taken*: names of actions that stay in the queue: if they
    are queued, the first statement marks them as cancelled, and the second does not drop them. Cached, because building
    a statement takes longer than executing it."""
    mine = update(actions).where(actions.c.server_id == bindparam("server"), which)
    queued, is_taken = actions.c.state == "queued", actions.c.action.in_(taken)
    cancelling = mine.where(or_(actions.c.state == "running", and_(queued, is_taken))).values(cancel=True,
                                                                                              not_before=None)
    return cancelling, mine.where(queued, ~is_taken).values(state="failed").returning(
        *actions.c[StoppedAction.columns])


def _stop(connection: Connection, which: ColumnElement[bool], taken: tuple[str, ...], why: str,
          **parameters: Any) -> list[StoppedAction]:
    """Cancel the server's running actions that satisfy *which* (an SQL condition), and drop the queued ones with the
    message *why*. *taken*: names of actions that stay in the queue: if they are queued, they are only marked as
    cancelled. *parameters*: parameters of the SQL statements; ``server`` is the server's uuid.

    If a rebuild is dropped that has not started, restore the server's earlier image columns. Return the dropped actions
    that had started.
    """
    cancelling, dropping = _stops(which, taken)
    connection.execute(cancelling, parameters)
    dropped = StoppedAction.several(connection.execute(dropping, {
        "message": why, "updated_at": utc_now(), **parameters}))
    for row in dropped:
        if row.attempts:
            interrupt_event_rows(connection, row.id)
        elif row.action == "rebuild" and (earlier_columns := row.args.get("before")):
            connection.execute(update(servers).where(servers.c.id == parameters["server"]).values(earlier_columns))
        if (remaining_args := strip_password_argument(row.stored.args)) is not None:
            connection.execute(update(actions).where(actions.c.id == row.id).values(args=remaining_args))
    return [row for row in dropped if row.attempts]
