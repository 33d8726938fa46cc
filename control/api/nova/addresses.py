# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of servers, by the names of their networks."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.compute import servers
from magnetar_core.errors import NotFound

PATH = "/servers/{server_id}/ips"


def view(addresses: str) -> dict[str, Any]:
    """The addresses that a row keeps as JSON text, without their MAC addresses."""
    return {name: [{"version": one["version"], "addr": one["addr"]} for one in found]
            for name, found in orjson.loads(addresses).items()}


def index(call: Call) -> dict[str, Any]:
    """GET …/ips."""
    return {"addresses": view(servers.addresses(call, call.target))}


def show(call: Call) -> dict[str, Any]:
    """GET …/ips/{id}; the id is the network's name."""
    found, name = view(servers.addresses_on(call, call.target)), call.params["id"]
    if name not in found:
        raise NotFound("Instance is not a member of specified network")
    return {name: found[name]}


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="servers.ips.list", use=servers.addresses, target="server",
              strict=102),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="servers.ips.show", use=servers.addresses_on,
              target="server", strict=102),
)
