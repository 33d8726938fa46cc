# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of servers, by the names of their networks."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_core.errors import NotFound

PATH = "/servers/{server_id}/ips"


def _addresses(call: Call) -> dict[str, Any]:
    return {name: [{"version": one["version"], "addr": one["addr"]} for one in found]
            for name, found in orjson.loads(call.server.addresses).items()}


def index(call: Call) -> dict[str, Any]:
    """GET …/ips."""
    return {"addresses": _addresses(call)}


def show(call: Call) -> dict[str, Any]:
    """GET …/ips/{id}; the id is the network's name."""
    found, name = _addresses(call), call.params["id"]
    if name not in found:
        raise NotFound("Instance is not a member of specified network")
    return {name: found[name]}


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="servers.ips.list", rule="os_compute_api:ips:index",
              target="server", strict=102),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="servers.ips.show", rule="os_compute_api:ips:show",
              target="server", strict=102),
)
