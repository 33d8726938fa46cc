# SPDX-License-Identifier: GPL-3.0-or-later
"""The security groups of servers: those of their ports, which the network service keeps."""

from __future__ import annotations

from magnetar_control.services import Documents
from magnetar_control.store import servers
from magnetar_core.errors import InvalidRequest, NotFound

from .caller import Caller
from .target import Target, of_server

RULE = "os_compute_api:os-security-groups:"


@of_server(rule=f"{RULE}list")
def of_one(caller: Caller, target: Target) -> Documents:
    """Those of a server's ports, as ``Networks.groups_of`` returns them."""
    return caller.cloud.services.network.groups_of(target.row.id)


@of_server(rule=f"{RULE}add")
def add(caller: Caller, target: Target, name: str) -> None:
    """Give all ports of a server a security group of its project. Raises ``InvalidRequest``, ``NotFound``,
    ``Conflict``."""
    _change(caller, target, name, add=True)


@of_server(rule=f"{RULE}remove")
def remove(caller: Caller, target: Target, name: str) -> None:
    """Take a security group off the ports of a server. Raises as ``add``."""
    _change(caller, target, name, add=False)


def _change(caller: Caller, target: Target, name: str, *, add: bool) -> None:
    network, server = caller.cloud.services.network, target.row
    try:
        network.change_groups(server.project_id, server.id, name, add=add)
    except InvalidRequest as error:
        if error.details.get("type") == "SecurityGroupNotFound":
            raise NotFound(error.message) from None
        raise
    with target.database.write() as connection:
        # Asked under the server's lock, so that who writes last knows of all changes.
        if servers.row(connection, server.id, lock=True) is None:
            raise servers.Moved
        servers.change(connection, server.id, security_groups=servers.text([
            {"name": one["name"], "id": one["id"]} for one in network.groups_of(server.id)]))
