# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares of servers: folders of hosts that guests mount. The operator's setting ``shares`` says which there are and
whose; a conductor has the host attach and detach them."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, enqueue, of_server
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.power import ACTIVE, PAUSED, RESCUED

RULE = "os_compute_api:os-server-shares:"
ATTACHING, INACTIVE, IN_USE, DETACHING, FAILED = "attaching", "inactive", "active", "detaching", "error"
Document = dict[str, Any]


def of_server_row(row: servers.Found) -> list[Document]:
    """The shares that a server has, or is being given, with the status that users see: one that is attached is active
    while the guest is on. One is {uuid, share_id, share (its name), tag, status, location}."""
    on = row.vm_state in (ACTIVE, PAUSED, RESCUED)
    kept: list[Document] = orjson.loads(row.shares)
    return [{**one, "status": IN_USE} if on and one["status"] == INACTIVE else one for one in kept]


def _share(target: Target, share_id: str) -> Document:
    for one in of_server_row(target.row):
        if one["share_id"] == share_id:
            return one
    raise NotFound(f"Share {share_id[:80]} could not be found.")


@of_server(rule=f"{RULE}index")
def index(_caller: Caller, target: Target) -> list[Document]:
    """All of them."""
    return of_server_row(target.row)


@of_server(rule=f"{RULE}show")
def show(_caller: Caller, target: Target, share_id: str) -> Document:
    """One of them. Raises ``NotFound``."""
    return _share(target, share_id)


@of_server("attach_share")
def attach(caller: Caller, target: Target, share_id: str, tag: str | None = None) -> Document:
    """Have the host give the server a share of the server's project, which the guest mounts by its *tag* (its uuid by
    default). Raises ``NotFound``, ``Conflict``."""
    found = caller.cloud.shares.get(share_id)
    if found is None or not found.is_for(target.row.project_id):
        raise NotFound(f"Share {share_id} could not be found.")
    entry = {"uuid": str(uuid.uuid4()), "share_id": share_id, "share": found.name, "tag": tag or share_id,
             "status": ATTACHING, "location": None}

    def added(kept: list[Document]) -> list[Document]:
        if any(one["share_id"] == share_id or one["tag"] == entry["tag"] for one in kept):
            raise Conflict(f"Share {share_id} or tag {entry['tag']} is already associated to this server.")
        return [*kept, entry]

    def also(connection: Connection) -> None:
        servers.revise(connection, target.row.id, "shares", added)

    enqueue(caller, target, "attach_share", {"uuid": entry["uuid"]}, also)
    return entry


@of_server("detach_share")
def detach(caller: Caller, target: Target, share_id: str) -> None:
    """Have the host take the share from the server. Raises ``NotFound``, ``Conflict``."""
    entry = _share(target, share_id)
    if entry["status"] == DETACHING:
        raise Conflict(f"Share {share_id} is being detached from instance {target.row.id}.")

    def also(connection: Connection) -> None:
        servers.revise(connection, target.row.id, "shares", lambda kept: [
            {**one, "status": DETACHING} if one["uuid"] == entry["uuid"] else one for one in kept])

    enqueue(caller, target, "detach_share", {"uuid": entry["uuid"]}, also)
