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
from magnetar_core.errors import Conflict, InvalidRequest, Unavailable

from .tables import addresses, ports

#: Neutron's setting base_mac: the first half is kept, the rest drawn.
PREFIX = "fa:16:3e"
#: Addresses tried at random before the pools are looked through for the first that is free.
TRIES = 16
_RANDOM = secrets.SystemRandom()


def fitting(address: str, choices: Sequence[RowMapping]) -> RowMapping | None:
    """The first of the subnets *choices* of which a port may have *address*: neither its own, nor broadcast, nor the
    gateway."""
    number = IPv4Address(address)
    for subnet in choices:
        net = IPv4Network(subnet["cidr"])
        ends = () if net.prefixlen >= 31 else (net.network_address, net.broadcast_address)
        if number in net and number not in ends and address != subnet["gateway_ip"]:
            return subnet
    return None


def is_given(connection: Connection, subnet_id: str, address: str) -> bool:
    """Whether a port has *address*."""
    return connection.execute(select(addresses.c.port_id).where(
        addresses.c.subnet_id == subnet_id, addresses.c.number == int(IPv4Address(address)))).first() is not None


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
    if not _noted(connection, port_id, subnet, int(IPv4Address(address))):
        raise Conflict(f"IP address {address} already allocated in subnet {subnet['id']}",
                       type="IpAddressAlreadyAllocated")


def _found(connection: Connection, port_id: str, subnet: RowMapping) -> bool:
    """Whether an address was left, and is the port's now."""
    # The addresses of each allocation pool, as numbers.
    pools = [range(int(IPv4Address(pool["start"])), int(IPv4Address(pool["end"])) + 1)
             for pool in orjson.loads(subnet["allocation_pools"])]
    for _try in range(TRIES if pools else 0):
        if _noted(connection, port_id, subnet, secrets.choice(*_RANDOM.choices(pools, [len(pool) for pool in pools]))):
            return True
    while (free := _first_free(connection, subnet, pools)) is not None:
        if _noted(connection, port_id, subnet, free):
            return True
    return False


def _noted(connection: Connection, port_id: str, subnet: RowMapping, number: int) -> bool:
    address = str(IPv4Address(number))
    return address != subnet["gateway_ip"] and added(
        connection, addresses, subnet_id=subnet["id"], number=number, port_id=port_id, ip_address=address)


def _first_free(connection: Connection, subnet: RowMapping, pools: Sequence[range]) -> int | None:
    given = set(connection.execute(select(addresses.c.number).where(addresses.c.subnet_id == subnet["id"])).scalars())
    if subnet["gateway_ip"]:
        given.add(int(IPv4Address(subnet["gateway_ip"])))
    return next((number for pool in pools for number in pool if number not in given), None)


def add_port(connection: Connection, **row: Any) -> bool:
    """Add a port, whose MAC is drawn unless given; false when there is one of this id, or of the given MAC."""
    if "mac_address" in row:
        return added(connection, ports, **row)
    for _try in range(TRIES):
        drawn = ":".join((PREFIX, *(f"{byte:02x}" for byte in secrets.token_bytes(3))))
        if added(connection, ports, **row, mac_address=drawn):
            return True
        if connection.execute(select(ports.c.id).where(ports.c.id == row["id"])).first():
            return False
    raise Unavailable("Unable to generate a unique MAC address; try again.", type="MacAddressGenerationFailure")
