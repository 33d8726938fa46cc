# SPDX-License-Identifier: GPL-3.0-or-later
"""How actions are stopped from outside: those that run are told, and most of those that wait are dropped.

Stop them before the server's row is locked: who ends an action has its row first, too.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import orjson
from sqlalchemy import Connection, and_, bindparam, or_, select, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.expression import ColumnElement, Update, true

from magnetar_control.store.engine.database import now
from magnetar_control.store.engine.tables import actions, servers

from .action_secrets import forgotten
from .actions import Row, cut_off

#: Actions that are taken although they were cancelled: an image waits for their end.
OWING = ("createImage", "createBackup")
#: Messages of queued actions that are dropped.
DELETED = "The server was deleted meanwhile."
RESET = "An administrator reset the server's state before this was done."
OVERTAKEN = "A later action came over this before it was done."
#: Actions that a reset of the state does not drop: deletions; and those that only their flow can end, since they would
#: leave an image without content, a volume or port reserved or detaching, or a server between two hosts.
GOING = ("delete", "forceDelete")
LEFT_BEHIND = (*OWING, "attach_volume", "detach_volume", "swap_volume", "attach_interface", "shelve", "shelveOffload",
               "unshelve", "evacuate")
_RESET, _NAMED = actions.c.action.not_in(GOING), actions.c.action.in_(bindparam("keys", expanding=True))


def cancel(connection: Connection, server_id: str, *, stays: bool = False) -> list[Row]:
    """Cancel the actions of a server that is to be deleted: those that run are told, queued ones are dropped except
    ``OWING``. *stays*: it is soft-deleted, so that those of ``LEFT_BEHIND`` take back what they have reserved. Returns
    those that were dropped although they had begun: nobody else tells that they have ended."""
    return _stop(connection, true(), LEFT_BEHIND if stays else OWING, DELETED, server=server_id)


def reset(connection: Connection, server_id: str) -> list[Row]:
    """As ``cancel``, for a server that stays."""
    return _stop(connection, _RESET, LEFT_BEHIND, RESET, server=server_id)


def going(connection: Connection, server_id: str) -> bool:
    """Whether a deletion of the server waits or runs."""
    waits = actions.c.action.in_(GOING) & actions.c.state.in_(("queued", "running"))
    return connection.execute(select(actions.c.id).where(actions.c.server_id == server_id, waits)).first() is not None


def overtake(connection: Connection, server_id: str, keys: Collection[str]) -> list[Row]:
    """As ``cancel``, for the actions of these *keys* only, over which another one comes."""
    return _stop(connection, _NAMED, (), OVERTAKEN, server=server_id, keys=list(keys)) if keys else []


@cache
def _stops(which: ColumnElement[bool], taken: tuple[str, ...]) -> tuple[Update, ReturningUpdate[Any]]:
    """The statements of ``_stop``, made once: that takes longer than to execute them."""
    mine = update(actions).where(actions.c.server_id == bindparam("server"), which)
    queued, own = actions.c.state == "queued", actions.c.action.in_(taken)
    told = mine.where(or_(actions.c.state == "running", and_(queued, own))).values(cancel=True, not_before=None)
    return told, mine.where(queued, ~own).values(state="failed").returning(*actions.c[
        "id", "attempts", "args", "action", "request_id", "user_id", "project_id", "host", "message"])


def _stop(connection: Connection, which: ColumnElement[bool], taken: tuple[str, ...], why: str,
          **given: Any) -> list[Row]:
    """Cancel the actions of *which* that run, and the queued ones in *taken*; drop the other queued ones for *why*. A
    server whose rebuild has not begun is made of the image of before again. Returns those of them that had begun."""
    told, dropping = _stops(which, taken)
    connection.execute(told, given)
    dropped = connection.execute(dropping, {"message": why, "updated_at": now(), **given}).all()
    for row in dropped:
        if row.attempts:
            cut_off(connection, row.id)
        elif row.action == "rebuild" and (before := orjson.loads(row.args).get("before")):
            connection.execute(update(servers).where(servers.c.id == given["server"]).values(before))
        if (left := forgotten(row.args)) is not None:
            connection.execute(update(actions).where(actions.c.id == row.id).values(args=left))
    return [row for row in dropped if row.attempts]
