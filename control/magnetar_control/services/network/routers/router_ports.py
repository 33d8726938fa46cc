# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of routers: interfaces in subnets, and the gateway in an external network."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from ipaddress import ip_network

from sqlalchemy import Connection, RowMapping, delete, or_, select, true

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import address_scopes, addresses, networks, ports, subnet_pools, subnets
from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest

INTERFACE, GATEWAY, FLOATING = "network:router_interface", "network:router_gateway", "network:floatingip"
#: Prefix of the owners of the cloud's own ports. Users neither create nor delete such ports, and cannot set such an
#: owner.
OWN = "network:"


def ports_of_routers(connection: Connection, router_ids: Sequence[str]) -> list[RowMapping]:
    """Return the ports of the routers *router_ids*, one row for each address, with columns of its subnet and network.

    ``address_scope_id`` is the address scope of the subnet's pool if scope and pool belong to the same project;
    otherwise it is ``None``. In a shared scope, pools of other projects may have any prefix, so routers translate their
    addresses (NAT).
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


def prefixes_overlap(cidr: str, other_cidr: str) -> bool:
    """Return whether two networks in CIDR notation have addresses in common."""
    first, second = ip_network(cidr), ip_network(other_cidr)
    return first.version == second.version and first.overlaps(second)


def first_of_each(choices: Sequence[RowMapping]) -> list[RowMapping]:
    """Return the first IPv4 subnet and the first IPv6 subnet in *choices*."""
    first_subnets: dict[int, RowMapping] = {}
    for subnet in choices:
        first_subnets.setdefault(ip_network(subnet["cidr"]).version, subnet)
    return list(first_subnets.values())


def check_apart(port_rows: Sequence[RowMapping], new: Sequence[RowMapping]) -> None:
    """Raise ``InvalidRequest`` when one of the subnets *new* overlaps with a subnet of the router, because the router
    could not distinguish their addresses. *port_rows*: the ports of the router."""
    for subnet in new:
        for port_row in port_rows:
            if prefixes_overlap(subnet["cidr"], port_row["cidr"]):
                raise InvalidRequest(
                    f"Bad router request: Cidr {subnet['cidr']} of subnet {subnet['id']} overlaps with cidr "
                                     f"{port_row['cidr']} of subnet {port_row['subnet_id']}.", type="BadRequest")


def create_cloud_port(connection: Connection, owner: str, device_id: str, network_id: str, project_id: str = "") -> str:
    """Create an internal port of the cloud, such as a router's interface, and return its id. *owner*, *device_id*: the
    ``device_owner`` and ``device_id`` of the port."""
    id = str(uuid.uuid4())
    ipam.add_port(connection, id=id, project_id=project_id, name="", network_id=network_id, status="ACTIVE",
                  device_owner=owner, device_id=device_id, port_security_enabled=False, created_at=utc_now())
    return id


def give_gateway_address(connection: Connection, port_id: str, subnet: RowMapping) -> None:
    """Assign the gateway address of *subnet* to the port *port_id*. Raises ``Conflict`` when another port has this
    address."""
    ip = subnet["gateway_ip"]
    if not insert_if_absent(connection, addresses, subnet_id=subnet["id"], number=ipam.address_number(ip),
                            port_id=port_id, ip_address=ip):
        raise Conflict(f"Gateway ip {ip} of subnet {subnet['id']} is in use by another port.", type="IpAddressInUse")


def delete_cloud_port(connection: Connection, id: str) -> None:
    """Delete an internal port of the cloud, such as a router's interface."""
    connection.execute(delete(ports).where(ports.c.id == id, ports.c.device_owner.startswith(OWN)))


def find_external_network(connection: Connection, context: Context, network_id: str) -> RowMapping:
    """Lock and return the row of the external network *network_id*. Raises ``InvalidRequest`` if it does not exist, or
    if *context* may not use it for gateways and floating IPs."""
    row = connection.execute(select(networks).where(
        networks.c.id == network_id, networks.c.external, true() if context.is_admin else or_(
            networks.c.project_id == (context.project_id or ""), sharing.shared_with(
                networks, context.project_id or "", sharing.EXTERNAL))).with_for_update(read=True)).mappings().first()
    if row is None:
        raise InvalidRequest(f"Bad request: network {network_id} is not a valid external network.", type="BadRequest")
    return row


def fixed_ips_of_rows(port_rows: Sequence[RowMapping]) -> list[Document]:
    """Return the addresses in *port_rows* as the API field ``fixed_ips``: [{subnet_id, ip_address}]."""
    return [{"subnet_id": port_row["subnet_id"], "ip_address": port_row["ip_address"]} for port_row in port_rows]
