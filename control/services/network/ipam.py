# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses: each is given once, whoever races. The key of ``port_addresses`` decides, not a look beforehand."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, select

from magnetar_control.store.database import added
from magnetar_core.errors import Conflict, MagnetarError, Unavailable

from .tables import addresses, ports

#: Neutron's setting base_mac: the first half is kept, the rest drawn.
PREFIX = "fa:16:3e"
#: Addresses tried at random before the pools are looked through for the first that is free.
TRIES = 16


def mac() -> str:
    """A MAC address drawn anew."""
    return ":".join((PREFIX, *(f"{byte:02x}" for byte in secrets.token_bytes(3))))


def exhausted(network_id: str) -> MagnetarError:
    """No address is left."""
    return Conflict(f"No more IP addresses available on network {network_id}.", type="IpAddressGenerationFailure")


def taken(address: str, subnet_id: str) -> MagnetarError:
    """Somebody has *address*."""
    return Conflict(f"IP address {address} already allocated in subnet {subnet_id}", type="IpAddressAlreadyAllocated")


def pools(subnet: RowMapping) -> list[tuple[int, int]]:
    """First and last address of each allocation pool, as numbers."""
    return [(int(IPv4Address(pool["start"])), int(IPv4Address(pool["end"])))
            for pool in orjson.loads(subnet["allocation_pools"])]


def usable(address: str, subnet: RowMapping) -> bool:
    """Whether a port may have *address*: of the subnet, neither its own, nor broadcast, nor the gateway."""
    net, number = IPv4Network(subnet["cidr"]), IPv4Address(address)
    if number not in net or address == subnet["gateway_ip"]:
        return False
    return net.prefixlen >= 31 or number not in (net.network_address, net.broadcast_address)


def give(connection: Connection, port_id: str, subnet: RowMapping, address: str | None = None) -> str | None:
    """Note *address*, or one of the subnet's pools, for the port, and return it; ``None`` when all are given."""
    if address is not None:
        if not _noted(connection, port_id, subnet, int(IPv4Address(address))):
            raise taken(address, subnet["id"])
        return address
    ranges = pools(subnet)
    sizes = [last - first + 1 for first, last in ranges]
    if not sizes:
        return None
    for _try in range(TRIES):
        number = _nth(ranges, secrets.randbelow(sum(sizes)))
        if _noted(connection, port_id, subnet, number):
            return str(IPv4Address(number))
    while (free := _first_free(connection, subnet, ranges)) is not None:
        if _noted(connection, port_id, subnet, free):
            return str(IPv4Address(free))
    return None


def _noted(connection: Connection, port_id: str, subnet: RowMapping, number: int) -> bool:
    address = str(IPv4Address(number))
    return address != subnet["gateway_ip"] and added(
        connection, addresses, subnet_id=subnet["id"], number=number, port_id=port_id, ip_address=address)


def _nth(ranges: Sequence[tuple[int, int]], place: int) -> int:
    for first, last in ranges:
        if place <= last - first:
            return first + place
        place -= last - first + 1
    raise LookupError("the place is beyond the pools")


def _first_free(connection: Connection, subnet: RowMapping, ranges: Sequence[tuple[int, int]]) -> int | None:
    given = set(connection.execute(select(addresses.c.number).where(addresses.c.subnet_id == subnet["id"])).scalars())
    if subnet["gateway_ip"]:
        given.add(int(IPv4Address(subnet["gateway_ip"])))
    return next((number for first, last in ranges for number in range(first, last + 1) if number not in given), None)


def give_any(connection: Connection, port_id: str, network_id: str, choices: Sequence[RowMapping]) -> tuple[str, str]:
    """An address of the first of the subnets *choices* that has one: (subnet's id, address)."""
    for subnet in choices:
        found = give(connection, port_id, subnet)
        if found is not None:
            return subnet["id"], found
    raise exhausted(network_id)


def add_port(connection: Connection, **row: Any) -> bool:
    """Add a port, whose MAC is drawn unless given; false when there is one of this id, or of the given MAC."""
    if "mac_address" in row:
        return added(connection, ports, **row)
    for _try in range(TRIES):
        if added(connection, ports, **row, mac_address=mac()):
            return True
        if connection.execute(select(ports.c.id).where(ports.c.id == row["id"])).first():
            return False
    raise Unavailable("Unable to generate a unique MAC address; try again.", type="MacAddressGenerationFailure")
