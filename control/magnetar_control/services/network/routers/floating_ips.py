# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Floating IPs: addresses of an external network by which ports behind a router are reached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context, Document, Documents
from magnetar_control.services.network.ports import virtual_functions
from magnetar_control.services.network.ports.requested_networks import subnets_of
from magnetar_control.services.network.resources import NetworkResource, NetworkStore, add, either, find, forbidden, own
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import addresses, floating_ips, forwardings, ports, routers
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import router_ports
from .router_ports import FLOATING, GATEWAY, INTERFACE, OWN


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their port forwardings."""
    held: dict[str, list[RowMapping]] = {row["id"]: [] for row in rows}
    for one in forwardings_of(connection, list(held)):
        held[one["floatingip_id"]].append(one)
    return [{**row, "forwardings": held[row["id"]]} for row in rows]


def forwardings_of(connection: Connection, ids: Sequence[str]) -> Sequence[RowMapping]:
    """The port forwardings of floating IPs."""
    row = forwardings.c
    return connection.execute(select(forwardings).where(row.floatingip_id.in_(ids)).order_by(
        row.protocol, row.external_port)).mappings().all() if ids else ()


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, with a port of its own that has the address; associate it where it says with which port."""
    network = router_ports.external(connection, context, values["network_id"])
    address, subnet_id = values.pop("floating_ip_address", None), values.pop("subnet_id", None)
    if address and not context.is_admin:
        raise forbidden("create_floatingip:floating_ip_address", "only admins may choose it")
    choices = [one for one in subnets_of(connection, [network["id"]])[network["id"]]
               if subnet_id in (None, one["id"]) and ":" not in one["cidr"]]
    if not choices:
        raise InvalidRequest(f"Network {network['id']} does not contain any IPv4 subnet"
                             f"{f' {subnet_id}' if subnet_id else ''}.", type="BadRequest")
    port = router_ports.make(connection, FLOATING, values["id"], network["id"])
    ipam.give(connection, port, network["id"], choices, address, f"external network {network['id']}")
    given = connection.execute(select(addresses.c.ip_address).where(addresses.c.port_id == port)).scalar()
    wish = {name: values.pop(name, None) for name in ("port_id", "fixed_ip_address")}
    values.update(own_port_id=port, floating_ip_address=given)
    values.update(_reaches(connection, context, values, wish))
    add(connection, floating_ips, values)


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Associate it with a port, or with none."""
    row = find(connection, context, FLOATING_IP, row["id"], lock=True)  # no port forwarding comes meanwhile
    values.pop("router_id", None)  # follows from the port
    if "port_id" in values or "fixed_ip_address" in values:
        wish = {"port_id": values.get("port_id", row["port_id"]), "fixed_ip_address": values.get("fixed_ip_address")}
        if wish["port_id"] is not None and connection.execute(select(forwardings.c.id).where(
                forwardings.c.floatingip_id == row["id"]).limit(1)).first():
            raise Conflict(f"Floating IP {row['id']} in use by port forwardings. Delete those first.",
                           type="FipInUseByPortForwarding")
        if (wish["port_id"], wish["fixed_ip_address"], row["port_id"]) != (None, None, None):
            values.update(_reaches(connection, context, row, wish))


def _reaches(connection: Connection, context: Context, row: Document | RowMapping, wish: Document) -> Document:
    """Columns of what it reaches as a whole. An address that has port forwardings has no floating IP of its own, as
    with Neutron: answers would come from that, and by another way."""
    found = leads_to(connection, context, row, wish)
    if connection.execute(select(forwardings.c.id).where(
            forwardings.c.internal_port_id == found["port_id"],
            forwardings.c.internal_ip_address == found["fixed_ip_address"]).limit(1)).first():
        raise InvalidRequest(f"Cannot associate floating IP to port {found['port_id']} because it already has a Port "
                             f"Forwarding binding, of {found['fixed_ip_address']}. Delete that first.",
                             type="PortHasPortForwarding")
    return found


def leads_to(connection: Connection, context: Context, row: Document | RowMapping, wish: Document) -> Document:
    """Columns of what it reaches: the port, its address and the router between."""
    if wish["port_id"] is None:
        if wish["fixed_ip_address"] is not None:
            raise InvalidRequest("Bad floatingip request: fixed_ip_address cannot be specified without a port_id.",
                                 type="BadRequest")
        return {"port_id": None, "fixed_ip_address": None, "router_id": None}
    port = connection.execute(select(ports).where(ports.c.id == wish["port_id"], own(ports)(
        context)).with_for_update()).mappings().first()
    if port is None:
        raise NotFound(f"Port {wish['port_id']} could not be found.", type="PortNotFound")
    if port["device_owner"].startswith(OWN):
        raise InvalidRequest(f"Bad floatingip request: port {port['id']} is the cloud's own.", type="BadRequest")
    virtual_functions.check_reached(port)
    fixed, subnet_id = _fixed(connection, port, wish["fixed_ip_address"])
    taken = connection.execute(select(floating_ips.c.floating_ip_address).where(
        floating_ips.c.port_id == port["id"], floating_ips.c.fixed_ip_address == fixed,
        floating_ips.c.id != row["id"])).scalar()
    if taken:
        raise Conflict(f"Cannot associate floating IP {row['floating_ip_address']} with port {port['id']} using fixed "
                       f"IP {fixed}, as that fixed IP already has a floating IP on external network: {taken}.",
                       type="FloatingIPPortAlreadyAssociated")
    return {"port_id": port["id"], "fixed_ip_address": fixed,
            "router_id": _router(connection, row["network_id"], subnet_id, port["id"])}


def _fixed(connection: Connection, port: RowMapping, wanted: str | None) -> tuple[str, str]:
    """The address that is meant of the port's, and its subnet."""
    have = connection.execute(select(addresses.c.ip_address, addresses.c.subnet_id).where(
        addresses.c.port_id == port["id"])).all()
    fitting = [one for one in have if wanted in (None, one.ip_address) and ":" not in one.ip_address]
    if not fitting:
        raise InvalidRequest(f"Bad floatingip request: port {port['id']} does not have the fixed IP {wanted}.",
                             type="BadRequest")
    if len(fitting) > 1:
        raise InvalidRequest(f"Bad floatingip request: port {port['id']} has multiple fixed IPv4 addresses. Must "
                             "provide a specific IPv4 address when assigning a floating IP.", type="BadRequest")
    return fitting[0].ip_address, fitting[0].subnet_id


