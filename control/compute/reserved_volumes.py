# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes that new servers name: they are reserved before the request is answered, so that nobody else gets them.

The servers are written down first, with their ``create`` actions held back for a moment (see ``held_action``). If the
API dies in between, a conductor takes the actions then and reserves by itself, under the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import select, update

from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store import servers
from magnetar_control.store.tables import actions
from magnetar_core.errors import MagnetarError

from .caller import Caller
from .held_action import HELD

Row = Mapping[Any, Any]


def of_row(row: Row) -> list[str]:
    """Return the volumes that exist already and that a new server's *row* asks for."""
    return [str(one["uuid"]) for one in orjson.loads(row["request"]).get("blocks") or ()
            if one["source_type"] == "volume"]


def held_until(caller: Caller, rows: Sequence[Row]) -> Any:
    """Return until when the ``create`` actions of *rows* are held back: ``None`` where no volume must be reserved."""
    return caller.cloud.store.cell0.clock(HELD) if any(map(of_row, rows)) else None


def reserve(caller: Caller, rows: Sequence[Row]) -> None:
    """Reserve the volumes of new servers, and let the conductors have their actions. Raises what reserving raises; then
    none of the servers is there any more."""
    if not any(map(of_row, rows)):
        return
    volumes, database = caller.cloud.services.volume, caller.cloud.store.cell0
    reserved, ids = list[str](), [row["id"] for row in rows]
    waiting = (actions.c.server_id.in_(ids), actions.c.action == "create", actions.c.state == "queued")
    try:
        for row in rows:
            for id in of_row(row):
                attachment_id = id_of_new(row["id"], id)
                volumes.reserve(caller.context, id, row["id"], attachment_id=attachment_id)
                reserved.append(attachment_id)
    except MagnetarError:
        with database.write() as connection:
            gone = servers.leave(connection, connection.execute(select(actions.c.server_id).where(
                *waiting, actions.c.attempts == 0)).scalars().all())
        mine = {id_of_new(left.server["id"], id) for left in gone for id in of_row(left.server)}
        for attachment_id in mine.intersection(reserved):
            volumes.detached(attachment_id)
        raise
    with database.write() as connection:
        connection.execute(update(actions).where(*waiting).values(not_before=None))
        database.ring(connection, servers.ACTIONS_BELL)
    _free_of_deleted(caller, rows)


def _free_of_deleted(caller: Caller, rows: Sequence[Row]) -> None:
    """Free what was reserved for a server that somebody deletes meanwhile: its deletion may have been done by then."""
    found = servers.find_each(caller.cloud.store, [row["id"] for row in rows])
    for row in rows:
        _database, server = found.get(row["id"], (None, None))
        if row["id"] not in found or (server is not None and server.task_state == servers.DELETING):
            for id in of_row(row):
                caller.cloud.services.volume.detached(id_of_new(row["id"], id))
