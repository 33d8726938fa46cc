# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Subnets. A network that the agents make (nat, isolated) has one subnet, whose first address is the host's. No two
such networks of the cloud overlap, because a host routes to all of them. Networks of an engine have as many subnets as
they need, with any addresses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from sqlalchemy import ColumnElement, Connection, RowMapping, or_, select, true
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.networks import LEAST_MTU, NETWORK, OF_AGENTS
from magnetar_control.services.network.ports.requested_networks import visible as visible_networks
from magnetar_control.services.network.resources import (
    NetworkResource,
    check_once,
    find_resource_row,
    forbidden_by_policy,
    insert_resource_row,
    ip_version_filter,
)
from magnetar_control.services.network.routers.router_ports import GATEWAY, INTERFACE, OWN, prefixes_overlap
from magnetar_control.services.network.tables import addresses, networks, ports, subnets
from magnetar_control.store.engine.database import insert_if_absent
from magnetar_core import addresses as core_addresses
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest

from . import ipam, subnet_pools

AnyNetwork = IPv4Network | IPv6Network
#: IPv6 ranges that no guest may have: link-local, multicast, loopback.
NOT_FOR_GUESTS = (IPv6Network("fe80::/10"), IPv6Network("ff00::/8"), IPv6Network("::/64"))


def visible_subnets(context: Context) -> ColumnElement[bool]:
    """Return the SQL condition for the subnets that the caller (*context*) may see. Admins see all subnets. Other
    callers see the subnets of their project, and all subnets of networks that they may see."""
    if context.is_admin:
        return true()
    return or_(subnets.c.project_id == (context.project_id or ""),
               subnets.c.network_id.in_(select(networks.c.id).where(visible_networks(context))))


def _listed_subnets(context: Context) -> ColumnElement[bool]:
    """Return an SQL condition for the same subnets as ``visible_subnets``, but in a form that is fast for lists (see
    ``sharing.listed_ids``)."""
    if context.is_admin:
        return true()
    project, own, inside = context.project_id or "", subnets.alias(), subnets.alias()
    of_networks = select(inside.c.id).join(networks, networks.c.id == inside.c.network_id).where(
        sharing.listed_ids(networks, project, sharing.SHARED))
    return subnets.c.id.in_(select(own.c.id).where(own.c.project_id == project).union(of_networks))


def check_range(ranges: Sequence[IPv4Network], context: Context, net: IPv4Network) -> None:
    """Raise ``InvalidField`` if *net* cannot be a subnet: servers cannot have addresses of *net*, or the caller is no
    admin and *net* is not inside one of *ranges*."""
    core_addresses.check_special_networks(net)
    if not context.is_admin and not any(net.subnet_of(pool) for pool in ranges):
        raise InvalidField("cidr", f"must lie in {', '.join(map(str, ranges))} (setting network_pools): hosts route to "
                                   "the networks that the agents make", str(net))


def create_subnet_row(ranges: Sequence[IPv4Network], connection: Connection, context: Context,
                      values: Document) -> None:
    """Check *values* and insert a subnet. *ranges*: if agents create the network and the caller is no admin, the subnet
    must be inside one of these. Raises ``InvalidField``, ``InvalidRequest``, ``Conflict``, ``Forbidden``."""
    network = find_resource_row(connection, context, NETWORK, values["network_id"])
    if network["project_id"] != context.project_id and not context.is_admin:
        raise forbidden_by_policy("create_subnet", "the network belongs to another project, which shares it")
    subnet_pools.cut_subnet(connection, context, values)
    net = ip_network(values["cidr"])
    _check_version(connection, network, net, values)
    if isinstance(net, IPv4Network):
        if network["type"] in OF_AGENTS:
            check_range(ranges, context, net)
        else:
            core_addresses.check_special_networks(net)
    _check_dhcp_options(net, values)
    _check_free(connection, network, net)
    if net.version == 6:
        _check_mtu(connection, network["id"])
    subnet_pools.check_others(connection, network, values)
    values.setdefault("gateway_ip", str(net[1]))
    _check_gateway(network, net, values["gateway_ip"])
    pools = values.get("allocation_pools")
    values["allocation_pools"] = default_allocation_pools(net, values["gateway_ip"]) if pools is None else pools
    check_pools(net, values["gateway_ip"], values["allocation_pools"])
    insert_resource_row(connection, subnets, values)
    if ipam.by_itself({"ipv6_address_mode": None, **values}):
        _make_known(connection, network, values)


