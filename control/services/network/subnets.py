# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""Subnets: IPv4. On networks that the agents make (nat, isolated) there is one, whose first address is the host's; its
range is nobody else's in the cloud, because a host routes to all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select

from magnetar_control.services import Context, Document
from magnetar_core.errors import Conflict, InvalidRequest

from .attributes import (
    ABSENT,
    REQUIRED,
    Attribute,
    address,
    boolean,
    cidr,
    forbidden,
    ident,
    invalid,
    list_of,
    nullable,
    one_of,
    prefix,
    record,
    table,
    text,
)
from .networks import NETWORK
from .nouns import Noun, add, change, common, found, remove
from .tables import addresses, networks, subnets
from .wishes import visible as visible_networks

ROUTES = list_of(record(("destination", "nexthop"), destination=prefix, nexthop=address))
POOLS = list_of(record(("start", "end"), start=address, end=address))


def _version(value: Any) -> int:
    if str(value) != "4":
        raise ValueError(f"'{value}' is not 4; embedded networking has IPv4 only")
    return 4


ATTRIBUTES = table(
    Attribute(name="name", check=text, default=""),
    Attribute(name="network_id", check=ident, default=REQUIRED, on="create"),
    Attribute(name="cidr", check=cidr, default=REQUIRED, on="create"),
    Attribute(name="ip_version", check=_version, default=4, on="create"),
    Attribute(name="gateway_ip", check=nullable(address), default=ABSENT),
    Attribute(name="enable_dhcp", check=boolean, default=True),
    Attribute(name="allocation_pools", check=POOLS, default=ABSENT),
    Attribute(name="dns_nameservers", check=list_of(address), default=list),
    Attribute(name="host_routes", check=ROUTES, default=list),
    Attribute(name="subnetpool_id", check=nullable(one_of()), on="create"),
    Attribute(name="ipv6_ra_mode", check=nullable(one_of()), on="create"),
    Attribute(name="ipv6_address_mode", check=nullable(one_of()), on="create"))


def show(connection: Connection, context: Context, rows: Sequence[RowMapping]) -> list[Document]:
    """As the API reference has them."""
    return [{**common(row), "name": row["name"], "network_id": row["network_id"], "cidr": row["cidr"], "ip_version": 4,
             "gateway_ip": row["gateway_ip"], "enable_dhcp": row["enable_dhcp"], "subnetpool_id": None,
             "ipv6_ra_mode": None, "ipv6_address_mode": None,
             **{name: orjson.loads(row[name]) for name in ("allocation_pools", "dns_nameservers", "host_routes")}}
            for row in rows]


def visible(context: Context) -> ColumnElement[bool]:
    """Those of visible networks."""
    return or_(subnets.c.project_id == (context.project_id or ""),
               subnets.c.network_id.in_(select(networks.c.id).where(visible_networks(context))))


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it to a network of the project."""
    network = found(connection, context, NETWORK, values["network_id"])
    if network["project_id"] != context.project_id and not context.is_admin:
        raise forbidden("create_subnet", "the network belongs to another project, which shares it")
    net = IPv4Network(values["cidr"])
    _check_free(connection, network, net)
    values.setdefault("gateway_ip", str(net[1]))
    _check_gateway(network, net, values["gateway_ip"])
    pools = values.get("allocation_pools")
    values["allocation_pools"] = usual(net, values["gateway_ip"]) if pools is None else pools
    check_pools(net, values["gateway_ip"], values["allocation_pools"])
    add(connection, subnets, values)


def _check_free(connection: Connection, network: RowMapping, net: IPv4Network) -> None:
    """Raises ``Fault`` where *net* overlaps. The networks are locked, so that two that begin at once see each other."""
    connection.execute(select(networks.c.id).order_by(networks.c.id).with_for_update()).all()
    rows = connection.execute(select(subnets.c.cidr, subnets.c.network_id, networks.c.type).join(
        networks, networks.c.id == subnets.c.network_id)).all()
    made = network["type"] != "flat"
    if made and any(row.network_id == network["id"] for row in rows):
        raise Conflict(f"Network {network['id']} has a subnet. One that the agents make on each host has one only; "
                    "create another network.", type="Conflict")
    for row in rows:
        if not net.overlaps(IPv4Network(row.cidr)):
            continue
        if row.network_id == network["id"]:
            raise InvalidRequest(f"Invalid input for operation: Requested subnet with cidr: {net} for network: "
                        f"{network['id']} overlaps with another subnet.", type="InvalidInput")
        if made and row.type != "flat":
            raise Conflict(f"The addresses {net} overlap with those of another network of this cloud. Hosts route to "
                        "all of them, so each has addresses of its own; choose another range.", type="Conflict")


def _check_gateway(network: RowMapping, net: IPv4Network, gateway: str | None) -> None:
    if network["type"] != "flat" and gateway != str(net[1]):
        raise invalid("gateway_ip", f"it must be {net[1]}, the first address: on a network that the agents make it is "
                      "the host's")
    if gateway is not None and IPv4Address(gateway) not in net:
        raise invalid("gateway_ip", f"'{gateway}' is not in {net}")


def usual(net: IPv4Network, gateway: str | None) -> list[Document]:
    """All addresses but the gateway's, as pools."""
    first, last = net.network_address + 1, net.broadcast_address - 1
    if gateway is None or not first <= IPv4Address(gateway) <= last:
        return [{"start": str(first), "end": str(last)}]
    middle = IPv4Address(gateway)
    halves = [(first, middle - 1), (middle + 1, last)]
    return [{"start": str(start), "end": str(end)} for start, end in halves if start <= end]


