# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of ports. The primary key of ``port_addresses`` ensures that concurrent callers never get the same address,
which no check before the insertion could."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services.network.tables import addresses, ports
from magnetar_control.store.engine.database import insert_if_absent
from magnetar_core.addresses import link_local
from magnetar_core.errors import Conflict, InvalidRequest, Unavailable

#: Neutron's setting base_mac: the first half is kept, the rest is drawn.
PREFIX = "fa:16:3e"
#: Random addresses tried before the pools are searched for the first free one.
TRIES = 16
#: Neutron's modes that let guests derive addresses from their MAC.
AUTOMATIC = ("slaac", "dhcpv6-stateless")
_RANDOM = secrets.SystemRandom()


def address_number(address: str) -> int:
    """Convert an IP address to the integer that is stored in the table ``port_addresses``. This is the whole IPv4
    address, or the last 64 bits of the IPv6 address as a signed number: the other bits are the same in the whole
    subnet, because the prefix of an IPv6 subnet has at least 64 bits."""
    ip = ip_address(address)
    if ip.version == 4:
        return int(ip)
    last = int(ip) & (2**64 - 1)
    return last - 2**64 if last >= 2**63 else last


def is_six(text: str) -> bool:
    """Return whether *text*, an address or a CIDR, is IPv6."""
    return ":" in text


def by_itself(subnet: Mapping[Any, Any] | RowMapping) -> bool:
    """Return whether guests derive their addresses in *subnet* from their MAC (SLAAC). Every port has exactly one
    address in such a subnet."""
    return subnet["ipv6_address_mode"] in AUTOMATIC


def of_mac(cidr: str, mac: str) -> str:
    """Return the IPv6 address that a guest with the MAC *mac* derives in the subnet *cidr* (RFC 4291, EUI-64)."""
    return str(IPv6Address(int(ip_network(cidr).network_address) | (int(IPv6Address(link_local(mac))) & (2**64 - 1))))


def fitting_subnet(address: str, choices: Sequence[RowMapping]) -> RowMapping | None:
    """Return the first of the subnets *choices* that contains *address* as an address for ports; ``None`` if there is
    none. The network address, broadcast address and gateway address of a subnet are not for ports."""
    ip = ip_address(address)
    for subnet in choices:
        net = ip_network(subnet["cidr"])
        ends = [] if net.prefixlen >= net.max_prefixlen - 1 else [net.network_address]
        ends += [net.broadcast_address] if ends and net.version == 4 else []
        if ip in net and ip not in ends and address != subnet["gateway_ip"]:
            return subnet
    return None


def is_given(connection: Connection, subnet_id: str, address: str) -> bool:
    """Return whether a port has *address* in the subnet *subnet_id*."""
    return connection.execute(select(addresses.c.port_id).where(
        addresses.c.subnet_id == subnet_id, addresses.c.number == address_number(address))).first() is not None


def give_address(connection: Connection, port_id: str, network_id: str, choices: Sequence[RowMapping],
                 address: str | None = None, where: str = "") -> None:
    """Assign an address to the port *port_id*: *address*, or if it is ``None`` a free address from the allocation
    pools. *choices*: the subnets to use; the first one with *address* or with a free address is used. *network_id*,
    *where*: the network, and a description of the subnets, for errors. Raises ``Conflict``, ``InvalidRequest``."""
    if address is None:
        if not any(_give_any_address(connection, port_id, subnet) for subnet in choices):
            raise Conflict(f"No more IP addresses available on network {network_id}.",
                           type="IpAddressGenerationFailure")
        return
    subnet = fitting_subnet(address, choices)
    if subnet is None:
        raise InvalidRequest(f"IP address {address} is not a valid IP for {where}.", type="InvalidIpForNetwork")
    if by_itself(subnet):
        raise InvalidRequest(f"IPv6 address {address} can not be directly assigned to a port on subnet {subnet['id']} "
                             "since the subnet is configured for automatic addresses", type="InvalidInput")
    if not _note_address(connection, port_id, subnet, address):
        raise Conflict(f"IP address {address} already allocated in subnet {subnet['id']}",
                       type="IpAddressAlreadyAllocated")


