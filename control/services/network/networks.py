# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""Networks. The provider part says what a server's host has for it: ``nat`` and ``isolated`` are made there by the
agent, ``flat`` is the bridge ``provider:physical_network`` that each host has already."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, false, select, true

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict

from .attributes import Attribute, boolean, integer, invalid, nullable, one_of, table, text
from .nouns import Noun, add, change, common, remove
from .tables import networks, ports, subnets
from .wishes import visible

#: Name of a network device.
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,14}")
TYPES = ("nat", "isolated", "flat")
PROVIDER = {"provider:network_type": "type", "provider:physical_network": "bridge"}

ATTRIBUTES = table(
    Attribute(name="name", check=text, default=""),
    Attribute(name="admin_state_up", check=boolean, default=True),
    Attribute(name="shared", check=boolean, default=False, admin=True),
    Attribute(name="is_default", check=boolean, default=False, admin=True),
    Attribute(name="port_security_enabled", check=boolean, default=True),
    Attribute(name="mtu", check=integer(576, 65535), default=1500, on="create"),
    Attribute(name="router:external", check=one_of(False), on="create update", admin=True),
    Attribute(name="provider:network_type", check=one_of(*TYPES), default="nat", on="create", admin=True),
    Attribute(name="provider:physical_network", check=nullable(text), default=None, on="create", admin=True),
    Attribute(name="provider:segmentation_id", check=nullable(one_of()), on="create", admin=True))


def show(connection: Connection, context: Context, rows: Sequence[RowMapping]) -> list[Document]:
    """As the API reference has them; the provider part for admins."""
    ids: dict[str, list[str]] = {row["id"]: [] for row in rows}
    for id, network_id in connection.execute(select(subnets.c.id, subnets.c.network_id).where(
            subnets.c.network_id.in_(ids)).order_by(subnets.c.created_at)):
        ids[network_id].append(id)
    return [{**_one(row), "subnets": ids[row["id"]], **(_provider(row) if context.is_admin else {})} for row in rows]


def _one(row: RowMapping) -> Document:
    return {**common(row), "name": row["name"], "admin_state_up": row["admin_state_up"], "status": "ACTIVE",
            "shared": row["shared"], "is_default": row["is_default"], "router:external": False, "mtu": row["mtu"],
            "port_security_enabled": row["port_security_enabled"], "availability_zones": ["nova"],
            "availability_zone_hints": [], "ipv4_address_scope": None, "ipv6_address_scope": None}


def _provider(row: RowMapping) -> Document:
    return {"provider:network_type": row["type"], "provider:physical_network": row["bridge"],
            "provider:segmentation_id": None}


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it. A bridge belongs to a flat network, and to no other."""
    type, bridge = values["provider:network_type"], values["provider:physical_network"]
    if type == "flat" and not bridge:
        raise invalid("provider:physical_network", "a flat network needs the name of the bridge that the hosts have")
    if type != "flat" and bridge:
        raise invalid("provider:physical_network", f"it cannot be given for a network of type {type}, which the agents "
                      "make on each host")
    if type == "flat" and not DEVICE.fullmatch(bridge):
        raise invalid("provider:physical_network", f"'{bridge}' is not the name of a network device")
    add(connection, networks, {**values, "type": type, "bridge": bridge})


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Change it. It stays shared while others have ports on it."""
    if row["shared"] and values.get("shared") is False:
        other = select(ports.c.id).where(ports.c.network_id == row["id"], ports.c.project_id != row["project_id"])
        if connection.execute(other.limit(1)).first():
            raise Conflict(f"Unable to reconfigure sharing settings for network {row['id']}. Multiple projects are "
                        "using it.", type="InvalidSharedSetting")
    change(connection, networks, row["id"], values)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it with its subnets, when no port is on it."""
    used = connection.execute(select(ports.c.id).where(ports.c.network_id == row["id"]).limit(20)).scalars().all()
    if used:
        raise Conflict(f"Unable to complete operation on network {row['id']}. There are one or more ports still in "
                    f"use on the network, id for these ports is {', '.join(used)}.", type="NetworkInUse")
    remove(connection, networks, row["id"])


NETWORK = Noun(
    name="network", plural="networks", path="networks", table=networks, attributes=ATTRIBUTES, show=show, create=create,
    update=update, delete=delete, visible=visible, columns=PROVIDER,
    filters={"router:external": lambda _context, values: false() if _true(values) else true(),
             "status": lambda _context, values: true() if "ACTIVE" in values else false(),
             "tags": lambda _context, _values: false()})


def _true(values: Sequence[str]) -> bool:
    return any(value.lower() in ("true", "1") for value in values)
