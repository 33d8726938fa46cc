# SPDX-License-Identifier: GPL-3.0-or-later
"""What an engine does: it gives hosts the networks that the rows of the network service say.

The rows are the truth. ``wanted.py`` makes *units* of them, each a network, port, group or router with all that
belongs to it; an engine compares units with what it has, and repairs the difference. What others made is left
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(frozen=True)
class LogicalSubnet:
    """*routes*: (destination, next hop). *dhcp*: whether the engine answers DHCP. *mode*: how guests get their
    addresses of IPv6: slaac, dhcpv6-stateful or dhcpv6-stateless."""

    id: str
    cidr: str
    gateway: str | None
    dhcp: bool = True
    dns: tuple[str, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    mode: str | None = None


@dataclass(frozen=True)
class LogicalNetwork:
    """*domain*: of the names of its ports, without the dot at its end. *physical*: the physical network that it is on,
    by the name that hosts have for it, with VLAN tag *vlan*; none for one between hosts only."""

    id: str
    name: str
    mtu: int
    subnets: tuple[LogicalSubnet, ...] = ()
    physical: str | None = None
    vlan: int | None = None
    domain: str = ""


@dataclass(frozen=True)
class LogicalLimit:
    """How much a port sends (egress) or receives (ingress): *kbps*, in kbit/s, and *burst* at once, in kbit; 0 is the
    engine's usual one."""

    direction: str
    kbps: int
    burst: int = 0


class LogicalFunction(NamedTuple):
    """A virtual function of a SmartNIC: the MAC of its physical function, its number there, and the MTU that its
    representor is to have."""

    parent_mac: str
    number: int
    mtu: int


@dataclass(frozen=True)
class LogicalPort:
    """*addresses*: (subnet, address). *pairs*: (MAC, address or network) that it may send from besides. *groups* count
    only with *secure* (port security). *hosts*: where it may be; *arriving*: it is silent at the second of them until
    its guest announces itself there. *router*: the router whose interface it is. *dscp*: the mark of what it sends.
    *names*: by which DNS of the network finds it; the last one, by its addresses. *parent*: the port whose guest has it
    as a VLAN device of the tag *vlan*. *card*: serial number of the SmartNIC whose chassis has it, in place of hosts,
    which are ``None`` while nobody tells that chassis: it stays where it is; *function*: what that plugs in for it,
    where it is no subport."""

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
    """As Neutron has it: *least* and *most* are ports, or type and code of ICMP; ``None`` is any. *remote_addresses*:
    id of a ``LogicalAddresses``."""

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
    """A security group: what its ports may do besides what others of theirs let them. Nothing else passes."""

    id: str
    stateful: bool = True
    rules: tuple[LogicalRule, ...] = ()


@dataclass(frozen=True)
class LogicalAddresses:
    """An address group: addresses and networks that rules name."""

    id: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogicalInterface:
    """A router's side of its port. *networks*: its addresses with prefix lengths. *gateway*: whether the way out is
    here. *advertises*: the mode of which it tells guests in router advertisements, with *mtu*."""

    port_id: str
    mac: str
    networks: tuple[str, ...]
    gateway: bool = False
    advertises: str | None = None
    mtu: int | None = None


@dataclass(frozen=True)
class LogicalTranslation:
    """*kind*: snat (all of the network *inside* leave as *outside*) or floating (the address *inside* of the port
    *port_id* is *outside*, and answers from its host with *mac*)."""

    id: str
    kind: str
    outside: str
    inside: str
    port_id: str | None = None
    mac: str | None = None


@dataclass(frozen=True)
class LogicalForwarding:
    """Ports of a floating IP, *id*: *protocol* (tcp, udp, sctp) to its address *outside* leads on. *targets*: (port
    outside, address inside, port inside)."""

    id: str
    protocol: str
    outside: str
    targets: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True)
class LogicalRouter:
    """*routes*: (destination, next hop). *chassis*: hosts that may have the gateway, the first first."""

    id: str
    name: str
    enabled: bool = True
    interfaces: tuple[LogicalInterface, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()
    translations: tuple[LogicalTranslation, ...] = ()
    chassis: tuple[str, ...] = ()
    forwardings: tuple[LogicalForwarding, ...] = ()


Unit = LogicalNetwork | LogicalPort | LogicalGroup | LogicalRouter | LogicalAddresses
#: Begin of the keys of units, by kind: ``port/UUID``.
KINDS: dict[type, str] = {LogicalNetwork: "network", LogicalPort: "port", LogicalGroup: "group",
                          LogicalRouter: "router", LogicalAddresses: "addresses"}


def key_of(unit: Unit) -> str:
    """``port/UUID`` and the like."""
    return f"{KINDS[type(unit)]}/{unit.id}"


@dataclass(frozen=True)
class Wanted:
    """*units*: those that are to be, by key. *scope*: keys that this is about; one without a unit is to go. ``None``:
    all that there are."""

    units: Mapping[str, Unit] = field(default_factory=dict)
    scope: frozenset[str] | None = None


class EngineDifference(NamedTuple):
    """*unit*: key of the unit; *text*: what differs."""

    unit: str
    text: str


class Incomplete(Exception):
    """The engine lacks what a unit belongs to: everything has to be written."""


class NetworkEngine(Protocol):
    """Every call raises ``Unavailable`` where the engine does not answer."""

    @property
    def knows_cards(self) -> bool:
        """Whether it finds the chassis of SmartNICs."""

    def claim(self) -> None:
        """From now on this process would write. One does at a time, of all that do; see ``leads``."""

    def leads(self) -> bool:
        """Whether this process may write."""

    def knows_all(self) -> bool:
        """Whether this process has written everything to what the engine has now: not to one that was lost since."""

    def has(self, key: str) -> bool:
        """Whether it has a network or security group, of this key, of whatever form."""

    def repair(self, wanted: Wanted) -> int:
        """Make it so, in one transaction. Returns the number of the change, for ``reached``. Raises ``Incomplete``.
        Ports of ``unplaced`` stay on the chassis that they are on."""

    def unplaced(self, wanted: Wanted) -> frozenset[str]:
        """Keys of the ports on SmartNICs of which it cannot find out now which chassis have them: ask for them again
        after the repair. It waits for nobody."""

    def differences(self, wanted: Wanted) -> list[EngineDifference]:
        """What a repair would change."""

    def faults(self) -> list[str]:
        """What is wrong with the engine itself, such as a cluster of it that has lost members. Raises nothing."""

    def reached(self, number: int, seconds: float) -> bool:
        """Wait until all hosts have followed the change of this number; false when they have not after *seconds*."""

    def chassis_of(self, card: str) -> str | None:
        """Name of the chassis on the SmartNIC of a serial number; ``None`` where there is none. It waits for who knows
        that."""

    def close(self) -> None:
        """Give up the connection, and the right to write."""