def give_all(connection: Connection, port_id: str, mac: str, choices: Sequence[RowMapping],
             network_id: str) -> None:
    """Assign the default addresses to the port *port_id*, as Neutron does: one IPv4 address, one DHCPv6 address, and
    the addresses derived from its MAC *mac* (SLAAC). *choices*: the subnets of its network *network_id*."""
    for six in (False, True):
        fitting = [subnet for subnet in choices if is_six(subnet["cidr"]) is six and not by_itself(subnet)]
        if fitting:
            give_address(connection, port_id, network_id, fitting)
    give_automatic(connection, port_id, mac, choices)


def give_automatic(connection: Connection, port_id: str, mac: str, choices: Sequence[RowMapping]) -> None:
    """In each of the subnets *choices* that use SLAAC, assign to the port *port_id* the address derived from its MAC
    *mac*."""
    for subnet in choices:
        if by_itself(subnet):
            _note_address(connection, port_id, subnet, of_mac(subnet["cidr"], mac))


def _give_any_address(connection: Connection, port_id: str, subnet: RowMapping) -> bool:
    """Assign any free address of *subnet* to the port *port_id*. Return false if no address is free."""
    if by_itself(subnet):
        mac = connection.execute(select(ports.c.mac_address).where(ports.c.id == port_id)).scalar()
        return _note_address(connection, port_id, subnet, of_mac(subnet["cidr"], str(mac)))
    read = IPv6Address if is_six(subnet["cidr"]) else IPv4Address
    # The first address of each allocation pool, and its size.
    pools = [(first := int(read(pool["start"])), int(read(pool["end"])) - first + 1)
             for pool in subnet["allocation_pools"]]
    for _try in range(TRIES if pools else 0):
        ((first, size),) = _RANDOM.choices(pools, [size for _first, size in pools])
        if _note_address(connection, port_id, subnet, str(read(first + draw_offset(size)))):
            return True
    while (free := _first_free(connection, subnet, pools)) is not None:
        if _note_address(connection, port_id, subnet, str(read(free))):
            return True
    return False


def draw_offset(size: int) -> int:
    """Return a random number from 0 to *size* - 1, as the index of an address in an allocation pool of *size*
    addresses. All indexes are equally probable."""
    return secrets.randbelow(size)


def _note_address(connection: Connection, port_id: str, subnet: RowMapping, address: str) -> bool:
    return address != subnet["gateway_ip"] and insert_if_absent(
        connection, addresses, subnet_id=subnet["id"], number=address_number(address), port_id=port_id,
        ip_address=address)


def _first_free(connection: Connection, subnet: RowMapping, pools: Sequence[tuple[int, int]]) -> int | None:
    taken_numbers = {int(ip_address(address)) for address in connection.execute(select(addresses.c.ip_address).where(
        addresses.c.subnet_id == subnet["id"])).scalars()}
    if subnet["gateway_ip"]:
        taken_numbers.add(int(ip_address(subnet["gateway_ip"])))
    # No more addresses are taken than given out, so the search ends.
    return next((candidate for first, size in pools for candidate in range(first,
                                                                           first + min(size, len(taken_numbers) + 1))
                 if candidate not in taken_numbers), None)


def add_port(connection: Connection, **row: Any) -> str | None:
    """Insert a port, and return its MAC. *row*: its column values; without ``mac_address``, choose a random MAC. Return
    ``None`` if the port's id, or the MAC in *row*, already exists."""
    if "mac_address" in row:
        return str(row["mac_address"]) if insert_if_absent(connection, ports, **row) else None
    for _try in range(TRIES):
        drawn = ":".join((PREFIX, *(f"{byte:02x}" for byte in secrets.token_bytes(3))))
        if insert_if_absent(connection, ports, **row, mac_address=drawn):
            return drawn
        if connection.execute(select(ports.c.id).where(ports.c.id == row["id"])).first():
            return None
    raise Unavailable("Unable to generate a unique MAC address; try again.", type="MacAddressGenerationFailure")
