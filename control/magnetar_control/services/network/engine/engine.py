# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of engines. An engine gives hosts the networks that the rows of the network service describe.

The rows are authoritative. ``wanted.py`` turns them into *units*: a network, port, group or router with everything that
belongs to it. An engine compares its content with the units, and repairs the difference. It does not change or remove
the content that others have created.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class LogicalSubnet:
    """The desired state of a subnet in the network engine (OVN). *routes*: (destination, next hop). *dhcp*: whether the
    engine answers DHCP. *mode*: how guests get their IPv6 addresses: slaac, dhcpv6-stateful or dhcpv6-stateless."""

    id: str
    cidr: str
    gateway: str | None
    dhcp: bool = True
    dns: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    mode: str | None = None


@dataclass(frozen=True)
class LogicalNetwork:
    """The desired state of a network in the network engine (OVN). *domain*: the DNS domain of its ports, without the
    trailing dot. *physical*: the name of its physical network (a provider network); ``None``: its packets are tunnelled
    between hosts. *vlan*: its VLAN tag on the physical network."""

    id: str
    name: str
    mtu: int
    subnets: tuple[LogicalSubnet, ...] = ()
    physical: str | None = None
    vlan: int | None = None
    domain: str = ""


@dataclass(frozen=True)
class LogicalLimit:
    """A bandwidth limit of a port: for packets that the port sends (egress) or receives (ingress). *kbps*: kbit/s.
    *burst*: kbit in one burst; 0 is the engine's default."""

    direction: str
    kbps: int
    burst: int = 0


class LogicalFunction(NamedTuple):
    """A virtual function of a SmartNIC. *parent_mac*: the MAC of its physical function. *number*: the number of the
    virtual function. *mtu*: the MTU of its representor."""

    parent_mac: str
    number: int
    mtu: int


@dataclass(frozen=True)
class LogicalPort:
    """The desired state of a port in the network engine (OVN). *addresses*: (subnet, address). *pairs*: the allowed
    address pairs: (MAC, address or network). *groups*: its security groups, used only with *secure* (port security).
    *hosts*: the port's host and, while its server moves, the next host. *arriving*: whether the port is silent on the
    next host until the guest announces itself there. *router*: the router that has this port as an interface. *dscp*:
    the DSCP mark of the packets that the port sends. *names*: the port's names in the DNS of the network; a reverse
    query returns the last one. *parent*: the parent port, if this is a subport of a trunk with the VLAN tag *vlan*.

    Only on a SmartNIC: *card* is the serial number of the SmartNIC, whose chassis has the port. *hosts* is ``None``
    while the chassis is not known: the port stays where it is. *function*: the virtual function that the chassis plugs
    in for the port; ``None`` for a subport.
    """

    id: str
    network_id: str
    mac: str
    addresses: tuple[tuple[str, str], ...] = ()
    enabled: bool = True
    secure: bool = True
    pairs: tuple[tuple[str, str], ...] = ()
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = ()
    arriving: bool = False
    router: str | None = None
    limits: tuple[LogicalLimit, ...] = ()
    dscp: int | None = None
    names: tuple[str, ...] = ()
    parent: str | None = None
    vlan: int | None = None
    card: str = ""
    function: LogicalFunction | None = None


@dataclass(frozen=True)
class LogicalRule:
    """The desired state of a security group rule in the network engine (OVN), with Neutron's values. *least* and
    *most*: the range of ports, or ICMP type and code; ``None`` matches any. *remote_addresses*: the id of a
    ``LogicalAddresses``."""

    id: str
    direction: str
    ethertype: str
    protocol: str | None = None
    least: int | None = None
    most: int | None = None
    prefix: str | None = None
    remote_group: str | None = None
    remote_addresses: str | None = None


@dataclass(frozen=True)
class LogicalGroup:
    """The desired state of a security group in the network engine (OVN). A port with security groups passes a packet
    only if a rule of one of these groups allows it."""

    id: str
    stateful: bool = True
    rules: tuple[LogicalRule, ...] = ()


@dataclass(frozen=True)
class LogicalAddresses:
    """The desired state of an address group in the network engine (OVN): addresses and networks, for use in rules of
    security groups."""

    id: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogicalInterface:
    """The desired state of a router's interface in the network engine (OVN). *port_id*: its port. *networks*: its
    addresses with prefix lengths. *gateway*: whether the interface is the router's gateway to an external network.
    *advertises*: the IPv6 address mode in the router advertisements of the interface, which also announce *mtu*;
    ``None``: it sends no advertisements."""

    port_id: str
    mac: str
    networks: tuple[str, ...]
    gateway: bool = False
    advertises: str | None = None
    mtu: int | None = None


