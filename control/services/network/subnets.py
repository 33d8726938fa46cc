# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Subnets: IPv4. On networks that the agents make (nat, isolated) there is one, whose first address is the host's. No
other such network of the cloud has its addresses, because a host routes to all of them. Networks of an engine have as
many as they need, of any addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, false, or_, select, true

from magnetar_control.services import Context, Document
from magnetar_core import addresses as core_addresses
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest

from . import changes, ipam
from .networks import NETWORK, OF_AGENTS
from .requested_networks import visible as visible_networks
from .resources import NetworkResource, add, find, forbidden
from .router_ports import GATEWAY, INTERFACE
from .tables import addresses, networks, ports, subnets


def documents(_connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with lists instead of JSON."""
    lists = ("allocation_pools", "dns_nameservers", "host_routes")
    return [{**row, **{name: orjson.loads(row[name]) for name in lists}} for row in rows]


def visible(context: Context) -> ColumnElement[bool]:
    """Those of visible networks."""
    return or_(subnets.c.project_id == (context.project_id or ""),
               subnets.c.network_id.in_(select(networks.c.id).where(visible_networks(context))))


def check_range(ranges: Sequence[IPv4Network], context: Context, net: IPv4Network) -> None:
    """Raises ``InvalidField`` where *net* is not for servers, or lies in none of *ranges* and *context* is no admin."""
    core_addresses.check_usual(net)
    if not context.is_admin and not any(net.subnet_of(pool) for pool in ranges):
        raise InvalidField("cidr", f"must lie in {', '.join(map(str, ranges))} (setting network_pools): hosts route to "
                                   "the networks that the agents make", str(net))


def create(ranges: Sequence[IPv4Network], connection: Connection, context: Context, values: Document) -> None:
    """Add it to a network of the project; *ranges*: see ``check_range``."""
    network = find(connection, context, NETWORK, values["network_id"])
    if network["project_id"] != context.project_id and not context.is_admin:
        raise forbidden("create_subnet", "the network belongs to another project, which shares it")
    net = IPv4Network(values["cidr"])
    if network["type"] in OF_AGENTS:
        check_range(ranges, context, net)
    else:
        core_addresses.check_usual(net)
    _check_free(connection, network, net)
    values.setdefault("gateway_ip", str(net[1]))
    _check_gateway(network, net, values["gateway_ip"])
    pools = values.get("allocation_pools")
    values["allocation_pools"] = usual(net, values["gateway_ip"]) if pools is None else pools
    check_pools(net, values["gateway_ip"], values["allocation_pools"])
    add(connection, subnets, values)


def _check_free(connection: Connection, network: RowMapping, net: IPv4Network) -> None:
    """Raises an error where *net* overlaps. The networks are locked, so that two that begin at once see each other."""
    connection.execute(select(networks.c.id).order_by(networks.c.id).with_for_update()).all()
    rows = connection.execute(select(subnets.c.cidr, subnets.c.network_id, networks.c.type).join(
        networks, networks.c.id == subnets.c.network_id)).all()
    made = network["type"] in OF_AGENTS
    if made and any(row.network_id == network["id"] for row in rows):
        raise Conflict(f"Network {network['id']} has a subnet. One that the agents make on each host has one only; "
                    "create another network.")
    for row in rows:
        if not net.overlaps(IPv4Network(row.cidr)):
            continue
        if row.network_id == network["id"]:
            raise InvalidRequest(f"Invalid input for operation: Requested subnet with cidr: {net} for network: "
                        f"{network['id']} overlaps with another subnet.", type="InvalidInput")
        if made and row.type in OF_AGENTS:
            raise Conflict(f"The addresses {net} overlap with those of another network of this cloud. Hosts route to "
                        "all of them, so each has addresses of its own; choose another range.")


def _check_gateway(network: RowMapping, net: IPv4Network, gateway: str | None) -> None:
    if network["type"] in OF_AGENTS and gateway != str(net[1]):
        raise InvalidField("gateway_ip", f"must be {net[1]}, the first address: on a network that the agents make it "
                                         "is the host's")
    if gateway is not None and (IPv4Address(gateway) not in net or
                                (network["by_engine"] and IPv4Address(gateway) in (net[0], net[-1]))):
        raise InvalidField("gateway_ip", f"must be an address of a host in {net}", gateway)


def usual(net: IPv4Network, gateway: str | None) -> list[Document]:
    """All addresses but the gateway's, as pools."""
    first, last = net.network_address + 1, net.broadcast_address - 1
    pools = [(first, last)]
    if gateway is not None and first <= (middle := IPv4Address(gateway)) <= last:
        pools = [(start, end) for start, end in ((first, middle - 1), (middle + 1, last)) if start <= end]
    return [{"start": str(start), "end": str(end)} for start, end in pools]


def check_pools(net: IPv4Network, gateway: str | None, pools: Sequence[Document]) -> None:
    """Raises an error where *pools* leave the subnet, overlap, or have its gateway."""
    ranges = sorted((IPv4Address(pool["start"]), IPv4Address(pool["end"])) for pool in pools)
    for start, end in ranges:
        if not net.network_address < start <= end < net.broadcast_address:
            raise InvalidRequest(f"The allocation pool {start}-{end} is not valid: it must lie in {net}, without "
                                 "its first and last address.", type="InvalidAllocationPool")
        if gateway is not None and start <= IPv4Address(gateway) <= end:
            raise Conflict(f"Gateway ip {gateway} conflicts with allocation pool {start}-{end}.",
                        type="GatewayConflictWithAllocationPools")
    for (_start, end), (start, _end) in itertools.pairwise(ranges):
        if start <= end:
            raise Conflict(f"Found overlapping allocation pools for subnet {net}: {end} and {start}.",
                        type="OverlappingAllocationPools")


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """What hosts have of it already stays as it is."""
    network = connection.execute(select(networks).where(networks.c.id == row["network_id"])).mappings().one()
    net, gateway = IPv4Network(row["cidr"]), values.get("gateway_ip", row["gateway_ip"])
    _check_gateway(network, net, gateway)
    if network["type"] in OF_AGENTS and values.get("enable_dhcp", row["enable_dhcp"]) != row["enable_dhcp"]:
        raise InvalidField("enable_dhcp", "cannot change, since hosts may have the network already; create another one")
    given = values.get("allocation_pools")
    check_pools(net, gateway, orjson.loads(row["allocation_pools"]) if given is None else given)
    if gateway != row["gateway_ip"] and gateway is not None and ipam.is_given(connection, row["id"], gateway):
        raise Conflict(f"Gateway IP {gateway} is in use by a port.", type="GatewayIpInUse")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no port has an address of it."""
    if connection.execute(select(addresses.c.port_id).where(addresses.c.subnet_id == row["id"]).limit(1)).first():
        raise Conflict(f"Unable to complete operation on subnet {row['id']}: One or more ports have an IP allocation "
                    "from this subnet.", type="SubnetInUse")


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Its network; and the ports that DHCP begins or ceases to serve."""
    found = [f"network/{row['network_id']}"]
    if changed and changed.get("enable_dhcp", row["enable_dhcp"]) != row["enable_dhcp"]:
        found += changes.ports(connection.execute(select(addresses.c.port_id).where(
            addresses.c.subnet_id == row["id"])).scalars())
    if changed and "gateway_ip" in changed:
        found += [f"router/{id}" for id in connection.execute(select(ports.c.device_id).join(
            addresses, addresses.c.port_id == ports.c.id).where(
            addresses.c.subnet_id == row["id"], ports.c.device_owner.in_((INTERFACE, GATEWAY)))).scalars()]
    return found


def resource(ranges: Sequence[IPv4Network]) -> NetworkResource:
    """Subnets; *ranges*: see ``check_range``."""
    return NetworkResource(
        name="subnet", table=subnets, visible=visible, documents=documents, create=partial(create, ranges),
        update=update, delete=delete, units=units,
        defaults={"name": "", "description": "", "enable_dhcp": True, "dns_nameservers": [], "host_routes": []},
        filters={"ip_version": lambda values: true() if "4" in values else false()})