def _router(connection: Connection, network_id: str, subnet_id: str, port_id: str) -> str:
    inner, outer = ports.alias(), ports.alias()
    query = select(inner.c.device_id).join(addresses, addresses.c.port_id == inner.c.id).join(
        outer, outer.c.device_id == inner.c.device_id).where(
        inner.c.device_owner == INTERFACE, addresses.c.subnet_id == subnet_id, outer.c.device_owner == GATEWAY,
        outer.c.network_id == network_id).order_by(inner.c.created_at).limit(1)
    found = connection.execute(query).scalar()
    # Whoever takes an interface or the gateway away locks the router, too.
    connection.execute(select(routers.c.id).where(routers.c.id == found).with_for_update()).all()
    if found is None or connection.execute(query).scalar() != found:
        raise NotFound(f"External network {network_id} is not reachable from subnet {subnet_id}. Therefore, cannot "
                       f"associate Port {port_id} with a Floating IP.", type="ExternalGatewayForFloatingIPNotFound")
    return str(found)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes with its port, and its port forwardings."""
    connection.execute(deleting(forwardings).where(forwardings.c.floatingip_id == row["id"]))
    connection.execute(deleting(floating_ips).where(floating_ips.c.id == row["id"]))
    router_ports.remove(connection, row["own_port_id"])


def let_go(connection: Connection, port_ids: Collection[str], stay: Sequence[str] = ()) -> list[str]:
    """Floating IPs of these ports reach nothing any more, but of the addresses that *stay*; port forwardings to them
    go. Returns the units of their routers."""
    which = floating_ips.c.port_id.in_(port_ids) & floating_ips.c.fixed_ip_address.not_in(stay)
    found = set(connection.execute(select(floating_ips.c.router_id).where(which)).scalars())
    if found:
        connection.execute(update(floating_ips).where(which).values(
            port_id=None, fixed_ip_address=None, router_id=None))
    inner = forwardings.c.internal_port_id.in_(port_ids) & forwardings.c.internal_ip_address.not_in(stay)
    outer = {row.id: row.router_id for row in connection.execute(select(
        floating_ips.c.id, floating_ips.c.router_id).where(floating_ips.c.id.in_(
            select(forwardings.c.floatingip_id).where(inner))))}
    if outer:
        connection.execute(deleting(forwardings).where(inner))
        connection.execute(update(floating_ips).where(floating_ips.c.id.in_(outer), floating_ips.c.id.not_in(
            select(forwardings.c.floatingip_id))).values(router_id=None))
    return [f"router/{id}" for id in sorted(found | set(outer.values()))]


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """The routers through which it reaches, before and after."""
    reached = {row["router_id"], (changed or {}).get("router_id")} - {None}
    return [f"router/{id}" for id in sorted(reached)]


class ObservedFloatingIps(NetworkStore):
    """Floating IPs. ``moved`` is told the uuids of servers whose floating IP has changed, after each change."""

    moved: Callable[[Collection[str]], None] | None = None

    def create(self, context: Context, *wanted: Document, dry: bool = False) -> Documents:
        found = super().create(context, *wanted, dry=dry)
        self._tell(dry, *(one["port_id"] for one in found))
        return found

    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document:
        before = self.show(context, id)["port_id"] if self.moved else None
        found = super().update(context, id, values, dry)
        self._tell(dry, before, found["port_id"])
        return found

    def put(self, context: Context, id: str | None, values: Document, held: Sequence[Any] | None,
            dry: bool = False) -> Document:
        before = self.show(context, id)["port_id"] if self.moved and id else None
        found = super().put(context, id, values, held, dry)
        self._tell(dry, before, found["port_id"])
        return found

    def delete(self, context: Context, id: str, dry: bool = False) -> None:
        before = self.show(context, id)["port_id"] if self.moved else None
        super().delete(context, id, dry)
        self._tell(dry, before)

    def _tell(self, dry: bool, *port_ids: str | None) -> None:
        """Tell ``moved`` the servers of these ports."""
        ids = {id for id in port_ids if id}
        if dry or self.moved is None or not ids:
            return
        with self.database.read() as connection:
            servers = set(connection.execute(select(ports.c.device_id).where(
                ports.c.id.in_(ids), ports.c.device_owner.startswith("compute:"))).scalars())
        if servers:
            self.moved(servers)


FLOATING_IP = NetworkResource(
    name="floatingip", table=floating_ips, visible=own(floating_ips), documents=documents, create=create,
    update=change, delete=delete, units=units, defaults={"name": "", "description": ""},
    filters={"status": either({"ACTIVE": floating_ips.c.router_id.is_not(None),
                               "DOWN": floating_ips.c.router_id.is_(None)}),
             "router_id": floating_ips.c.router_id.in_})