def _make_known(connection: Connection, network: RowMapping, subnet: Document) -> None:
    """Insert the addresses that the guests on *network* derive from their MACs in the new *subnet* (SLAAC): one for
    each port."""
    for port in connection.execute(select(ports.c.id, ports.c.mac_address).where(
            ports.c.network_id == network["id"], ~ports.c.device_owner.startswith(OWN))).all():
        address = ipam.of_mac(subnet["cidr"], port.mac_address)
        insert_if_absent(connection, addresses, subnet_id=subnet["id"], number=ipam.address_number(address),
                         port_id=port.id, ip_address=address)


def _check_version(connection: Connection, network: RowMapping, net: AnyNetwork, values: Document) -> None:
    """Raise ``InvalidField`` unless *values* and *network* allow a subnet of the IP version of *net*. IPv6 subnets need
    an OVN network and valid address modes (see Neutron's API reference, "Create subnet")."""
    ip_version = values.pop("ip_version", net.version)
    if ip_version != net.version:
        raise InvalidField("ip_version", f"must be {net.version}, as cidr is", ip_version)
    modes = {name: values.get(name) for name in ("ipv6_address_mode", "ipv6_ra_mode")}
    if net.version == 4:
        for name, mode in modes.items():
            if mode is not None:
                raise InvalidField(name, "is for IPv6", mode)
        return
    if not network["by_engine"]:
        raise InvalidField("cidr", "must be of IPv4: IPv6 is for networks of OVN", str(net))
    _check_modes(net, values)
    if any(net.overlaps(reserved_net) for reserved_net in NOT_FOR_GUESTS):
        raise InvalidField("cidr", "must not hold link-local, multicast or loopback addresses", str(net))


def _check_modes(net: AnyNetwork, values: Document) -> None:
    address, router = values.get("ipv6_address_mode"), values.get("ipv6_ra_mode")
    if router and not address:
        raise InvalidField("ipv6_address_mode", "must be given with ipv6_ra_mode: no router but the cloud's own "
                                                "advertises here", router)
    if router and address != router:
        raise InvalidField("ipv6_ra_mode", f"must be as ipv6_address_mode, which is {address}", router)
    if address and not values["enable_dhcp"]:
        raise InvalidField("enable_dhcp", "must be true for a subnet with ipv6_address_mode", False)
    if address in ipam.AUTOMATIC and net.prefixlen != 64:
        raise InvalidField("cidr", f"must have a prefix length of 64 with ipv6_address_mode {address}", str(net))


def _check_dhcp_options(net: AnyNetwork, values: Document) -> None:
    """Raise ``InvalidField`` if ``dns_nameservers`` or ``host_routes`` in *values* contain duplicates, or entries that
    DHCP cannot announce in a subnet of the IP version of *net*."""
    for name in ("dns_nameservers", "host_routes"):
        check_once(name, values.get(name) or ())
    for nameserver in values.get("dns_nameservers") or ():
        if ip_address(nameserver).version != net.version:
            raise InvalidField("dns_nameservers", f"must be addresses of IPv{net.version}, as the subnet is",
                               nameserver)
    for route in values.get("host_routes") or ():
        if net.version == 6:
            raise InvalidField("host_routes", "must be empty for a subnet of IPv6: its guests learn routes of routers",
                               route["destination"])
        if ip_address(route["nexthop"]).version != 4 or ip_network(route["destination"]).version != 4:
            raise InvalidField("host_routes", "must be of IPv4, as the subnet is", route["destination"])


def _check_mtu(connection: Connection, network_id: str) -> None:
    """Raise ``Conflict`` when the MTU of the network *network_id* is too small for an IPv6 subnet. The caller has
    locked the network."""
    mtu = connection.execute(select(networks.c.mtu).where(networks.c.id == network_id)).scalar_one()
    if mtu < LEAST_MTU:
        raise Conflict(f"MTU of {network_id} is not valid, subnet requires a minimum of {LEAST_MTU}: guests do without "
                       f"IPv6 on links of less, and the network has {mtu}. Create another network.",
                       type="NetworkMTUSubnetConflict")


