# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of routers: interfaces in subnets, and the gateway in an external network."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from ipaddress import ip_network

from sqlalchemy import Connection, RowMapping, delete, or_, select, true

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import address_scopes, addresses, networks, ports, subnet_pools, subnets
from magnetar_control.store.engine.database import added, now
from magnetar_core.errors import Conflict, InvalidRequest

INTERFACE, GATEWAY, FLOATING = "network:router_interface", "network:router_gateway", "network:floatingip"
#: Owners of the cloud's own ports: users neither make nor delete them, and say of none that it is one.
OWN = "network:"


def of(connection: Connection, router_ids: Sequence[str]) -> list[RowMapping]:
    """The ports of routers with their addresses, a row for each: device_id, device_owner, port, subnet and network.

    ``address_scope_id``: the scope of the subnet's pool, where the pool belongs to the project of the scope. Other
    projects may put pools of any prefix into a shared scope, so routers translate the addresses of such pools.
    """
    return list(connection.execute(select(
        ports.c.id, ports.c.device_id, ports.c.device_owner, ports.c.mac_address, ports.c.network_id,
        addresses.c.subnet_id, addresses.c.ip_address, subnets.c.cidr, subnets.c.gateway_ip, subnets.c.ipv6_ra_mode,
        networks.c.mtu, address_scopes.c.id.label("address_scope_id")).join(
        networks, networks.c.id == ports.c.network_id).join(addresses, addresses.c.port_id == ports.c.id).join(
        subnets, subnets.c.id == addresses.c.subnet_id).outerjoin(
        subnet_pools, subnet_pools.c.id == subnets.c.subnetpool_id).outerjoin(
        address_scopes, (address_scopes.c.id == subnet_pools.c.address_scope_id) & (
            address_scopes.c.project_id == subnet_pools.c.project_id)).where(
        ports.c.device_id.in_(router_ids), ports.c.device_owner.in_((INTERFACE, GATEWAY))).order_by(
        ports.c.created_at, ports.c.id, addresses.c.number)).mappings())


def overlap(one: str, other: str) -> bool:
    """Whether two networks have addresses in common."""
    first, second = ip_network(one), ip_network(other)
    return first.version == second.version and first.overlaps(second)


def first_of_each(choices: Sequence[RowMapping]) -> list[RowMapping]:
    """The first of the subnets of each IP version."""
    found: dict[int, RowMapping] = {}
    for one in choices:
        found.setdefault(ip_network(one["cidr"]).version, one)
    return list(found.values())


def check_apart(found: Sequence[RowMapping], new: Sequence[RowMapping]) -> None:
    """Raises an error where a subnet of *new* has addresses of one that the router has: it could not tell them
    apart."""
    for one in new:
        for have in found:
            if overlap(one["cidr"], have["cidr"]):
                raise InvalidRequest(f"Bad router request: Cidr {one['cidr']} of subnet {one['id']} overlaps with cidr "
                                     f"{have['cidr']} of subnet {have['subnet_id']}.", type="BadRequest")


def make(connection: Connection, owner: str, device_id: str, network_id: str, project_id: str = "") -> str:
    """A port of the cloud's own; returns its id."""
    id = str(uuid.uuid4())
    ipam.add_port(connection, id=id, project_id=project_id, name="", network_id=network_id, status="ACTIVE",
                  device_owner=owner, device_id=device_id, port_security_enabled=False, created_at=now())
    return id


def give_gateway_address(connection: Connection, port_id: str, subnet: RowMapping) -> None:
    """The gateway's address of *subnet*, which no other port may have."""
    ip = subnet["gateway_ip"]
    if not added(connection, addresses, subnet_id=subnet["id"], number=ipam.number(ip), port_id=port_id,
                 ip_address=ip):
        raise Conflict(f"Gateway ip {ip} of subnet {subnet['id']} is in use by another port.", type="IpAddressInUse")


def remove(connection: Connection, id: str) -> None:
    """Remove a port of the cloud's own."""
    connection.execute(delete(ports).where(ports.c.id == id, ports.c.device_owner.startswith(OWN)))


def external(connection: Connection, context: Context, network_id: str) -> RowMapping:
    """An external network that *context* may use as one; raises ``InvalidRequest``."""
    row = connection.execute(select(networks).where(
        networks.c.id == network_id, networks.c.external, true() if context.is_admin else or_(
            networks.c.project_id == (context.project_id or ""), sharing.shared_with(
                networks, context.project_id or "", sharing.EXTERNAL))).with_for_update(read=True)).mappings().first()
    if row is None:
        raise InvalidRequest(f"Bad request: network {network_id} is not a valid external network.", type="BadRequest")
    return row


def view(found: Sequence[RowMapping]) -> list[Document]:
    """Addresses as ``fixed_ips``."""
    return [{"subnet_id": one["subnet_id"], "ip_address": one["ip_address"]} for one in found]
