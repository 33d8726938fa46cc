# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses that servers are given: chosen by somebody else, and answered by DHCP on networks that the agent makes.

``document.state["reserved"]`` has what this host's DHCP was told for a server: ``[[mac, network, address], ...]``. It
is written before and after DHCP is told, so that whatever was told can be taken back.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TYPE_CHECKING, Any

from magnetar_agent.configdrive import Address
from magnetar_core.errors import Conflict, InvalidField

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_agent.documents import Document, Fields
    from magnetar_agent.host import LocalHost
    from magnetar_agent.task import Task

RESERVED = "reserved"
#: (kind of plug, its name): where a card is plugged in.
Plug = tuple[str, str]


def complete(host: LocalHost, cards: list[Fields], old: list[Fields], document: Document | None) -> None:
    """Check the addresses of *cards* and write them in normal form; a card of *old* that is asked for without an
    address keeps the one that it has. Raises ``InvalidField`` or ``Conflict`` naming the field."""
    before = {card["mac"]: card for card in old}
    for at, card in enumerate(cards):
        kept = before.get(card["mac"], {})
        if "address" not in card and "address" in kept and _plug(host, card) == _plug(host, kept):
            card["address"] = kept["address"]
        if card.get("address") is None:
            card.pop("address", None)
        elif card != kept:
            fit(host, card, f"networks[{at}].address")
            _alone(host, cards, at, document)


def fit(host: LocalHost, card: Fields, field: str) -> None:
    """Check that the address can be one on the card's network, and write it in normal form."""
    try:
        given = IPv4Interface(card["address"])
    except ValueError:
        raise InvalidField(field, "must be an IPv4 address such as 192.168.100.7", card["address"]) from None
    network = managed(host, card)
    if network is None:
        if given.ip.is_multicast or given.ip.is_loopback or given.ip.is_unspecified:
            raise InvalidField(field, "must be an address that a guest can have", card["address"])
        card["address"] = str(given) if "/" in card["address"] else str(given.ip)
        return
    net = IPv4Network(network.want["cidr"])
    first, last = net.network_address + 2, net.broadcast_address - 1
    if not first <= given.ip <= last or ("/" in card["address"] and given.network != net):
        raise InvalidField(field, f"must lie in {first} to {last} on network {network.name!r} ({net}); the address "
                                  "before is the host's", card["address"])
    card["address"] = str(given.ip)


def _alone(host: LocalHost, cards: list[Fields], at: int, document: Document | None) -> None:
    """Raise when another card has the address, or another server's guest holds a lease of it."""
    card, field = cards[at], f"networks[{at}].address"
    plug, address = _plug(host, card), bare(card)
    if any(bare(one) == address and _plug(host, one) == plug for one in cards[:at]):
        raise InvalidField(field, "must differ from the other NICs'", card["address"])

    def others(name: str, key: str) -> list[Document]:
        found = host.documents.having("server", name, key)
        return [one for one in found if document is None or one.id != document.id]

    for other in others("address", str(address)):
        if any(bare(nic) == address and _plug(host, nic) == plug for nic in other.want["networks"]):
            raise Conflict(f"{field}: {address} belongs to server {other.name!r}. Choose another address.",
                           field=field, uuids=[other.id])
    if managed(host, card) is None:
        return
    leased = {lease.mac for lease in host.hypervisor.leases(plug[1]) if lease.address == address} - {card["mac"]}
    for other in (one for mac in leased for one in others("mac", mac)):
        raise Conflict(f"{field}: DHCP has given {address} to server {other.name!r}. Choose another address, or let "
                       "the network's DHCP range leave it out.", field=field, uuids=[other.id])


def given(server: Document) -> list[str]:
    """The addresses that a server's cards were given, without prefixes."""
    return [address for nic in server.want["networks"] if (address := bare(nic))]


def bare(card: Fields) -> str | None:
    """The address of a card without a prefix."""
    found = card.get("address")
    return None if found is None else str(found).partition("/")[0]


def managed(host: LocalHost, card: Fields) -> Document | None:
    """The network that the agent makes into which the card is plugged."""
    network = host.documents.find("network", card["network"]) if card.get("network") else None
    return None if network is None or network.want["mode"] == "bridge" else network


def _plug(host: LocalHost, card: Fields) -> Plug:
    network = host.documents.find("network", card["network"]) if card.get("network") else None
    if network is not None and network.want["mode"] != "bridge":
        return "network", network.name
    if network is not None:
        return "bridge", str(network.want["bridge"])
    return ("bridge", card["bridge"]) if card.get("bridge") else ("network", str(card.get("network")))


# What the guest is told --------------------------------------------------------------------------------------------
def told(host: LocalHost, card: Fields) -> Address | None:
    """The card's address for the config drive."""
    network = managed(host, card)
    if card.get("address") is None:
        return None
    if network is None:
        _address, _slash, prefix = card["address"].partition("/")
        return Address(str(bare(card)), int(prefix) if prefix else None, dhcp=not prefix)
    net = IPv4Network(network.want["cidr"])
    gateway = str(net.network_address + 1)
    return Address(card["address"], net.prefixlen, bool(network.want["dhcp"]),
                   gateway if network.want["mode"] == "nat" else None, gateway)


# Plans --------------------------------------------------------------------------------------------------------------
def verbs(want: Fields, have: Fields) -> tuple[str, ...]:
    """``reserve`` when DHCP was told something else than what is wanted."""
    return ("reserve",) if wanted(want["networks"]) != have.get(RESERVED, []) else ()


def without(networks: Iterable[Fields]) -> list[Fields]:
    """The NICs without their addresses, which are no matter of QEMU's."""
    return [{name: value for name, value in nic.items() if name != "address"} for nic in networks]


# DHCP ---------------------------------------------------------------------------------------------------------------
def wanted(networks: Iterable[Fields]) -> list[list[Any]]:
    """What is to stand in ``state["reserved"]``."""
    return [[nic["mac"], nic["network"], nic["address"]] for nic in networks
            if nic.get("network") and nic.get("address")]


def told_of(server: Document) -> list[list[Any]]:
    """What DHCP was told for the server, or may have been before a crash."""
    noted: list[list[Any]] = server.state.get(RESERVED, [])
    return noted + [one for one in wanted(server.want["networks"]) if one not in noted]


def hosts(host: LocalHost, network: Document) -> tuple[tuple[str, str], ...]:
    """MAC and address of all that DHCP of *network* is to know, for when the network is made."""
    found = {(nic["mac"], nic["address"]) for server in host.documents.peek("server") if not server.deleting
             for nic in server.want["networks"]
             if nic.get("address") and nic.get("network") in (network.name, network.id)}
    return tuple(sorted(found, key=lambda host: IPv4Address(host[1])))


def reserve(task: Task) -> None:
    """Have DHCP answer the server's cards as they are wanted now, and no others of it."""
    host, document = task.host, task.document
    now, before = wanted(document.want["networks"]), document.state.get(RESERVED, [])
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
    """Take back all that DHCP was told for the server."""
    for mac, network, _address in told_of(task.document):
        _each(task.host, network, lambda name, mac=mac: task.host.hypervisor.release(name, mac))


def _each(host: LocalHost, network: str, act: Any) -> None:
    """Call *act* with libvirt's name of a network whose DHCP is ours; others are somebody else's."""
    found = managed(host, {"network": network})
    if found is not None and found.want["dhcp"]:
        act(found.name)
