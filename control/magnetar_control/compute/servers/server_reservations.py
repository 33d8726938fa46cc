# SPDX-License-Identifier: GPL-3.0-or-later
"""Reservation of the volumes and ports that new servers name, before the request is answered: no other client gets
them.

The servers are written first, with their ``create`` actions held back for a moment (see ``held_action``). If the API
dies in between, a conductor takes the actions after that time and makes the reservations itself, under the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, select, update

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.held_action import HELD
from magnetar_control.documents import ServerRequest
from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import MagnetarError

Row = Mapping[Any, Any]
#: Seconds for which the actions of refused servers are held back while their reservations are released.
WITHDRAWN = 300


class NamedResources(NamedTuple):
    """The uuids of the existing volumes and ports that a request for new servers names."""

    volumes: list[str]
    ports: list[str]


#: The resources that new servers name, by the servers' uuids; empty when they name none.
OfServers = Mapping[str, NamedResources]


def named_resources(rows: Sequence[Row]) -> OfServers:
    """Return the existing volumes and ports that the requests of new servers name, by server id. Return an empty
    mapping if no request names any. *rows*: the rows of the servers."""
    texts = {row["request"] for row in rows}  # usually one: the request of all these servers
    by_text = {text: _resources_in_request(ServerRow.of_values({"request": text}).request) for text in texts}
    named = {row["id"]: by_text[row["request"]] for row in rows}
    return named if any(map(any, named.values())) else {}


def _resources_in_request(request: ServerRequest) -> NamedResources:
    return NamedResources(
        [str(block["uuid"]) for block in request.get("blocks") or () if block["source_type"] == "volume"],
        [str(nic["port_id"]) for nic in request.get("networks") or () if nic.get("port_id")])


def held_until(caller: Caller, named: OfServers) -> Any:
    """Return the time until which no conductor may start the ``create`` actions of the servers in *named*, because
    their ports and volumes must be reserved first. Return ``None`` if *named* is empty."""
    return caller.cloud.store.cell0.clock(HELD) if named else None


def reserve_named_resources(caller: Caller, named: OfServers) -> None:
    """Reserve the volumes and ports in *named* (by server id), then let the conductors start the servers' ``create``
    actions. If a reservation fails, remove all of the servers, and raise the error."""
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
        _withdraw_servers(caller, named, reserved)
        raise
    with database.write() as connection:
        connection.execute(update(actions).where(*_queued_creates(named)).values(not_before=None))
        database.notify(connection, servers.ACTIONS_CHANGED)
    _free_of_deleted_servers(caller, named)


def _queued_creates(server_ids: Iterable[str]) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for the servers' ``create`` actions that have not begun."""
    return actions.c.server_id.in_([*server_ids]), actions.c.action == "create", actions.c.state == "queued"


def _withdraw_servers(caller: Caller, named: OfServers, reserved: set[str]) -> None:
    """Remove the servers in *named* that no conductor has begun to build, after releasing their reservations.
    *reserved*: the volume attachments that were reserved. Called when a reservation fails.

    First, the ``create`` actions of the servers are delayed further. If the API process dies before the servers are
    removed, a conductor starts the actions after this delay, makes the reservations itself, and builds the servers, so
    no reservation is left without a server.
    """
    database, untouched = caller.cloud.store.cell0, (*_queued_creates(named), actions.c.attempts == 0)
    with database.write() as connection:
        connection.execute(update(actions).where(*untouched).values(not_before=database.clock(WITHDRAWN)))
        held_servers = set(connection.execute(select(actions.c.server_id).where(*untouched)).scalars())
    for server_id, resources in named.items():
        if server_id in held_servers:
            _free_reservations(caller, server_id, resources, reserved)
    with database.write() as connection:
        servers.remove_scheduled_servers(connection, connection.execute(
            select(actions.c.server_id).where(*untouched)).scalars().all())


def _free_reservations(caller: Caller, server_id: str, resources: NamedResources,
                       reserved: set[str] | None = None) -> None:
    """Release the reservations that the server *server_id* has of the ports and volumes in *resources*. *reserved*: the
    volume attachments to release; ``None``: all in *resources*."""
    if resources.ports:
        caller.cloud.services.network.release(server_id)
    for attachment_id in (id_of_new(server_id, id) for id in resources.volumes):
        if reserved is None or attachment_id in reserved:
            caller.cloud.services.volume.detached(attachment_id)


def _free_of_deleted_servers(caller: Caller, named: OfServers) -> None:
    """Release the reservations of those servers in *named* that another client has deleted since this request created
    the servers. A deletion that ended before the reservations were made could not release these reservations."""
    located_servers = servers.find_server_rows(caller.cloud.store, [*named])
    for server_id, resources in named.items():
        _database, server = located_servers.get(server_id, (None, None))
        # A server that moved into its cell between the two reads is in neither; ``find_server_row`` looks again.
        is_deleted = server_id not in located_servers and servers.find_server_row(caller.cloud.store, server_id) is None
        if is_deleted or (server is not None and server.task_state == servers.DELETING):
            _free_reservations(caller, server_id, resources)
