# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes and ports that new servers name: they are reserved before the request is answered, so that nobody else gets
them.

The servers are written down first, with their ``create`` actions held back for a moment (see ``held_action``). If the
API dies in between, a conductor takes the actions then and reserves by itself, under the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, select, update

from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store import servers
from magnetar_control.store.tables import actions
from magnetar_core.errors import MagnetarError

from .caller import Caller
from .held_action import HELD

Row = Mapping[Any, Any]
#: Seconds for which the actions of servers that are refused are held back while their reservations are freed.
WITHDRAWN = 300


class NamedResources(NamedTuple):
    """The existing volumes and ports that a new server's request names."""

    volumes: list[str]
    ports: list[str]


def of_row(row: Row) -> NamedResources:
    """Return the existing volumes and ports that a new server's *row* asks for."""
    request = orjson.loads(row["request"])
    return NamedResources(
        [str(block["uuid"]) for block in request.get("blocks") or () if block["source_type"] == "volume"],
        [str(nic["port_id"]) for nic in request.get("networks") or () if nic.get("port_id")])


def _is_any(rows: Sequence[Row]) -> bool:
    return any(any(of_row(row)) for row in rows)


def held_until(caller: Caller, rows: Sequence[Row]) -> Any:
    """Return until when the ``create`` actions of *rows* are held back: ``None`` where nothing must be reserved."""
    return caller.cloud.store.cell0.clock(HELD) if _is_any(rows) else None


def reserve(caller: Caller, rows: Sequence[Row]) -> None:
    """Reserve volumes and ports of new servers, and let the conductors have their actions. Raises what reserving
    raises; then none of the servers is there any more."""
    if not _is_any(rows):
        return
    volumes, network = caller.cloud.services.volume, caller.cloud.services.network
    database, reserved, waiting = caller.cloud.store.cell0, set[str](), _waiting(rows)
    try:
        for row in rows:
            if ports := of_row(row).ports:
                network.reserve(row["id"], ports)
            for id in of_row(row).volumes:
                attachment_id = id_of_new(row["id"], id)
                volumes.reserve(caller.context, id, row["id"], attachment_id=attachment_id)
                reserved.add(attachment_id)
    except MagnetarError:
        _withdraw(caller, rows, reserved)
        raise
    with database.write() as connection:
        connection.execute(update(actions).where(*waiting).values(not_before=None))
        database.ring(connection, servers.ACTIONS_BELL)
    _free_of_deleted(caller, rows)


def _waiting(rows: Sequence[Row]) -> tuple[ColumnElement[bool], ...]:
    """Return what is true of the ``create`` actions of *rows* that have not begun."""
    return (actions.c.server_id.in_([row["id"] for row in rows]), actions.c.action == "create",
            actions.c.state == "queued")


def _withdraw(caller: Caller, rows: Sequence[Row], reserved: set[str]) -> None:
    """Free what was reserved for servers that are refused, then remove those that no conductor has taken.

    Their actions are held back for longer first. If the API dies in between, a conductor takes them then, reserves by
    itself, and frees what it must: nothing stays reserved for a server that nobody knows.
    """
    database, untouched = caller.cloud.store.cell0, (*_waiting(rows), actions.c.attempts == 0)
    with database.write() as connection:
        connection.execute(update(actions).where(*untouched).values(not_before=database.clock(WITHDRAWN)))
        held = set(connection.execute(select(actions.c.server_id).where(*untouched)).scalars())
    for row in rows:
        if row["id"] in held:
            _free(caller, row, reserved)
    with database.write() as connection:
        servers.leave(connection, connection.execute(select(actions.c.server_id).where(*untouched)).scalars().all())


def _free(caller: Caller, row: Row, reserved: set[str] | None = None) -> None:
    """Free what was reserved for a server; of attachments only those of *reserved*, where given."""
    named = of_row(row)
    if named.ports:
        caller.cloud.services.network.release(row["id"])
    for id in named.volumes:
        if reserved is None or id_of_new(row["id"], id) in reserved:
            caller.cloud.services.volume.detached(id_of_new(row["id"], id))


def _free_of_deleted(caller: Caller, rows: Sequence[Row]) -> None:
    """Free what was reserved for a server that somebody deletes meanwhile: its deletion may have been done by then."""
    found = servers.find_each(caller.cloud.store, [row["id"] for row in rows])
    for row in rows:
        _database, server = found.get(row["id"], (None, None))
        # One that moved into its cell between the two reads is in neither; ``find`` looks again.
        gone = row["id"] not in found and servers.find(caller.cloud.store, row["id"]) is None
        if gone or (server is not None and server.task_state == servers.DELETING):
            _free(caller, row)
