# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Port forwardings: a router forwards single TCP, UDP or SCTP ports of a floating IP to ports of servers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy import delete as deleting
from sqlalchemy import update as updating

from magnetar_control.services import Context
from magnetar_control.services.network.resources import (
    NetworkResource,
    find_resource_row,
    insert_resource_row,
    rows_of_caller,
)
from magnetar_control.services.network.tables import floating_ips, forwardings
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest

from .floating_ips import FLOATING_IP, ObservedFloatingIps, forwardings_of, leads_to

#: Maximum number of port forwardings of a floating IP.
MOST = 100


def create_port_forwarding_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a port forwarding. Raises ``Conflict`` when the floating IP is associated with a
    port."""
    floating = find_resource_row(connection, context, FLOATING_IP, values["floatingip_id"], lock=True)
    if floating["port_id"] is not None:
        raise Conflict(f"Floating IP {floating['id']} is associated with port {floating['port_id']}, so all of its "
                       "ports lead there. Disassociate it first.", type="FloatingIPInUse")
    if (connection.execute(select(func.count()).where(
            forwardings.c.floatingip_id == floating["id"])).scalar() or 0) >= MOST:
        raise Conflict(f"Floating IP {floating['id']} has {MOST} port forwardings, and may have no more.",
                       type="OverQuota")
    values["project_id"] = floating["project_id"]
    values.update(_inside(connection, context, floating, values))
    _check_alone(connection, values)
    insert_resource_row(connection, forwardings, values)


def _inside(connection: Connection, context: Context, floating: RowMapping, values: Mapping[Any, Any]) -> Document:
    """Return {"internal_ip_address": the fixed address that a port forwarding with *values* leads to}. Also set the
    router of the floating IP *floating* to the router that leads to this address. Raises ``InvalidRequest`` if other
    port forwardings of the floating IP use another router."""
    target = leads_to(connection, context, floating, {
        "port_id": values["internal_port_id"], "fixed_ip_address": values["internal_ip_address"]})
    if floating["router_id"] not in (None, target["router_id"]):
        raise InvalidRequest(f"Floating IP {floating['id']} is at router {floating['router_id']}, and port "
                             f"{target['port_id']} is behind router {target['router_id']}: all port forwardings of a "
                             "floating IP are at one router.", type="BadRequest")
    connection.execute(updating(floating_ips).where(floating_ips.c.id == floating["id"]).values(
        router_id=target["router_id"]))
    return {"internal_ip_address": target["fixed_ip_address"]}


def _check_alone(connection: Connection, values: Mapping[Any, Any]) -> None:
    """Raise ``InvalidRequest`` if the floating IP already has a port forwarding with the same external port or the same
    target as *values*."""
    row = forwardings.c
    for names in (("external_port",), ("internal_port_id", "internal_ip_address", "internal_port")):
        existing_id = connection.execute(select(row.id).where(
            row.floatingip_id == values["floatingip_id"], row.protocol == values["protocol"], row.id != values["id"],
            *(row[name] == values[name] for name in names))).scalar()
        if existing_id is not None:
            duplicate = ", ".join(f"{name} {values[name]}" for name in names)
            raise InvalidRequest(f"Bad port_forwarding request: A duplicate port forwarding entry with same attributes "
                                 f"already exists: {existing_id}, of {values['protocol']}, {duplicate}.",
                                 type="BadRequest")


def prepare_port_forwarding_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the port forwarding *row*, and add ``internal_ip_address`` to them. Raises
    ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    floating = find_resource_row(connection, context, FLOATING_IP, row["floatingip_id"], lock=True)
    if "internal_port_id" in values or "internal_ip_address" in values:
        wish = {"internal_port_id": row["internal_port_id"], "internal_ip_address": None, **values}
        values.update(_inside(connection, context, floating, wish))
    _check_alone(connection, {**row, **values})


def _clear_unused_router(connection: Connection, id: str) -> None:
    """Set the router of the floating IP *id* to null if the floating IP has neither port forwardings nor an associated
    port."""
    if connection.execute(select(forwardings.c.id).where(forwardings.c.floatingip_id == id).limit(1)).first() is None:
        connection.execute(updating(floating_ips).where(
            floating_ips.c.id == id, floating_ips.c.port_id.is_(None)).values(router_id=None))


def _units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    router = connection.execute(select(floating_ips.c.router_id).where(
        floating_ips.c.id == row["floatingip_id"])).scalar()
    return [f"router/{router}"] if router else []


PORT_FORWARDING = NetworkResource(
    name="port_forwarding", table=forwardings, visible=rows_of_caller(forwardings), create=create_port_forwarding_row,
    update=prepare_port_forwarding_update,
    defaults={"description": "", "internal_ip_address": None}, units=_units,
    after=lambda connection, row: _clear_unused_router(connection, row["floatingip_id"]))


def forwarding_key(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """Return the attributes of a port forwarding as a tuple for comparison: two forwardings of a floating IP with the
    same tuple are equal."""
    return tuple(row[name] for name in ("protocol", "external_port", "internal_port_id", "internal_ip_address",
                                        "internal_port", "description"))


class FloatingIpStore(ObservedFloatingIps):
    """The operations on floating IPs. ``put`` can also set the port forwardings of a floating IP."""

    def remove_old_parts(self, connection: Connection, context: Context, row: RowMapping,
                         parts: Sequence[Document]) -> None:
        """Delete the port forwardings of the floating IP *row* that are not in *parts*. ``put`` calls this before other
        changes, because a floating IP with port forwardings cannot be associated with a port."""
        find_resource_row(connection, context, FLOATING_IP, row["id"], lock=True)
        desired_keys = {forwarding_key(forwarding) for forwarding in parts}
        removed_ids = [forwarding["id"] for forwarding in forwardings_of(connection, [row["id"]])
                       if forwarding_key(forwarding) not in desired_keys]
        if removed_ids:
            self._note(connection, row, None)
            connection.execute(deleting(forwardings).where(forwardings.c.id.in_(removed_ids)))
            _clear_unused_router(connection, row["id"])

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Document]) -> None:
        """Create those port forwardings in *parts* that the floating IP *row* does not have yet."""
        have = {forwarding_key(forwarding) for forwarding in forwardings_of(connection, [row["id"]])}
        for forwarding in parts:
            if forwarding_key(forwarding) not in have:
                create_port_forwarding_row(connection, context,
                                           {**forwarding, "id": str(uuid.uuid4()), "floatingip_id": row["id"]})
                have.add(forwarding_key(forwarding))
        self._note(connection, find_resource_row(connection, context, FLOATING_IP, row["id"]), None)
