# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixed addresses of servers: chosen outside the agent, and served by DHCP on networks that the agent makes.

``document.state["reserved"]`` has the DHCP reservations of a server on this host: ``[[mac, network, address], ...]``.
It is written before and after DHCP is changed, so that every reservation can be removed.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TYPE_CHECKING, Any

from magnetar_agent.metadata.guest_data import NicAddress
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.server_plan import address_reservations

if TYPE_CHECKING:

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

RESERVED = "reserved"
#: Where a NIC is plugged in: kind and name.
Plug = tuple[str, str]


def complete_addresses(host: LocalHost, nics: list[Fields], old: list[Fields], document: Document | None) -> None:
    """Validate and normalise the fixed IP addresses of *nics*, a server's requested NICs. A NIC without a requested
    address keeps its address in *old*, the current NICs, if it stays on the same network. *document*: the existing
    server; ``None`` for a new one. Raises ``InvalidField`` or ``Conflict`` naming the field."""
    former = {nic["mac"]: nic for nic in old}
    for at, nic in enumerate(nics):
        former_nic = former.get(nic["mac"], {})
        if "address" not in nic and "address" in former_nic and _plug(host, nic) == _plug(host, former_nic):
            nic["address"] = former_nic["address"]
        if nic.get("address") is None:
            nic.pop("address", None)
        elif nic != former_nic:
            check_address(host, nic, f"networks[{at}].address")
            _check_unused(host, nics, at, document)


def check_address(host: LocalHost, nic: Fields, field: str) -> None:
    """Normalise the fixed IP address of *nic*. Raises ``InvalidField`` naming *field* if the address is not valid in
    the NIC's network."""
    try:
        address = IPv4Interface(nic["address"])
    except ValueError:
        raise InvalidField(field, "must be an IPv4 address such as 192.168.100.7", nic["address"]) from None
    network = managed_network(host, nic)
    if network is None:
        if address.ip.is_multicast or address.ip.is_loopback or address.ip.is_unspecified:
            raise InvalidField(field, "must be an address that a guest can have", nic["address"])
        nic["address"] = str(address) if "/" in nic["address"] else str(address.ip)
        return
    net = IPv4Network(network.want["cidr"])
    first, last = net.network_address + 2, net.broadcast_address - 1
    if not first <= address.ip <= last or ("/" in nic["address"] and address.network != net):
        raise InvalidField(field, f"must lie in {first} to {last} on network {network.name!r} ({net}); the address "
                                  "before is the host's", nic["address"])
    nic["address"] = str(address.ip)


def _check_unused(host: LocalHost, nics: list[Fields], at: int, document: Document | None) -> None:
    """Raise ``InvalidField`` or ``Conflict`` if another NIC in the same network has the address of ``nics[at]``, or
    DHCP has leased it to another server. *nics*: the NICs of the server *document* (``None`` for a new server)."""
    nic, field = nics[at], f"networks[{at}].address"
    plug, address = _plug(host, nic), bare_address(nic)
    if any(bare_address(other_nic) == address and _plug(host, other_nic) == plug for other_nic in nics[:at]):
        raise InvalidField(field, "must differ from the other NICs'", nic["address"])

    def others(name: str, key: str) -> list[Document]:
        servers = host.documents.having("server", name, key)
        return [server for server in servers if document is None or server.id != document.id]

    for other in others("address", str(address)):
        if any(bare_address(nic) == address and _plug(host, nic) == plug for nic in other.want["networks"]):
            raise Conflict(f"{field}: {address} belongs to server {other.name!r}. Choose another address.",
                           field=field, uuids=[other.id])
    if managed_network(host, nic) is None:
        return
    leased = {lease.mac for lease in host.hypervisor.leases(plug[1]) if lease.address == address} - {nic["mac"]}
    for other in (server for mac in leased for server in others("mac", mac)):
        raise Conflict(f"{field}: DHCP has given {address} to server {other.name!r}. Choose another address, or let "
                       "the network's DHCP range leave it out.", field=field, uuids=[other.id])


def fixed_addresses(server: Document) -> list[str]:
    """Return the fixed IP addresses of the server's NICs, without prefix lengths."""
    return [address for nic in server.want["networks"] if (address := bare_address(nic))]


