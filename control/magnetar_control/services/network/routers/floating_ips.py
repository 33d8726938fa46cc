# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Floating IPs: addresses of an external network that a router translates to the addresses of ports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network.ports import virtual_functions
from magnetar_control.services.network.ports.requested_networks import subnets_of
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    choice_filter,
    find_resource_row,
    forbidden_by_policy,
    insert_resource_row,
    rows_of_caller,
)
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import addresses, floating_ips, forwardings, ports, routers
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import router_ports
from .router_ports import FLOATING, GATEWAY, INTERFACE, OWN


def floating_ip_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert floating IP *rows* to documents for callers, with their port forwardings."""
    forwardings_by_ip: dict[str, list[RowMapping]] = {row["id"]: [] for row in rows}
    for forwarding in forwardings_of(connection, list(forwardings_by_ip)):
        forwardings_by_ip[forwarding["floatingip_id"]].append(forwarding)
    return [{**row, "forwardings": forwardings_by_ip[row["id"]]} for row in rows]


def forwardings_of(connection: Connection, ids: Sequence[str]) -> Sequence[RowMapping]:
    """Return the rows of the port forwardings of the floating IPs *ids*."""
    row = forwardings.c
    return connection.execute(select(forwardings).where(row.floatingip_id.in_(ids)).order_by(
        row.protocol, row.external_port)).mappings().all() if ids else ()


def create_floating_ip_row(connection: Connection, context: Context, values: Document) -> None:
    """Insert a floating IP with *values*, and the internal port that reserves its address. If *values* contain a
    port_id, associate the floating IP with this port. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    network = router_ports.find_external_network(connection, context, values["network_id"])
    address, subnet_id = values.pop("floating_ip_address", None), values.pop("subnet_id", None)
    if address and not context.is_admin:
        raise forbidden_by_policy("create_floatingip:floating_ip_address", "only admins may choose it")
    choices = [subnet for subnet in subnets_of(connection, [network["id"]])[network["id"]]
               if subnet_id in (None, subnet["id"]) and ":" not in subnet["cidr"]]
    if not choices:
        raise InvalidRequest(f"Network {network['id']} does not contain any IPv4 subnet"
                             f"{f' {subnet_id}' if subnet_id else ''}.", type="BadRequest")
    port = router_ports.create_cloud_port(connection, FLOATING, values["id"], network["id"])
    ipam.give_address(connection, port, network["id"], choices, address, f"external network {network['id']}")
    assigned_address = connection.execute(select(addresses.c.ip_address).where(addresses.c.port_id == port)).scalar()
    wish = {name: values.pop(name, None) for name in ("port_id", "fixed_ip_address")}
    values.update(own_port_id=port, floating_ip_address=assigned_address)
    values.update(_reaches(connection, context, values, wish))
    insert_resource_row(connection, floating_ips, values)


def prepare_floating_ip_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the floating IP *row*. If *values* contain ``port_id`` or ``fixed_ip_address``, add the
    columns of the new target (see ``leads_to``) to *values*. Raises ``Conflict`` if *values* associate the floating IP
    with a port while the floating IP has port forwardings."""
    # no port forwarding is added meanwhile
    row = find_resource_row(connection, context, FLOATING_IP, row["id"], lock=True)
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
    """Return what ``leads_to`` returns: the columns of the new target of a floating IP. Raises ``InvalidRequest``, as
    Neutron does, if a port forwarding of another floating IP leads to the same port and fixed address: the replies to
    forwarded packets would get the associated floating IP as their source address, which is wrong."""
    target = leads_to(connection, context, row, wish)
    if connection.execute(select(forwardings.c.id).where(
            forwardings.c.internal_port_id == target["port_id"],
            forwardings.c.internal_ip_address == target["fixed_ip_address"]).limit(1)).first():
        raise InvalidRequest(f"Cannot associate floating IP to port {target['port_id']} because it already has a Port "
                             f"Forwarding binding, of {target['fixed_ip_address']}. Delete that first.",
                             type="PortHasPortForwarding")
    return target


def leads_to(connection: Connection, context: Context, row: Document | RowMapping, wish: Document) -> Document:
    """Return the columns of the target of a floating IP: {port_id, fixed_ip_address, router_id (the router between the
    external network and the port)}. All are ``None`` if the floating IP becomes disassociated. *row*: the floating IP.
    *wish*: the requested port_id and fixed_ip_address. Raises ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    if wish["port_id"] is None:
        if wish["fixed_ip_address"] is not None:
            raise InvalidRequest("Bad floatingip request: fixed_ip_address cannot be specified without a port_id.",
                                 type="BadRequest")
        return {"port_id": None, "fixed_ip_address": None, "router_id": None}
    port = connection.execute(select(*ports.c["id", "device_owner", "vnic_type"]).where(
        ports.c.id == wish["port_id"], rows_of_caller(ports)(context)).with_for_update()).mappings().first()
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


