# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` about networks: libvirt's own, their leases, those that the host is on."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Nic:
    """A network card of a domain; exactly one of *network* (libvirt's name), *bridge* and *device* (the address of the
    device of the host that it is, which libvirt takes from the host's driver when *managed*; *vlan*: its tag) is set.
    *vnic_type*: how the guest has the device (``core.hardware.pci.VNIC_TYPES``); ``None`` without one. *netdev*: what
    the host calls the virtual function's network device (macvtap), or the character device of its vDPA device.
    *place*: bus and address, where libvirt has said them. *tap*: the name of the host's end. *port*: *bridge* is Open
    vSwitch's, and this the interface id by which OVN knows the NIC. *mtu*: that of tap and card; 0 for the bridge's.
    *checksums*: whether the guest may leave them, and segmentation, to the card. *queues*, *packed* (rings),
    *iommu* and *bandwidth* (see ``hardware.limits``) follow from the server's hardware; they are not seen."""

    mac: str
    model: str = "virtio"
    network: str | None = None
    bridge: str | None = None
    tag: str | None = None
    place: tuple[str, str] | None = field(default=None, compare=False)
    tap: str | None = field(default=None, compare=False)
    queues: int = field(default=1, compare=False)
    packed: bool = field(default=False, compare=False)
    iommu: bool = field(default=False, compare=False)
    bandwidth: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    port: str | None = None
    mtu: int = field(default=0, compare=False)
    checksums: bool = field(default=True, compare=False)
    device: str | None = None
    managed: bool = field(default=True, compare=False)
    vlan: int | None = None
    vnic_type: str | None = None
    netdev: str | None = field(default=None, compare=False)

    @property
    def alias(self) -> str:
        """The alias by which libvirt keeps what its XML does not say of a NIC that is a device: MAC and address."""
        return f"ua-nic-{self.mac}-{self.device}".replace(":", "-").replace(".", "-")


@dataclass(frozen=True)
class RepresentorPort:
    """What a representor of a virtual function is in Open vSwitch: at which *bridge*, and for OVN the *port* with a
    *mac* that a *server* has."""

    bridge: str
    port: str
    mac: str
    server: str


