# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of a port's addresses while a server has the port. For networks of OVN only, because OVN filters by the
present addresses of a port. Hosts filter by the addresses that the NIC had when it was plugged."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, delete, select

from magnetar_control.services.network.routers.floating_ips import release_floating_ips
from magnetar_control.services.network.subnets import ipam
from magnetar_control.services.network.tables import TAKEN, addresses, networks, ports
from magnetar_core.errors import InvalidRequest, NotFound

from . import virtual_functions
from .requested_networks import subnets_of

#: Maximum number of addresses of one port, as for its ``fixed_ips``.
MOST = 64


def change_port_addresses(connection: Connection, server_id: str, network_id: str, address: str) -> list[str]:
    """Remove *address* from a server's port (the one with this address). If *address* is empty, add a free address to
    the server's first port on the network *network_id* instead.

    Return the keys of the changed objects in the network engine (OVN), such as ``port/ID``. Raise ``NotFound`` when the
    server has no such port, ``InvalidRequest`` when the addresses of the port cannot change.
    """
    query = select(*ports.c["id", "network_id", "vnic_type"], networks.c.by_engine).join(
        networks, networks.c.id == ports.c.network_id).where(
        ports.c.device_id == server_id, TAKEN).order_by(ports.c.place)
    if address:
        query = query.where(ports.c.id.in_(select(addresses.c.port_id).where(addresses.c.ip_address == address)))
    else:
        query = query.where(ports.c.network_id == network_id)
    port = connection.execute(query.with_for_update(of=ports)).mappings().first()
    if port is None:
        raise NotFound(f"Network {network_id[:80]} could not be found for instance {server_id}." if not address else
                       f"Unable to find IP address {address} on the server.")
    if not port["by_engine"] or port["vnic_type"] != virtual_functions.NORMAL:
        raise InvalidRequest(f"The addresses of port {port['id']} stay as they are while a server has it, except on "
                             "networks of OVN. Attach another NIC for another address: openstack server add network; "
                             "detach the NIC that has it: openstack server remove port.")
    return _without(connection, port, address) if address else _with_one_more(connection, port)


def _with_one_more(connection: Connection, port: RowMapping) -> list[str]:
    if len(_addresses_of_port(connection, port)) >= MOST:
        raise InvalidRequest(f"Port {port['id']} has {MOST} addresses already, the most that a port can have.")
    choices = [subnet for subnet in subnets_of(connection, [port["network_id"]])[port["network_id"]]
               if not ipam.by_itself(subnet)]
    ipam.give_address(connection, port["id"], port["network_id"], choices)
    return [f"port/{port['id']}"]


def _without(connection: Connection, port: RowMapping, address: str) -> list[str]:
    have = _addresses_of_port(connection, port)
    if len(have) == 1:  # OVN would let the guest send from any address
        raise InvalidRequest(f"{address} is the last address of port {port['id']}. Detach the NIC: openstack server "
                             "remove port.")
    subnets = subnets_of(connection, [port["network_id"]])[port["network_id"]]
    if any(ipam.by_itself(subnet) and subnet["id"] == have[address] for subnet in subnets):
        raise InvalidRequest(f"{address} follows from the MAC address of port {port['id']}, which keeps it.")
    routers = release_floating_ips(connection, [port["id"]], [other for other in have if other != address])
    connection.execute(delete(addresses).where(addresses.c.port_id == port["id"], addresses.c.ip_address == address))
    return [f"port/{port['id']}", *routers]


def _addresses_of_port(connection: Connection, port: RowMapping) -> dict[str, str]:
    """Return the addresses of a port: {address: subnet id}."""
    return {row.ip_address: row.subnet_id for row in connection.execute(select(
        *addresses.c["ip_address", "subnet_id"]).where(addresses.c.port_id == port["id"]))}
