# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Networks. A network of type ``nat`` or ``isolated`` is made by the agents on each host that needs it; ``flat`` is a
*bridge* that each host has already."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, false, select, true

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict, InvalidField

from .requested_networks import visible
from .resources import NetworkResource, add, own
from .tables import networks, ports, subnets

#: Name of a network device.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}")
TYPES = ("nat", "isolated", "flat")
BRIDGE = "provider:physical_network"


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with the ids of their subnets."""
    ids: dict[str, list[str]] = {row["id"]: [] for row in rows}
    for id, network_id in connection.execute(select(subnets.c.id, subnets.c.network_id).where(
            subnets.c.network_id.in_(ids)).order_by(subnets.c.created_at)):
        ids[network_id].append(id)
    return [{**row, "subnets": ids[row["id"]]} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it. A bridge belongs to a flat network, and to no other."""
    type, bridge = values["type"], values["bridge"]
    _check_internal(values)
    if type == "flat" and not bridge:
        raise InvalidField(BRIDGE, "must be the name of the bridge that the hosts have, for a flat network")
    if type != "flat" and bridge:
        raise InvalidField(BRIDGE, f"cannot be given for a network of type {type}, which the agents make on each host")
    if type == "flat" and not DEVICE.fullmatch(bridge):
        raise InvalidField(BRIDGE, "must be the name of a network device", bridge)
    add(connection, networks, values)


def _check_internal(values: Document) -> None:
    if values.get("external"):
        raise InvalidField("router:external", "must be false: servers reach out through their hosts")


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """It stays shared while others have ports on it."""
    _check_internal(values)
    if row["shared"] and values.get("shared") is False:
        other = select(ports.c.id).where(ports.c.network_id == row["id"], ports.c.project_id != row["project_id"])
        if connection.execute(other.limit(1)).first():
            raise Conflict(f"Unable to reconfigure sharing settings for network {row['id']}. Multiple projects are "
                        "using it.", type="InvalidSharedSetting")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes with its subnets, when no port is on it. Ports of other projects are not named."""
    used = connection.execute(select(ports.c.id, own(ports)(context)).where(
        ports.c.network_id == row["id"]).limit(20)).all()
    if used:
        named = ", ".join(id for id, seen in used if seen)
        others = "" if all(seen for _id, seen in used) else "; some are other projects'"
        raise Conflict(f"Unable to complete operation on network {row['id']}. There are one or more ports still in "
                       f"use on the network{f', id for these ports is {named}' if named else ''}{others}.",
                       type="NetworkInUse")


NETWORK = NetworkResource(
    name="network", table=networks, visible=visible, documents=documents, create=create, update=update, delete=delete,
    defaults={"name": "", "description": "", "admin_state_up": True, "shared": False, "is_default": False,
              "external": False, "port_security_enabled": True, "mtu": 1500, "type": "nat", "bridge": None},
    admin=frozenset({"shared", "is_default", "external", "type", "bridge"}),
    filters={"external": lambda values: false() if {value.lower() for value in values} & {"true", "1"} else true(),
             "status": lambda values: true() if "ACTIVE" in values else false(), "tags": lambda _values: false()})
