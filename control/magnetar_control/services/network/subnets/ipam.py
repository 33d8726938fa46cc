# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses: each is given once, whoever races. The key of ``port_addresses`` decides, not a look beforehand."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services.network.tables import addresses, ports
from magnetar_control.store.engine.database import added
from magnetar_core.addresses import link_local
from magnetar_core.errors import Conflict, InvalidRequest, Unavailable

#: Neutron's setting base_mac: the first half is kept, the rest drawn.
PREFIX = "fa:16:3e"
#: Addresses tried at random before the pools are looked through for the first that is free.
TRIES = 16
#: Neutron's modes in which guests make addresses of their MAC.
AUTOMATIC = ("slaac", "dhcpv6-stateless")
_RANDOM = secrets.SystemRandom()


def number(address: str) -> int:
    """The number of *address* in its subnet: an IPv4 address as it is, of an IPv6 address the last 64 bits, as the
    column has them (two's complement). No subnet is larger."""
    found = ip_address(address)
    if found.version == 4:
        return int(found)
    last = int(found) & (2**64 - 1)
    return last - 2**64 if last >= 2**63 else last


def is_six(text: str) -> bool:
    """Whether an address or a range, in its usual form, is of IPv6."""
    return ":" in text


def by_itself(subnet: Mapping[Any, Any] | RowMapping) -> bool:
    """Whether guests make their addresses of *subnet* of their MAC, so that each port has exactly that one."""
    return subnet["ipv6_address_mode"] in AUTOMATIC


def of_mac(cidr: str, mac: str) -> str:
    """The address that a guest with *mac* makes in *cidr* (RFC 4291, EUI-64)."""
    return str(IPv6Address(int(ip_network(cidr).network_address) | (int(IPv6Address(link_local(mac))) & (2**64 - 1))))


def fitting(address: str, choices: Sequence[RowMapping]) -> RowMapping | None:
    """The first of the subnets *choices* of which a port may have *address*: neither its own, nor broadcast, nor the
    gateway."""
    found = ip_address(address)
    for subnet in choices:
        net = ip_network(subnet["cidr"])
        ends = [] if net.prefixlen >= net.max_prefixlen - 1 else [net.network_address]
        ends += [net.broadcast_address] if ends and net.version == 4 else []
        if found in net and found not in ends and address != subnet["gateway_ip"]:
            return subnet
    return None


def is_given(connection: Connection, subnet_id: str, address: str) -> bool:
    """Whether a port has *address*."""
    return connection.execute(select(addresses.c.port_id).where(
        addresses.c.subnet_id == subnet_id, addresses.c.number == number(address))).first() is not None


def give(connection: Connection, port_id: str, network_id: str, choices: Sequence[RowMapping],
         address: str | None = None, where: str = "") -> None:
    """Note *address* for the port, of the first of the subnets *choices* that fits, and which *where* calls; or any, of
    the pools of the first that has one left."""
    if address is None:
        if not any(_found(connection, port_id, subnet) for subnet in choices):
            raise Conflict(f"No more IP addresses available on network {network_id}.",
                           type="IpAddressGenerationFailure")
        return
    subnet = fitting(address, choices)
    if subnet is None:
        raise InvalidRequest(f"IP address {address} is not a valid IP for {where}.", type="InvalidIpForNetwork")
    if by_itself(subnet):
        raise InvalidRequest(f"IPv6 address {address} can not be directly assigned to a port on subnet {subnet['id']} "
                             "since the subnet is configured for automatic addresses", type="InvalidInput")
    if not _noted(connection, port_id, subnet, address):
        raise Conflict(f"IP address {address} already allocated in subnet {subnet['id']}",
                       type="IpAddressAlreadyAllocated")


def give_all(connection: Connection, port_id: str, mac: str, choices: Sequence[RowMapping],
             network_id: str) -> None:
    """What a port gets that asks for nothing, as in Neutron: an IPv4 address, one by DHCPv6, and those of its MAC."""
    for six in (False, True):
        fitting = [one for one in choices if is_six(one["cidr"]) is six and not by_itself(one)]
        if fitting:
            give(connection, port_id, network_id, fitting)
    give_automatic(connection, port_id, mac, choices)


def give_automatic(connection: Connection, port_id: str, mac: str, choices: Sequence[RowMapping]) -> None:
    """The addresses that follow from the MAC, of all subnets that have such; one that it has already it keeps."""
    for subnet in choices:
        if by_itself(subnet):
            _noted(connection, port_id, subnet, of_mac(subnet["cidr"], mac))


def _found(connection: Connection, port_id: str, subnet: RowMapping) -> bool:
    """Whether an address was left, and is the port's now."""
    if by_itself(subnet):
        mac = connection.execute(select(ports.c.mac_address).where(ports.c.id == port_id)).scalar()
        return _noted(connection, port_id, subnet, of_mac(subnet["cidr"], str(mac)))
    read = IPv6Address if is_six(subnet["cidr"]) else IPv4Address
    # The first address of each allocation pool, and how many it has.
    pools = [(first := int(read(pool["start"])), int(read(pool["end"])) - first + 1)
             for pool in orjson.loads(subnet["allocation_pools"])]
    for _try in range(TRIES if pools else 0):
        ((first, size),) = _RANDOM.choices(pools, [size for _first, size in pools])
        if _noted(connection, port_id, subnet, str(read(first + secrets.randbelow(size)))):
            return True
    while (free := _first_free(connection, subnet, pools)) is not None:
        if _noted(connection, port_id, subnet, str(read(free))):
            return True
    return False


def _noted(connection: Connection, port_id: str, subnet: RowMapping, address: str) -> bool:
    return address != subnet["gateway_ip"] and added(
        connection, addresses, subnet_id=subnet["id"], number=number(address), port_id=port_id, ip_address=address)


def _first_free(connection: Connection, subnet: RowMapping, pools: Sequence[tuple[int, int]]) -> int | None:
    given = {int(ip_address(one)) for one in connection.execute(select(addresses.c.ip_address).where(
        addresses.c.subnet_id == subnet["id"])).scalars()}
    if subnet["gateway_ip"]:
        given.add(int(ip_address(subnet["gateway_ip"])))
    # There are no more taken ones than are given, so the look ends.
    return next((one for first, size in pools for one in range(first, first + min(size, len(given) + 1))
                 if one not in given), None)


def add_port(connection: Connection, **row: Any) -> str | None:
    """Add a port, whose MAC is drawn unless given; its MAC. ``None`` when there is one of this id, or of the given
    MAC."""
    if "mac_address" in row:
        return str(row["mac_address"]) if added(connection, ports, **row) else None
    for _try in range(TRIES):
        drawn = ":".join((PREFIX, *(f"{byte:02x}" for byte in secrets.token_bytes(3))))
        if added(connection, ports, **row, mac_address=drawn):
            return drawn
        if connection.execute(select(ports.c.id).where(ports.c.id == row["id"])).first():
            return None
    raise Unavailable("Unable to generate a unique MAC address; try again.", type="MacAddressGenerationFailure")