def _check_free(connection: Connection, network: RowMapping, net: AnyNetwork) -> None:
    """Raise ``InvalidRequest`` if *net* overlaps with another subnet of *network*. If agents create *network*, raise
    ``Conflict`` if *network* already has a subnet, or if *net* overlaps with a subnet of another agent-created network.
    Locks all networks, so that concurrent callers wait."""
    connection.execute(select(networks.c.id).order_by(networks.c.id).with_for_update()).all()
    rows = connection.execute(select(subnets.c.cidr, subnets.c.network_id, networks.c.type).join(
        networks, networks.c.id == subnets.c.network_id)).all()
    made = network["type"] in OF_AGENTS
    if made and any(row.network_id == network["id"] for row in rows):
        raise Conflict(f"Network {network['id']} has a subnet. One that the agents make on each host has one only; "
                    "create another network.")
    for row in rows:
        if not prefixes_overlap(str(net), row.cidr):
            continue
        if row.network_id == network["id"]:
            raise InvalidRequest(f"Invalid input for operation: Requested subnet with cidr: {net} for network: "
                        f"{network['id']} overlaps with another subnet.", type="InvalidInput")
        if made and row.type in OF_AGENTS:
            raise Conflict(f"The addresses {net} overlap with those of another network of this cloud. Hosts route to "
                        "all of them, so each has addresses of its own; choose another range.")


def _check_gateway(network: RowMapping, net: AnyNetwork, gateway: str | None) -> None:
    if network["type"] in OF_AGENTS and gateway != str(net[1]):
        raise InvalidField("gateway_ip", f"must be {net[1]}, the first address: on a network that the agents make it "
                                         "is the host's")
    ends = (net[0], net[-1]) if net.version == 4 else (net[0],)
    if gateway is not None and (ip_address(gateway) not in net or
                                (network["by_engine"] and ip_address(gateway) in ends)):
        raise InvalidField("gateway_ip", f"must be an address of a host in {net}", gateway)


def _span(net: AnyNetwork) -> tuple[int, int]:
    """Return the first and the last address in *net* that ports may have, as integers. In an IPv6 network ports may
    also have the last address, because there is no broadcast address."""
    return int(net[0]) + 1, int(net[-1]) - (net.version == 4)


def default_allocation_pools(net: AnyNetwork, gateway: str | None) -> list[Document]:
    """Return the ``allocation_pools`` of a new subnet *net* whose request has none: all addresses except *gateway*."""
    first, last = _span(net)
    pools = [(first, last)]
    if gateway is not None and first <= (middle := int(ip_address(gateway))) <= last:
        pools = [(start, end) for start, end in ((first, middle - 1), (middle + 1, last)) if start <= end]
    read = type(net[0])
    return [{"start": str(read(start)), "end": str(read(end))} for start, end in pools]


def check_pools(net: AnyNetwork, gateway: str | None, pools: Sequence[Document]) -> None:
    """Raise an error when the allocation *pools* are not inside *net*, overlap with each other, or contain *gateway*.
    """
    read, (first, last) = type(net[0]), _span(net)
    if other := next((each for pool in pools for each in pool.values() if ip_address(each).version != net.version), ""):
        raise InvalidRequest(f"The allocation pool with {other} is not valid: {net} is of IPv{net.version}.",
                             type="InvalidAllocationPool")
    ranges = sorted((int(ip_address(pool["start"])), int(ip_address(pool["end"]))) for pool in pools)
    for low, high in ranges:
        start, end = read(low), read(high)
        if not first <= low <= high <= last:
            raise InvalidRequest(f"The allocation pool {start}-{end} is not valid: it must lie in {net}, without its "
                                 f"first {'and last ' if net.version == 4 else ''}address.",
                                 type="InvalidAllocationPool")
        if gateway is not None and low <= int(ip_address(gateway)) <= high:
            raise Conflict(f"Gateway ip {gateway} conflicts with allocation pool {start}-{end}.",
                        type="GatewayConflictWithAllocationPools")
    for (_low, high), (low, _high) in itertools.pairwise(ranges):
        if low <= high:
            raise Conflict(f"Found overlapping allocation pools for subnet {net}: {read(high)} and {read(low)}.",
                        type="OverlappingAllocationPools")