def bare_address(nic: Fields) -> str | None:
    """Return the fixed IP address of *nic* without its prefix length; ``None`` if the NIC has no fixed address."""
    address = nic.get("address")
    return None if address is None else str(address).partition("/")[0]


def managed_network(host: LocalHost, nic: Fields) -> Document | None:
    """Return the document of the NIC's network if the agent creates that network in libvirt; ``None`` for an existing
    bridge or any other network."""
    network = host.documents.peek_by_key("network", nic["network"]) if nic.get("network") else None
    return None if network is None or network.want["mode"] == "bridge" else network


def _plug(host: LocalHost, nic: Fields) -> Plug:
    if nic.get("port"):
        return "port", str(nic["port"])
    if nic.get("physical_network"):
        return "physical_network", f"{nic['physical_network']} {nic.get('vlan')}"
    network = host.documents.peek_by_key("network", nic["network"]) if nic.get("network") else None
    if network is not None and network.want["mode"] != "bridge":
        return "network", network.name
    if network is not None:
        return "bridge", str(network.want["bridge"])
    return ("bridge", nic["bridge"]) if nic.get("bridge") else ("network", str(nic.get("network")))


# For the config drive ---------------------------------------------------------------------------------------------
def for_config_drive(host: LocalHost, nic: Fields) -> NicAddress | None:
    """Return the fixed IP address of *nic* for the config drive, with prefix length and gateway; ``None`` if the NIC
    has no fixed address."""
    network = managed_network(host, nic)
    if nic.get("address") is None:
        return None
    if network is None:
        _address, _slash, prefix = nic["address"].partition("/")
        return NicAddress(str(bare_address(nic)), int(prefix) if prefix else None, dhcp=not prefix,
                          gateway=(nic.get("told") or {}).get("gateway") if prefix else None)
    net = IPv4Network(network.want["cidr"])
    gateway = str(net.network_address + 1)
    return NicAddress(nic["address"], net.prefixlen, bool(network.want["dhcp"]),
                   gateway if network.want["mode"] == "nat" else None, gateway)


# DHCP ---------------------------------------------------------------------------------------------------------------
def reservations_of(server: Document) -> list[list[Any]]:
    """Return the server's DHCP reservations, each as ``[MAC, network, address]``. After a crash, the list may contain
    reservations that are no longer needed or not made yet."""
    noted: list[list[Any]] = server.state.get(RESERVED, [])
    return noted + [reservation for reservation in address_reservations(server.want["networks"])
                    if reservation not in noted]


def dhcp_hosts(host: LocalHost, network: Document) -> tuple[tuple[str, str], ...]:
    """Return the DHCP reservations with which libvirt creates *network*: a pair (MAC, address) for each fixed IP
    address of a server's NIC in it."""
    pairs = {(nic["mac"], nic["address"]) for server in host.documents.peek("server") if not server.deleting
             for nic in server.want["networks"]
             if nic.get("address") and nic.get("network") in (network.name, network.id)}
    return tuple(sorted(pairs, key=lambda host: IPv4Address(host[1])))


def reserve(task: Task) -> None:
    """Update libvirt's DHCP reservations of the server to the fixed IP addresses of its NICs: add missing reservations
    and remove obsolete ones."""
    host, document = task.host, task.document
    now, before = address_reservations(document.want["networks"]), document.state.get(RESERVED, [])
    obsolete = [reservation for reservation in before if reservation not in now]
    if obsolete:  # the other ones are in ``want`` already
        document.state[RESERVED] = now + obsolete
        task.keep()
    macs = {(mac, network) for mac, network, _address in now}
    for mac, network, _address in before:
        if (mac, network) not in macs:
            _each(host, network, lambda name, mac=mac: host.hypervisor.release(name, mac))
    for mac, network, address in now:
        _each(host, network, lambda name, mac=mac, address=address: host.hypervisor.reserve(name, mac, address))
    document.state[RESERVED] = now
    task.note()


def release(task: Task) -> None:
    """Remove all DHCP reservations of the server."""
    for mac, network, _address in reservations_of(task.document):
        _each(task.host, network, lambda name, mac=mac: task.host.hypervisor.release(name, mac))


def _each(host: LocalHost, network: str, act: Any) -> None:
    """Call the function *act* with libvirt's name of *network*. Do nothing if the agent does not run DHCP in this
    network."""
    managed = managed_network(host, {"network": network})
    if managed is not None and managed.want["dhcp"]:
        act(managed.name)