@dataclass(frozen=True)
class LogicalTranslation:
    """The desired state of an address translation (NAT) in the network engine (OVN). *kind*: snat or floating. snat:
    packets from the network *inside* leave with the source address *outside*. floating: the fixed address *inside* of
    the port *port_id* is reachable as *outside*, and the port's host answers ARP requests for *outside* with *mac*."""

    id: str
    kind: str
    outside: str
    inside: str
    port_id: str | None = None
    mac: str | None = None


@dataclass(frozen=True)
class LogicalForwarding:
    """The desired state of the port forwardings of a floating IP for one *protocol* (tcp, udp, sctp) in the network
    engine (OVN). *id*, *outside*: the floating IP and its address. *targets*: (external port, internal address,
    internal port)."""

    id: str
    protocol: str
    outside: str
    targets: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True)
class LogicalRouter:
    """The desired state of a router in the network engine (OVN). *routes*: (destination, next hop). *chassis*: hosts
    that may have the gateway, in the order of preference."""

    id: str
    name: str
    enabled: bool = True
    interfaces: tuple[LogicalInterface, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    translations: tuple[LogicalTranslation, ...] = ()
    chassis: tuple[str, ...] = ()
    forwardings: tuple[LogicalForwarding, ...] = ()


Unit = LogicalNetwork | LogicalPort | LogicalGroup | LogicalRouter | LogicalAddresses
#: The prefix of unit keys, by kind: ``port/UUID``.
KINDS: dict[type, str] = {LogicalNetwork: "network", LogicalPort: "port", LogicalGroup: "group",
                          LogicalRouter: "router", LogicalAddresses: "addresses"}


def unit_key(unit: Unit) -> str:
    """Return the key of a unit (an object that the engine must have): its type and uuid, such as ``port/UUID``."""
    return f"{KINDS[type(unit)]}/{unit.id}"


@dataclass(frozen=True)
class DesiredContent:
    """The desired content of the network engine (OVN), or of a part of it. *units*: {key, such as ``port/UUID``:
    desired object}. *scope*: the keys of the objects to compare and write; an object of the engine is removed if its
    key is in *scope* but not in *units*. ``None``: all objects."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    scope: frozenset[str] | None = None


class EngineDifference(NamedTuple):
    """A difference between the content of the network engine (OVN) and the database. *unit*: the key of the object,
    such as ``port/UUID``. *text*: the difference in words."""

    unit: str
    text: str


class Incomplete(Exception):
    """The error that an object cannot be written to the engine, because the engine lacks another object that the first
    one needs, such as the network of a port. The caller must then write all objects."""


class NetworkEngine(Protocol):
    """The interface of network engines, such as OVN: backends that make networks which connect hosts. Every method may
    raise ``Unavailable`` when the engine does not answer."""

    @property
    def knows_cards(self) -> bool:
        """Return whether the engine supports ports on SmartNICs: it can find the chassis (host in OVN) on a SmartNIC.
        """

    def claim(self) -> None:
        """Request the right to write to the engine. Several processes may request it, but only one has it at a time;
        see ``leads``."""

    def leads(self) -> bool:
        """Return whether this process now has the right to write to the engine."""

    def knows_all(self) -> bool:
        """Return whether this process was the last to write the complete desired content to the engine. False after the
        engine has lost its content."""

    def has(self, key: str) -> bool:
        """Return whether the network or security group *key* (``network/UUID`` or ``group/UUID``) exists in the engine.
        Return true even if its values in the engine are out of date."""

    def repair(self, desired: DesiredContent) -> int:
        """Make the engine's content match *desired*, in one transaction: create and change objects, and remove other
        objects in the scope of *desired*. Return the number that the engine gives to this change, for ``reached``.
        Raises ``Incomplete``. A port that ``unplaced`` returns stays on its chassis."""

    def unplaced(self, desired: DesiredContent) -> frozenset[str]:
        """Return the keys (``port/UUID``) of those ports in *desired* that are on a SmartNIC whose chassis the engine
        does not know yet. The caller must call ``repair`` for these ports again later. Does not wait."""

    def differences(self, desired: DesiredContent) -> list[EngineDifference]:
        """Return the differences between *desired* and the engine's content that ``repair`` would correct; an empty
        list if there are none."""

    def faults(self) -> list[str]:
        """Return descriptions of faults of the engine itself, such as lost members of its cluster. An engine that does
        not answer raises no error here."""

    def reached(self, number: int, seconds: float) -> bool:
        """Wait at most *seconds* until all hosts have applied the change *number*, which ``repair`` has returned.
        Return whether all of them have applied the change."""

    def chassis_of(self, card: str) -> str | None:
        """Return the name of the chassis (host in OVN) that is on the SmartNIC with the serial number *card*; ``None``
        when no chassis reports this number. If the engine has not read the list of chassis yet, wait for the list."""

    def close(self) -> None:
        """Close the connection to the engine. Another process can then get the right to write."""