def prepare_subnet_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the subnet *row*. Raises ``InvalidField``, ``Conflict``. In an agent-created network
    ``enable_dhcp`` cannot change, because hosts may already have created the network with the old value."""
    network = connection.execute(select(networks).where(networks.c.id == row["network_id"])).mappings().one()
    net, gateway = ip_network(row["cidr"]), values.get("gateway_ip", row["gateway_ip"])
    _check_gateway(network, net, gateway)
    _check_dhcp_options(net, values)
    if network["type"] in OF_AGENTS and values.get("enable_dhcp", row["enable_dhcp"]) != row["enable_dhcp"]:
        raise InvalidField("enable_dhcp", "cannot change, since hosts may have the network already; create another one")
    if row["ipv6_address_mode"] and values.get("enable_dhcp") is False:
        raise InvalidField("enable_dhcp", "must be true for a subnet with ipv6_address_mode", False)
    pools = values.get("allocation_pools")
    check_pools(net, gateway, row["allocation_pools"] if pools is None else pools)
    if gateway != row["gateway_ip"] and gateway is not None and ipam.is_given(connection, row["id"], gateway):
        raise Conflict(f"Gateway IP {gateway} is in use by a port.", type="GatewayIpInUse")


def prepare_subnet_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the addresses in the subnet *row*, which will be deleted. Raises ``Conflict`` while a router has an
    address in the subnet, or a port has an address there that is not derived from the port's MAC."""
    query = select(addresses.c.port_id).join(ports, ports.c.id == addresses.c.port_id).where(
        addresses.c.subnet_id == row["id"])
    if ipam.by_itself(row):  # derived addresses go with it, except a router's
        query = query.where(ports.c.device_owner.startswith(OWN))
    if connection.execute(query.limit(1)).first():
        raise Conflict(f"Unable to complete operation on subnet {row['id']}: One or more ports have an IP allocation "
                    "from this subnet.", type="SubnetInUse")
    connection.execute(deleting(addresses).where(addresses.c.subnet_id == row["id"]))


def changed_subnet_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the subnet *row* affects:
    ``network/ID``; ``port/ID`` of ports that get or lose addresses, or whose DHCP is switched on or off; ``router/ID``
    of the subnet's routers, if the gateway address changes. *changed*: the new values; ``None`` for a created or
    deleted subnet."""
    unit_keys = [f"network/{row['network_id']}"]
    if changed is None and ipam.by_itself(row):
        unit_keys += changes.port_unit_keys(connection.execute(select(addresses.c.port_id).where(
            addresses.c.subnet_id == row["id"])).scalars())
    if changed and changed.get("enable_dhcp", row["enable_dhcp"]) != row["enable_dhcp"]:
        unit_keys += changes.port_unit_keys(connection.execute(select(addresses.c.port_id).where(
            addresses.c.subnet_id == row["id"])).scalars())
    if changed and "gateway_ip" in changed:
        unit_keys += [f"router/{id}" for id in connection.execute(select(ports.c.device_id).join(
            addresses, addresses.c.port_id == ports.c.id).where(
            addresses.c.subnet_id == row["id"], ports.c.device_owner.in_((INTERFACE, GATEWAY)))).scalars()]
    return unit_keys


def subnet_resource(ranges: Sequence[IPv4Network]) -> NetworkResource:
    """Return the definition of the resource type "subnet" (its table, checks, fields and filters). *ranges*: if agents
    create a network, users' subnets of this network must be inside one of these."""
    return NetworkResource(
        name="subnet", table=subnets, visible=visible_subnets, listed=_listed_subnets,
        create=partial(create_subnet_row, ranges),
        update=prepare_subnet_update, delete=prepare_subnet_delete, units=changed_subnet_units,
        defaults={"name": "", "description": "", "enable_dhcp": True, "dns_nameservers": [], "host_routes": [],
                  "ipv6_address_mode": None, "ipv6_ra_mode": None},
        filters={"ip_version": ip_version_filter(subnets.c.cidr.contains(":"))})
