# SPDX-License-Identifier: GPL-3.0-or-later
"""Shares of servers: folders of hosts that guests mount. The operator's setting ``shares`` lists them and their
projects; the conductors attach and detach them on the hosts."""

from __future__ import annotations

import uuid

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, enqueue_action, server_use_case
from magnetar_control.documents import ShareOfServer
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, NotFound
from magnetar_core.power import ACTIVE, PAUSED, RESCUED

RULE = "os_compute_api:os-server-shares:"
ATTACHING, INACTIVE, IN_USE, DETACHING, FAILED = "attaching", "inactive", "active", "detaching", "error"


def shares_of_server(row: ServerRow) -> list[ShareOfServer]:
    """Return the attached shares of a server with the status that the API shows, including shares that are being
    attached. The status of an attached share is active while the guest runs, is paused or is rescued; otherwise the
    status is inactive."""
    on = row.vm_state in (ACTIVE, PAUSED, RESCUED)
    return [{**share, "status": IN_USE} if on and share["status"] == INACTIVE else share for share in row.shares]


def _find_share(target: ServerTarget, share_id: str) -> ShareOfServer:
    for share in shares_of_server(target.row):
        if share["share_id"] == share_id:
            return share
    raise NotFound(f"Share {share_id[:80]} could not be found.")


@server_use_case(rule=f"{RULE}index")
def list_server_shares(_caller: Caller, target: ServerTarget) -> list[ShareOfServer]:
    """Return all share attachments of the server."""
    return shares_of_server(target.row)


@server_use_case(rule=f"{RULE}show")
def show_server_share(_caller: Caller, target: ServerTarget, share_id: str) -> ShareOfServer:
    """Return the server's attachment of the share *share_id*. Raises ``NotFound``."""
    return _find_share(target, share_id)


@server_use_case("attach_share")
def attach_server_share(caller: Caller, target: ServerTarget, share_id: str, tag: str | None = None) -> Document:
    """Queue the attachment of a share to the server, and return the new attachment. The guest mounts the share by *tag*
    (default: the share's uuid). Raises ``NotFound``, also when the server's project may not use the share, and
    ``Conflict``."""
    offered = caller.cloud.shares.get(share_id)
    if offered is None or not offered.is_for(target.row.project_id):
        raise NotFound(f"Share {share_id} could not be found.")
    entry = {"uuid": str(uuid.uuid4()), "share_id": share_id, "share": offered.name, "tag": tag or share_id,
             "status": ATTACHING, "location": None}

    def added(shares: list[Document]) -> list[Document]:
        if any(share["share_id"] == share_id or share["tag"] == entry["tag"] for share in shares):
            raise Conflict(f"Share {share_id} or tag {entry['tag']} is already associated to this server.")
        return [*shares, entry]

    def also(connection: Connection) -> None:
        servers.update_list_column(connection, target.row.id, "shares", added)

    enqueue_action(caller, target, "attach_share", {"uuid": entry["uuid"]}, also)
    return entry


@server_use_case("detach_share")
def detach_server_share(caller: Caller, target: ServerTarget, share_id: str) -> None:
    """Queue the detachment of a share from the server. Raises ``NotFound``, ``Conflict``."""
    entry = _find_share(target, share_id)
    if entry["status"] == DETACHING:
        raise Conflict(f"Share {share_id} is being detached from instance {target.row.id}.")

    def also(connection: Connection) -> None:
        servers.update_list_column(connection, target.row.id, "shares", lambda shares: [
            {**share, "status": DETACHING} if share["uuid"] == entry["uuid"] else share for share in shares])

    enqueue_action(caller, target, "detach_share", {"uuid": entry["uuid"]}, also)
