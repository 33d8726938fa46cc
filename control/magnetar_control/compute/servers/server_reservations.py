# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes and ports that new servers name: they are reserved before the request is answered, so that nobody else gets
them.

The servers are written down first, with their ``create`` actions held back for a moment (see ``held_action``). If the
API dies in between, a conductor takes the actions then and reserves by itself, under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, select, update

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.held_action import HELD
from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_core.errors import MagnetarError

Row = Mapping[Any, Any]
#: Seconds for which the actions of servers that are refused are held back while their reservations are freed.
WITHDRAWN = 300


class NamedResources(NamedTuple):
    """The existing volumes and ports that a new server's request names."""

    volumes: list[str]
    ports: list[str]


#: What new servers name, by their uuids; empty where none of them names anything.
OfServers = Mapping[str, NamedResources]


def named_by(rows: Sequence[Row]) -> OfServers:
    """Return the existing volumes and ports that the *rows* of new servers ask for."""
    named = {row["id"]: _of_row(row) for row in rows}
    return named if any(map(any, named.values())) else {}


def _of_row(row: Row) -> NamedResources:
    request = orjson.loads(row["request"])
    return NamedResources(
        [str(block["uuid"]) for block in request.get("blocks") or () if block["source_type"] == "volume"],
        [str(nic["port_id"]) for nic in request.get("networks") or () if nic.get("port_id")])


def held_until(caller: Caller, named: OfServers) -> Any:
    """Return until when the servers' ``create`` actions are held back: ``None`` where nothing must be reserved."""
    return caller.cloud.store.cell0.clock(HELD) if named else None


def reserve(caller: Caller, named: OfServers) -> None:
    """Reserve volumes and ports of new servers, and let the conductors have their actions. Raises what reserving
    raises; then none of the servers is there any more."""
    if not named:
        return
    volumes, network = caller.cloud.services.volume, caller.cloud.services.network
    database, reserved = caller.cloud.store.cell0, set[str]()
    try:
        for server_id, resources in named.items():
            if resources.ports:
                network.reserve(server_id, resources.ports)
            for id in resources.volumes:
                attachment_id = id_of_new(server_id, id)
                volumes.reserve(caller.context, id, server_id, attachment_id=attachment_id)
                reserved.add(attachment_id)
    except MagnetarError:
        _withdraw(caller, named, reserved)
        raise
    with database.write() as connection:
        connection.execute(update(actions).where(*_waiting(named)).values(not_before=None))
        database.ring(connection, servers.ACTIONS_BELL)
    _free_of_deleted(caller, named)


def _waiting(server_ids: Iterable[str]) -> tuple[ColumnElement[bool], ...]:
    """Return what is true of the servers' ``create`` actions that have not begun."""
    return actions.c.server_id.in_([*server_ids]), actions.c.action == "create", actions.c.state == "queued"


def _withdraw(caller: Caller, named: OfServers, reserved: set[str]) -> None:
    """Free what was reserved for servers that are refused, then remove those that no conductor has taken.

    Their actions are held back for longer first. If the API dies in between, a conductor takes them then, reserves by
    itself, and frees what it must: nothing stays reserved for a server that nobody knows.
    """
    database, untouched = caller.cloud.store.cell0, (*_waiting(named), actions.c.attempts == 0)
    with database.write() as connection:
        connection.execute(update(actions).where(*untouched).values(not_before=database.clock(WITHDRAWN)))
        held = set(connection.execute(select(actions.c.server_id).where(*untouched)).scalars())
    for server_id, resources in named.items():
        if server_id in held:
            _free(caller, server_id, resources, reserved)
    with database.write() as connection:
        servers.leave(connection, connection.execute(select(actions.c.server_id).where(*untouched)).scalars().all())


def _free(caller: Caller, server_id: str, resources: NamedResources, reserved: set[str] | None = None) -> None:
    """Free what was reserved for a server; of attachments only those of *reserved*, where given."""
    if resources.ports:
        caller.cloud.services.network.release(server_id)
    for attachment_id in (id_of_new(server_id, id) for id in resources.volumes):
        if reserved is None or attachment_id in reserved:
            caller.cloud.services.volume.detached(attachment_id)


def _free_of_deleted(caller: Caller, named: OfServers) -> None:
    """Free what was reserved for a server that somebody deletes meanwhile: its deletion may have been done by then."""
    found = servers.find_each(caller.cloud.store, [*named])
    for server_id, resources in named.items():
        _database, server = found.get(server_id, (None, None))
        # One that moved into its cell between the two reads is in neither; ``find`` looks again.
        gone = server_id not in found and servers.find(caller.cloud.store, server_id) is None
        if gone or (server is not None and server.task_state == servers.DELETING):
            _free(caller, server_id, resources)
