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
    """A subnet, as the engine must have it. *routes*: (destination, next hop). *dhcp*: whether the engine answers DHCP.
    *mode*: how guests get their IPv6 addresses: slaac, dhcpv6-stateful or dhcpv6-stateless."""

    id: str
    cidr: str
    gateway: str | None
    dhcp: bool = True
    dns: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    mode: str | None = None


@dataclass(frozen=True)
class LogicalNetwork:
    """A network, as the engine must have it. *domain*: the DNS domain of its ports, without the trailing dot.
    *physical*: the hosts' name of the physical network that carries it; ``None``: it is tunnelled between hosts.
    *vlan*: its VLAN tag on the physical network."""

    id: str
    name: str
    mtu: int
    subnets: tuple[LogicalSubnet, ...] = ()
    physical: str | None = None
    vlan: int | None = None
    domain: str = ""


@dataclass(frozen=True)
class LogicalLimit:
    """A limit on what a port sends (egress) or receives (ingress). *kbps*: kbit/s. *burst*: kbit in one burst; 0 is the
    engine's default."""

    direction: str
    kbps: int
    burst: int = 0


class LogicalFunction(NamedTuple):
    """A virtual function of a SmartNIC: the MAC of its physical function, the function's number, and the MTU of its
    representor."""

    parent_mac: str
    number: int
    mtu: int


@dataclass(frozen=True)
class LogicalPort:
    """A port, as the engine must have it. *addresses*: (subnet, address). *pairs*: further (MAC, address or network)
    that the port may send from. *groups* count only with *secure* (port security). *hosts*: where the port may be.
    *arriving*: the port is silent on the second host until its guest announces itself there. *router*: the router whose
    interface the port is. *dscp*: the mark of the packets that the port sends. *names*: the port's names in the DNS of
    the network; a reverse query returns the last one. *parent*: the port whose guest has this port as a VLAN device
    with the tag *vlan*.

    On a SmartNIC: *card* is the serial number of the SmartNIC whose chassis has the port, instead of hosts. *hosts* is
    ``None`` while the chassis is not known: the port stays where it is. *function*: the virtual function that the
    chassis plugs in for the port, unless the port is a subport.
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
    """A rule of a security group, as Neutron has it. *least* and *most* are ports, or ICMP type and code; ``None``
    matches any. *remote_addresses*: the id of a ``LogicalAddresses``."""

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
    """A security group, as the engine must have it. A port passes a packet only if a rule of one of its groups allows
    the packet."""

    id: str
    stateful: bool = True
    rules: tuple[LogicalRule, ...] = ()


@dataclass(frozen=True)
class LogicalAddresses:
    """An address group: the addresses and networks that a rule of a security group can refer to."""

    id: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogicalInterface:
    """An interface of a router, to the port *port_id*. *networks*: its addresses with prefix lengths. *gateway*:
    whether it is the router's gateway to an external network. *advertises*: the IPv6 address mode that its router
    advertisements announce together with *mtu*; ``None``: it sends none."""

    port_id: str
    mac: str
    networks: tuple[str, ...]
    gateway: bool = False
    advertises: str | None = None
    mtu: int | None = None


@dataclass(frozen=True)
class LogicalTranslation:
    """A translation of addresses (NAT). *kind*: snat (packets of the network *inside* leave with the address *outside*)
    or floating (the address *inside* of the port *port_id* is reachable as *outside*; the port's host answers ARP
    requests for *outside* with *mac*)."""

    id: str
    kind: str
    outside: str
    inside: str
    port_id: str | None = None
    mac: str | None = None


@dataclass(frozen=True)
class LogicalForwarding:
    """Port forwardings of the floating IP *id*, which has the address *outside*, for one *protocol* (tcp, udp, sctp).
    *targets*: (external port, internal address, internal port)."""

    id: str
    protocol: str
    outside: str
    targets: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True)
class LogicalRouter:
    """A router, as the engine must have it. *routes*: (destination, next hop). *chassis*: hosts that may have the
    gateway, in the order of preference."""

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
    """Return the key of a unit, such as ``port/UUID``."""
    return f"{KINDS[type(unit)]}/{unit.id}"


@dataclass(frozen=True)
class Wanted:
    """The units that the engine must have. *units*: key, such as ``port/UUID``, to unit. *scope*: the keys that a
    repair covers: if *units* has no unit for such a key, the engine's unit is removed. ``None``: all keys."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    scope: frozenset[str] | None = None


class EngineDifference(NamedTuple):
    """A difference between the engine's content and the network service's rows. *unit*: the key of the unit, such as
    ``port/UUID``. *text*: the difference in words."""

    unit: str
    text: str


class Incomplete(Exception):
    """The error that the engine lacks an object which a unit belongs to, such as the network of a port. The caller must
    then write all units."""


class NetworkEngine(Protocol):
    """An engine of networks. Every call raises ``Unavailable`` when the engine does not answer."""

    @property
    def knows_cards(self) -> bool:
        """Return whether the engine can find the chassis of SmartNICs."""

    def claim(self) -> None:
        """Request the right to write. Of all processes that request it, one has it at a time; see ``leads``."""

    def leads(self) -> bool:
        """Return whether this process has the right to write."""

    def knows_all(self) -> bool:
        """Return whether this process is the last one that wrote all units to the engine. False after the engine's
        content was lost."""

    def has(self, key: str) -> bool:
        """Return whether the engine has the network or security group *key* (``network/UUID``, ``group/UUID``), even an
        outdated one."""

    def repair(self, desired: Wanted) -> int:
        """Make the engine's content match *desired*, in one transaction. Returns the number of the change, for
        ``reached``. Raises ``Incomplete``. Ports that ``unplaced`` returns stay on their chassis."""

    def unplaced(self, desired: Wanted) -> frozenset[str]:
        """Return the keys (``port/UUID``) of the ports of *desired* on SmartNICs whose chassis the engine does not know
        yet. The caller must call ``repair`` for these ports again later. Does not wait."""

    def differences(self, desired: Wanted) -> list[EngineDifference]:
        """Return the differences that ``repair`` would remove; empty if the engine's content matches *desired*."""

    def faults(self) -> list[str]:
        """Return what is wrong with the engine itself, such as lost members of its cluster. Raises no error."""

    def reached(self, number: int, seconds: float) -> bool:
        """Wait at most *seconds* until all hosts have applied the engine's change *number*. Return whether they
        have."""

    def chassis_of(self, card: str) -> str | None:
        """Return the name of the chassis on the SmartNIC with the serial number *card*; ``None`` when there is none.
        Waits until the chassis are known."""

    def close(self) -> None:
        """Close the connection, and give up the right to write."""