@dataclass(frozen=True)
class NetworkSpec:
    """A libvirt network that the agent makes. *mode* is nat or isolated; *hosts*: MACs with their addresses."""

    uuid: str
    name: str
    mode: str
    bridge: str
    address: str
    prefix: int
    dhcp_start: str | None = None
    dhcp_end: str | None = None
    domain: str | None = None
    mtu: int = 0
    hosts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class NetworkSeen:
    """A libvirt network as it is. *owned*: it carries Magnetar's metadata. *cidrs*: IPv4 networks whose addresses it
    gives."""

    uuid: str
    name: str
    active: bool
    autostart: bool
    bridge: str | None
    owned: bool = False
    cidrs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A DHCP lease of a libvirt network."""

    mac: str
    address: str
    version: int
    hostname: str | None = None


@dataclass(frozen=True)
class Tap:
    """The host's end of a NIC of a running server: *device* and its *index* in the kernel, which is never used again,
    on a bridge with its own. *switched*: Open vSwitch has it, whose bridges the kernel does not know as such; the
    tap's own index stands for its bridge's then."""

    server: str
    mac: str
    device: str
    index: int
    bridge: str
    bridge_index: int
    switched: bool = False


@dataclass(frozen=True)
class IntegrationBridge:
    """The bridge of Open vSwitch to which ports of OVN are plugged in. *datapath*: ``system`` (the kernel's), or
    ``netdev`` (ovs-vswitchd forwards itself, and passes checksums on that a guest has left to its card). *chassis*: the
    host's name in OVN. *reason*: why ports cannot be plugged in, and what to do; "": they can."""

    name: str
    datapath: str = ""
    chassis: str = ""
    reason: str = ""

    @property
    def checksums(self) -> bool:
        """Whether guests may leave checksums and segmentation to their cards; not where nobody knows the datapath."""
        return self.datapath == "system"


@dataclass(frozen=True)
class Port:
    """What may come from a guest's NIC, whose host's end is *tap*: frames from *mac*, and of each family those from
    *ipv4* and *ipv6* (addresses and networks; ``None``: from all, as nobody knows which are its own).

    *dhcp*: IPv4 addresses that the host's DHCP gives it, too. *not_from*: addresses of the host that are never a
    guest's. Without *secure* anything may come. *switched*: Open vSwitch has the tap, and OVN says what may come; the
    host's own network stack takes nothing from it. *groups*: ids of the security groups that say what it sends and
    hears, sorted; ``None``: it has none, and sends and hears all. *resolver*: where the host answers its DNS."""

    tap: str
    mac: str
    ipv4: tuple[str, ...] | None = ()
    ipv6: tuple[str, ...] | None = ()
    dhcp: bool = False
    not_from: tuple[str, ...] = ()
    secure: bool = True
    switched: bool = False
    groups: tuple[str, ...] | None = None
    resolver: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those and networks of both families that are known to be its own."""
        return (*(self.ipv4 or ()), *(self.ipv6 or ()))


@dataclass(frozen=True)
class GroupRule:
    """What a port may hear (ingress) or send (egress), of IP *version* 4 or 6. *protocol*: its number. *least*, *most*:
    ports of the end where the connection goes to, or type and code of ICMP. From or to addresses of the network
    *prefix*, or of ports that have the security group *group*. ``None`` is any."""

    direction: str
    version: int
    protocol: int | None = None
    least: int | None = None
    most: int | None = None
    prefix: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class PortGroup:
    """A security group, with the addresses of the ports that have it: *members*."""

    id: str
    rules: tuple[GroupRule, ...] = ()
    members: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PortFilter:
    """What an agent has its host filter: its *ports*, whose taps alone have names that begin with *prefix*; no others
    of that prefix may send. *bridges*: those of networks that the agent makes. *open_ports*: what guests reach of the
    host besides DHCP, DNS and the metadata service, such as ``tcp/3142``. *groups*: security groups that ports have, or
    that rules of these name. *metadata*: how the devices of the metadata service begin."""

    prefix: str
    ports: frozenset[Port] = frozenset()
    bridges: frozenset[str] = frozenset()
    open_ports: tuple[str, ...] = ()
    groups: frozenset[PortGroup] = frozenset()
    metadata: str = ""


def tap_prefix(state_dir: Path) -> str:
    """How the taps of the agent that works in *state_dir* begin: a machine may have several agents."""
    return f"mt{_letters(str(state_dir), 4)}"


def tap_name(state_dir: Path, server: str, mac: str) -> str:
    """The tap of a server's NIC: known before there is one, and the same at each start; 15 characters, as Linux takes
    no more."""
    return tap_prefix(state_dir) + _letters(f"{server} {mac}", 9)


def _letters(text: str, count: int) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:count]


class HypervisorNetworks(Protocol):
    """See the head of this file."""

    def bridges(self) -> frozenset[str]:
        """Names of the bridges of the host."""

    def integration_bridge(self, name: str) -> IntegrationBridge:
        """The bridge of that name as Open vSwitch has it, and whether ovn-controller looks after it; never raises."""

    def filter_switch(self, bridge: str) -> None:
        """Have that bridge drop router advertisements that OVN has marked, from now on, also when Open vSwitch or
        ovn-controller has begun anew. Returns at once."""

    def switch_unfiltered(self) -> str:
        """Why they are not dropped; "": they are, or nobody has asked for it."""

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        """Set virtual function *number* of the network device *card*, in the words of ip-link(8): ``trust``,
        ``max_tx_rate``, ``min_tx_rate`` (Mbit/s, 0 for none). Raises ``HypervisorError`` where its driver cannot."""

    def plug_representor(self, netdev: str, wanted: RepresentorPort | None) -> None:
        """Have Open vSwitch have the network device as *wanted*; ``None``: not at all. Raises ``HypervisorError``."""

    def routes(self) -> Sequence[tuple[str, IPv4Network]]:
        """Device ("" without one) and network of the host's IPv4 routes, the default ones excepted, and of its
        addresses."""

    def networks(self) -> dict[str, NetworkSeen]:
        """All libvirt networks by name."""

    def make_network(self, spec: NetworkSpec) -> None:
        """Define, autostart and start. ``Conflict`` when the name is taken by one that is not ours."""

    def remove_network(self, name: str) -> None:
        """Stop and undefine a network of ours. Not ours: ``Conflict``. Gone: fine."""

    def reserve(self, network: str, mac: str, address: str) -> None:
        """Have DHCP of a network of ours give *mac* this address, which nobody else gets. Network gone: fine."""

    def release(self, network: str, mac: str) -> None:
        """Undo ``reserve``, and end the lease of *mac*; fine when there is none."""

    def leases(self, network: str) -> list[Lease]:
        """DHCP leases of a libvirt network, newest last."""

    def taps(self, uuid: str | None = None) -> list[Tap]:
        """The taps of a domain of ours, or of all; none of what does not run."""

    def filter_ports(self, wanted: PortFilter, before: PortFilter | None = None) -> None:
        """Have the kernel filter as *wanted*, all at once; without ports and bridges nothing is left of it. *before*:
        what is loaded, so that only what differs has to be told. What DHCP gave is kept."""

    def filters_ports(self, prefix: str) -> bool:
        """Whether the filter of that prefix is there: a reload of the host's own firewall may have flushed it."""

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        """Call *listener*, from a thread of its own, when filters may have been removed, until ``close``."""

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        """Tell the filter of addresses (tap, address) that DHCP gave before it was loaded."""
