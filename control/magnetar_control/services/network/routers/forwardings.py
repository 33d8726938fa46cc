# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Port forwardings: single ports of a floating IP that lead to ports of servers behind one router."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select
from sqlalchemy import delete as deleting
from sqlalchemy import update as updating

from magnetar_control.services import Context, Document
from magnetar_control.services.network.resources import NetworkResource, add, find, own
from magnetar_control.services.network.tables import floating_ips, forwardings
from magnetar_core.errors import Conflict, InvalidRequest

from .floating_ips import FLOATING_IP, ObservedFloatingIps, forwardings_of, leads_to

#: Port forwardings of a floating IP.
MOST = 100


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, where the floating IP reaches no port as a whole."""
    floating = find(connection, context, FLOATING_IP, values["floatingip_id"], lock=True)
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
    add(connection, forwardings, values)


def _inside(connection: Connection, context: Context, floating: RowMapping, values: Mapping[Any, Any]) -> Document:
    """The address that is meant of the inner port's. The floating IP gets the router between."""
    found = leads_to(connection, context, floating, {
        "port_id": values["internal_port_id"], "fixed_ip_address": values["internal_ip_address"]})
    if floating["router_id"] not in (None, found["router_id"]):
        raise InvalidRequest(f"Floating IP {floating['id']} is at router {floating['router_id']}, and port "
                             f"{found['port_id']} is behind router {found['router_id']}: all port forwardings of a "
                             "floating IP are at one router.", type="BadRequest")
    connection.execute(updating(floating_ips).where(floating_ips.c.id == floating["id"]).values(
        router_id=found["router_id"]))
    return {"internal_ip_address": found["fixed_ip_address"]}


def _check_alone(connection: Connection, values: Mapping[Any, Any]) -> None:
    """Raises ``InvalidRequest`` where another one is at the same outer port, or leads to the same inner one."""
    row = forwardings.c
    for names in (("external_port",), ("internal_port_id", "internal_ip_address", "internal_port")):
        there = connection.execute(select(row.id).where(
            row.floatingip_id == values["floatingip_id"], row.protocol == values["protocol"], row.id != values["id"],
            *(row[name] == values[name] for name in names))).scalar()
        if there is not None:
            said = ", ".join(f"{name} {values[name]}" for name in names)
            raise InvalidRequest(f"Bad port_forwarding request: A duplicate port forwarding entry with same attributes "
                                 f"already exists: {there}, of {values['protocol']}, {said}.", type="BadRequest")


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check and complete the values."""
    floating = find(connection, context, FLOATING_IP, row["floatingip_id"], lock=True)
    if "internal_port_id" in values or "internal_ip_address" in values:
        wish = {"internal_port_id": row["internal_port_id"], "internal_ip_address": None, **values}
        values.update(_inside(connection, context, floating, wish))
    _check_alone(connection, {**row, **values})


def _settle(connection: Connection, id: str) -> None:
    """A floating IP without port forwardings is at no router."""
    if connection.execute(select(forwardings.c.id).where(forwardings.c.floatingip_id == id).limit(1)).first() is None:
        connection.execute(updating(floating_ips).where(
            floating_ips.c.id == id, floating_ips.c.port_id.is_(None)).values(router_id=None))


def _units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    router = connection.execute(select(floating_ips.c.router_id).where(
        floating_ips.c.id == row["floatingip_id"])).scalar()
    return [f"router/{router}"] if router else []


PORT_FORWARDING = NetworkResource(
    name="port_forwarding", table=forwardings, visible=own(forwardings), create=create, update=change,
    defaults={"description": "", "internal_ip_address": None}, units=_units,
    after=lambda connection, row: _settle(connection, row["floatingip_id"]))


def said(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    """What a port forwarding says: two that say the same are one."""
    return tuple(row[name] for name in ("protocol", "external_port", "internal_port_id", "internal_ip_address",
                                        "internal_port", "description"))


class FloatingIpStore(ObservedFloatingIps):
    """Floating IPs, of which the port forwardings can be said too."""

    def leave(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """Those that are not among *held* go, so that it may reach a port."""
        find(connection, context, FLOATING_IP, row["id"], lock=True)
        wanted = {said(one) for one in held}
        gone = [one["id"] for one in forwardings_of(connection, [row["id"]]) if said(one) not in wanted]
        if gone:
            self._note(connection, row, None)
            connection.execute(deleting(forwardings).where(forwardings.c.id.in_(gone)))
            _settle(connection, row["id"])

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """Those of *held* that are not there are made."""
        have = {said(one) for one in forwardings_of(connection, [row["id"]])}
        for one in held:
            if said(one) not in have:
                create(connection, context, {**one, "id": str(uuid.uuid4()), "floatingip_id": row["id"]})
                have.add(said(one))
        self._note(connection, find(connection, context, FLOATING_IP, row["id"]), None)