def check_pools(net: IPv4Network, gateway: str | None, pools: Sequence[Document]) -> None:
    """Raises ``Fault`` where *pools* leave the subnet, overlap, or have its gateway."""
    ranges = sorted((IPv4Address(pool["start"]), IPv4Address(pool["end"])) for pool in pools)
    for start, end in ranges:
        if not net.network_address < start <= end < net.broadcast_address:
            raise InvalidRequest(f"The allocation pool {start}-{end} is not valid: it must lie in {net}, without "
                                 "its first "
                        "and last address.", type="InvalidAllocationPool")
        if gateway is not None and start <= IPv4Address(gateway) <= end:
            raise Conflict(f"Gateway ip {gateway} conflicts with allocation pool {start}-{end}.",
                        type="GatewayConflictWithAllocationPools")
    for (_start, end), (start, _end) in itertools.pairwise(ranges):
        if start <= end:
            raise Conflict(f"Found overlapping allocation pools for subnet {net}: {end} and {start}.",
                        type="OverlappingAllocationPools")


def update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Change it. What hosts have of it already stays as it is."""
    network = connection.execute(select(networks).where(networks.c.id == row["network_id"])).mappings().one()
    net, gateway = IPv4Network(row["cidr"]), values.get("gateway_ip", row["gateway_ip"])
    _check_gateway(network, net, gateway)
    if network["type"] != "flat" and values.get("enable_dhcp", row["enable_dhcp"]) != row["enable_dhcp"]:
        raise invalid("enable_dhcp", "it is fixed, since hosts may have the network already; create another network")
    given = values.get("allocation_pools")
    check_pools(net, gateway, orjson.loads(row["allocation_pools"]) if given is None else given)
    if gateway != row["gateway_ip"] and gateway is not None and connection.execute(select(addresses.c.port_id).where(
            addresses.c.subnet_id == row["id"], addresses.c.number == int(IPv4Address(gateway)))).first():
        raise Conflict(f"Gateway IP {gateway} is in use by a port.", type="GatewayIpInUse")
    change(connection, subnets, row["id"], values)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Remove it, when no port has an address of it."""
    if connection.execute(select(addresses.c.port_id).where(addresses.c.subnet_id == row["id"]).limit(1)).first():
        raise Conflict(f"Unable to complete operation on subnet {row['id']}: One or more ports have an IP allocation "
                    "from this subnet.", type="SubnetInUse")
    remove(connection, subnets, row["id"])


def _of_version(_context: Context, values: Sequence[str]) -> ColumnElement[bool]:
    return subnets.c.id.is_not(None) if "4" in values else subnets.c.id.is_(None)


SUBNET = Noun(
    name="subnet", plural="subnets", path="subnets", table=subnets, attributes=ATTRIBUTES, show=show, create=create,
    update=update, delete=delete, visible=visible, filters={"ip_version": _of_version})