def _fixed(connection: Connection, port: RowMapping, requested_address: str | None) -> tuple[str, str]:
    """Return (address, id of its subnet) of the fixed IPv4 address that a floating IP will translate to.
    *requested_address*: the port's address to use; ``None``: the port's only IPv4 address. Raises ``InvalidRequest`` if
    the port does not have this address, or has several and none is requested."""
    have = connection.execute(select(addresses.c.ip_address, addresses.c.subnet_id).where(
        addresses.c.port_id == port["id"])).all()
    fitting = [address_row for address_row in have if requested_address in (None, address_row.ip_address)
               and ":" not in address_row.ip_address]
    if not fitting:
        raise InvalidRequest(
            f"Bad floatingip request: port {port['id']} does not have the fixed IP {requested_address}.",
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
    router_id = connection.execute(query).scalar()
    # Callers that remove an interface or the gateway lock the router too.
    connection.execute(select(routers.c.id).where(routers.c.id == router_id).with_for_update()).all()
    if router_id is None or connection.execute(query).scalar() != router_id:
        raise NotFound(f"External network {network_id} is not reachable from subnet {subnet_id}. Therefore, cannot "
                       f"associate Port {port_id} with a Floating IP.", type="ExternalGatewayForFloatingIPNotFound")
    return str(router_id)


def prepare_floating_ip_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the internal port and the port forwardings of the floating IP *row*, which will be deleted."""
    connection.execute(deleting(forwardings).where(forwardings.c.floatingip_id == row["id"]))
    connection.execute(deleting(floating_ips).where(floating_ips.c.id == row["id"]))
    router_ports.delete_cloud_port(connection, row["own_port_id"])


def release_floating_ips(connection: Connection, port_ids: Collection[str], stay: Sequence[str] = ()) -> list[str]:
    """Disassociate the floating IPs of the ports *port_ids*, and delete the port forwardings to these ports. *stay*:
    fixed addresses that the ports keep; their floating IPs and forwardings do not change. Return ``router/ID`` for each
    changed router."""
    which = floating_ips.c.port_id.in_(port_ids) & floating_ips.c.fixed_ip_address.not_in(stay)
    router_ids = set(connection.execute(select(floating_ips.c.router_id).where(which)).scalars())
    if router_ids:
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
    return [f"router/{id}" for id in sorted(router_ids | set(outer.values()))]


def changed_floating_ip_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the floating IP *row* affects:
    ``router/ID`` of the router that led to its port before the change, and of the router that leads to its new port.
    *changed*: the new values; ``None`` for a created or deleted floating IP."""
    reached = {row["router_id"], (changed or {}).get("router_id")} - {None}
    return [f"router/{id}" for id in sorted(reached)]


class ObservedFloatingIps(NetworkStore):
    """The operations on floating IPs, which also report changes: they call the function ``moved`` with the uuids of the
    servers whose floating IPs have changed."""

    moved: Callable[[Collection[str]], None] | None = None

    def create(self, context: Context, *requests: Document, dry: bool = False) -> Documents:
        created = super().create(context, *requests, dry=dry)
        self._tell(dry, *(floating_ip["port_id"] for floating_ip in created))
        return created

    def update(self, context: Context, id: str, values: Document, dry: bool = False) -> Document:
        previous_port_id = self.show(context, id)["port_id"] if self.moved else None
        updated = super().update(context, id, values, dry)
        self._tell(dry, previous_port_id, updated["port_id"])
        return updated

    def put(self, context: Context, id: str | None, values: Document, parts: Sequence[Any] | None,
            dry: bool = False) -> Document:
        previous_port_id = self.show(context, id)["port_id"] if self.moved and id else None
        stored = super().put(context, id, values, parts, dry)
        self._tell(dry, previous_port_id, stored["port_id"])
        return stored

    def delete(self, context: Context, id: str, dry: bool = False) -> None:
        previous_port_id = self.show(context, id)["port_id"] if self.moved else None
        super().delete(context, id, dry)
        self._tell(dry, previous_port_id)

    def _tell(self, dry: bool, *port_ids: str | None) -> None:
        """Call the function ``moved`` with the uuids of the servers that have the ports *port_ids*. Do nothing in a
        *dry* run."""
        ids = {id for id in port_ids if id}
        if dry or self.moved is None or not ids:
            return
        with self.database.read() as connection:
            servers = set(connection.execute(select(ports.c.device_id).where(
                ports.c.id.in_(ids), ports.c.device_owner.startswith("compute:"))).scalars())
        if servers:
            self.moved(servers)


FLOATING_IP = NetworkResource(
    name="floatingip", table=floating_ips, visible=rows_of_caller(floating_ips), documents=floating_ip_documents,
    create=create_floating_ip_row,
    update=prepare_floating_ip_update, delete=prepare_floating_ip_delete, units=changed_floating_ip_units,
    defaults={"name": "", "description": ""},
    filters={"status": choice_filter({"ACTIVE": floating_ips.c.router_id.is_not(None),
                                      "DOWN": floating_ips.c.router_id.is_(None)}),
             "router_id": floating_ips.c.router_id.in_})
