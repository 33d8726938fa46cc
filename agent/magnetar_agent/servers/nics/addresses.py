# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses that servers are given: chosen by somebody else, and answered by DHCP on networks that the agent makes.

``document.state["reserved"]`` has the DHCP reservations of a server on this host: ``[[mac, network, address], ...]``.
It is written before and after DHCP is changed, so that every reservation can be removed.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TYPE_CHECKING, Any

from magnetar_agent.metadata.guest_data import NicAddress
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.server_plan import reservations

if TYPE_CHECKING:

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

RESERVED = "reserved"
#: (kind of plug, its name): where a nic is plugged in.
Plug = tuple[str, str]


def complete(host: LocalHost, nics: list[Fields], old: list[Fields], document: Document | None) -> None:
    """Check the addresses of *nics* and write them in normal form; a nic of *old* that is asked for without an
    address keeps the one that it has. Raises ``InvalidField`` or ``Conflict`` naming the field."""
    before = {nic["mac"]: nic for nic in old}
    for at, nic in enumerate(nics):
        kept = before.get(nic["mac"], {})
        if "address" not in nic and "address" in kept and _plug(host, nic) == _plug(host, kept):
            nic["address"] = kept["address"]
        if nic.get("address") is None:
            nic.pop("address", None)
        elif nic != kept:
            check_address(host, nic, f"networks[{at}].address")
            _check_unused(host, nics, at, document)


def check_address(host: LocalHost, nic: Fields, field: str) -> None:
    """Check that the address can be one on the nic's network, and write it in normal form."""
    try:
        given = IPv4Interface(nic["address"])
    except ValueError:
        raise InvalidField(field, "must be an IPv4 address such as 192.168.100.7", nic["address"]) from None
    network = managed_network(host, nic)
    if network is None:
        if given.ip.is_multicast or given.ip.is_loopback or given.ip.is_unspecified:
            raise InvalidField(field, "must be an address that a guest can have", nic["address"])
        nic["address"] = str(given) if "/" in nic["address"] else str(given.ip)
        return
    net = IPv4Network(network.want["cidr"])
    first, last = net.network_address + 2, net.broadcast_address - 1
    if not first <= given.ip <= last or ("/" in nic["address"] and given.network != net):
        raise InvalidField(field, f"must lie in {first} to {last} on network {network.name!r} ({net}); the address "
                                  "before is the host's", nic["address"])
    nic["address"] = str(given.ip)


def _check_unused(host: LocalHost, nics: list[Fields], at: int, document: Document | None) -> None:
    """Raise when another nic has the address, or another server's guest holds a lease of it."""
    nic, field = nics[at], f"networks[{at}].address"
    plug, address = _plug(host, nic), bare_address(nic)
    if any(bare_address(one) == address and _plug(host, one) == plug for one in nics[:at]):
        raise InvalidField(field, "must differ from the other NICs'", nic["address"])

    def others(name: str, key: str) -> list[Document]:
        found = host.documents.having("server", name, key)
        return [one for one in found if document is None or one.id != document.id]

    for other in others("address", str(address)):
        if any(bare_address(nic) == address and _plug(host, nic) == plug for nic in other.want["networks"]):
            raise Conflict(f"{field}: {address} belongs to server {other.name!r}. Choose another address.",
                           field=field, uuids=[other.id])
    if managed_network(host, nic) is None:
        return
    leased = {lease.mac for lease in host.hypervisor.leases(plug[1]) if lease.address == address} - {nic["mac"]}
    for other in (one for mac in leased for one in others("mac", mac)):
        raise Conflict(f"{field}: DHCP has given {address} to server {other.name!r}. Choose another address, or let "
                       "the network's DHCP range leave it out.", field=field, uuids=[other.id])


def fixed_addresses(server: Document) -> list[str]:
    """The addresses that a server's nics were given, without prefixes."""
    return [address for nic in server.want["networks"] if (address := bare_address(nic))]


def bare_address(nic: Fields) -> str | None:
    """The address of a nic without a prefix."""
    found = nic.get("address")
    return None if found is None else str(found).partition("/")[0]


def managed_network(host: LocalHost, nic: Fields) -> Document | None:
    """The network that the agent makes into which the nic is plugged."""
    network = host.documents.look_for("network", nic["network"]) if nic.get("network") else None
    return None if network is None or network.want["mode"] == "bridge" else network


def _plug(host: LocalHost, nic: Fields) -> Plug:
    if nic.get("port"):
        return "port", str(nic["port"])
    if nic.get("physical_network"):
        return "physical_network", f"{nic['physical_network']} {nic.get('vlan')}"
    network = host.documents.look_for("network", nic["network"]) if nic.get("network") else None
    if network is not None and network.want["mode"] != "bridge":
        return "network", network.name
    if network is not None:
        return "bridge", str(network.want["bridge"])
    return ("bridge", nic["bridge"]) if nic.get("bridge") else ("network", str(nic.get("network")))


# For the config drive ---------------------------------------------------------------------------------------------
def for_config_drive(host: LocalHost, nic: Fields) -> NicAddress | None:
    """The nic's address for the config drive."""
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
    """The reservations of the server, including those that a crash may have left."""
    noted: list[list[Any]] = server.state.get(RESERVED, [])
    return noted + [one for one in reservations(server.want["networks"]) if one not in noted]


def dhcp_hosts(host: LocalHost, network: Document) -> tuple[tuple[str, str], ...]:
    """MAC and address of all that DHCP of *network* is to know, for when the network is made."""
    found = {(nic["mac"], nic["address"]) for server in host.documents.peek("server") if not server.deleting
             for nic in server.want["networks"]
             if nic.get("address") and nic.get("network") in (network.name, network.id)}
    return tuple(sorted(found, key=lambda host: IPv4Address(host[1])))


def reserve(task: Task) -> None:
    """Make DHCP reserve the addresses that are wanted now for the server's NICs, and no others."""
    host, document = task.host, task.document
    now, before = reservations(document.want["networks"]), document.state.get(RESERVED, [])
    gone = [one for one in before if one not in now]
    if gone:  # of the others the document says already that they are wanted
        document.state[RESERVED] = now + gone
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
    """Call *act* with libvirt's name of a network whose DHCP is ours; others are somebody else's."""
    found = managed_network(host, {"network": network})
    if found is not None and found.want["dhcp"]:
        act(found.name)
