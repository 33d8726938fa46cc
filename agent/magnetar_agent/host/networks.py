# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` for networks: libvirt's networks and their leases, and the networks of the host."""

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
    """A network card of a domain. Exactly one of *network* (libvirt's name), *bridge* and *device* is set.

    *device*: the address of a device of the host, which libvirt takes from the host's driver when *managed*; *vlan*:
    the tag of the device's VLAN. *vnic_type*: how the guest gets the device (``core.hardware.pci.VNIC_TYPES``);
    ``None`` without a device. *netdev*: the host's name of the virtual function's network device (macvtap), or of the
    character device of its vDPA device.

    *place*: bus and address, once libvirt has assigned them. *tap*: the name of the tap on the host. *port*: set when
    *bridge* is Open vSwitch's: the NIC's interface id in OVN. *mtu*: of tap and card; 0 for the bridge's. *checksums*:
    whether the guest may leave checksums and segmentation to the card.

    *queues*, *packed* (rings), *iommu* and *bandwidth* (see ``hardware.limits``) follow from the server's hardware;
    they are not read back from the domain.
    """

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
        """Return the alias of a NIC that is a device of the host. It contains the MAC and the device's address, since
        libvirt's XML of such a device has no other field for these."""
        return f"ua-nic-{self.mac}-{self.device}".replace(":", "-").replace(".", "-")


@dataclass(frozen=True)
class RepresentorPort:
    """The port of a virtual function's representor in Open vSwitch: on the integration *bridge*, with OVN's *port* id,
    the *mac* and the *server* of the NIC."""

    bridge: str
    port: str
    mac: str
    server: str


@dataclass(frozen=True)
class NetworkSpec:
    """The desired state of a libvirt network. *mode* is nat or isolated; *hosts*: pairs of MAC and its reserved
    address."""

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
    """The observed state of a libvirt network. *owned*: it has Magnetar's metadata. *cidrs*: the IPv4 networks that its
    DHCP serves."""

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
    """The tap on the host of a NIC of a running server.

    *index* is the kernel's number of *device*, which is never used again. *switched*: the tap is in Open vSwitch, whose
    bridges are not bridges of the kernel; *bridge_index* is then the tap's own index."""

    server: str
    mac: str
    device: str
    index: int
    bridge: str
    bridge_index: int
    switched: bool = False


@dataclass(frozen=True)
class IntegrationBridge:
    """The bridge of Open vSwitch that ports of OVN are plugged into.

    *datapath*: ``system`` (the kernel's), or ``netdev`` (ovs-vswitchd forwards packets itself, and does not fill in
    checksums that a guest has left to its card). *chassis*: the host's name in OVN. *reason*: why ports cannot be
    plugged in, and what to do; "" if they can."""

    name: str
    datapath: str = ""
    chassis: str = ""
    reason: str = ""

    @property
    def checksums(self) -> bool:
        """Return whether guests may leave checksums and segmentation to their cards; ``False`` if the datapath is
        unknown."""
        return self.datapath == "system"


@dataclass(frozen=True)
class Port:
    """The rules for the frames of a guest's NIC, whose device on the host is *tap*.

    The guest may send frames with the source *mac*, and with source addresses in *ipv4* and *ipv6* (addresses and
    networks; ``None``: any, as the NIC's addresses are unknown). *dhcp*: IPv4 addresses that the host's DHCP gives the
    NIC are permitted too. *not_from*: addresses of the host that a guest must never use. Without *secure*, all frames
    pass.

    *switched*: the tap is in Open vSwitch, and OVN filters; the host's own network stack accepts nothing from the tap.
    *groups*: sorted ids of the security groups that limit what the NIC sends and receives; ``None``: no limit.
    *resolver*: the host's address that answers the guest's DNS requests."""

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
        """Return the known addresses and networks of the NIC, of both families."""
        return (*(self.ipv4 or ()), *(self.ipv6 or ()))


@dataclass(frozen=True)
class GroupRule:
    """A rule of a security group: traffic that a port may receive (ingress) or send (egress), of IP *version* 4 or 6.

    *protocol*: its number. *least*, *most*: the range of destination ports, or type and code of ICMP. The other end has
    an address in the network *prefix*, or is a port with the security group *group*. ``None`` is any."""

    direction: str
    version: int
    protocol: int | None = None
    least: int | None = None
    most: int | None = None
    prefix: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class PortGroup:
    """A security group, with the addresses of its ports: *members*."""

    id: str
    rules: tuple[GroupRule, ...] = ()
    members: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PortFilter:
    """The complete filter that an agent loads into its host's kernel.

    Of all taps whose names begin with *prefix*, only those of *ports* may send. *bridges*: bridges of networks that the
    agent created. *open_ports*: services of the host that guests reach, in addition to DHCP, DNS and the metadata
    service, such as ``tcp/3142``. *groups*: the security groups of the ports, and groups that their rules name.
    *metadata*: the prefix of the names of the metadata service's devices.
    """

    prefix: str
    ports: frozenset[Port] = frozenset()
    bridges: frozenset[str] = frozenset()
    open_ports: tuple[str, ...] = ()
    groups: frozenset[PortGroup] = frozenset()
    metadata: str = ""


def tap_prefix(state_dir: Path) -> str:
    """Return the prefix of the names of an agent's taps, derived from *state_dir*: a machine may have several
    agents."""
    return f"mt{_letters(str(state_dir), 4)}"


def tap_name(state_dir: Path, server: str, mac: str) -> str:
    """Return the name of the tap of the NIC *mac* of a *server* (uuid). It is computed from its arguments, so it is
    known before the tap exists and never changes. It has 15 characters, the limit of Linux."""
    return tap_prefix(state_dir) + _letters(f"{server} {mac}", 9)


def _letters(text: str, count: int) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:count]


class HypervisorNetworks(Protocol):
    """The methods of ``LocalHypervisor`` for networks."""

    def bridges(self) -> frozenset[str]:
        """Return the names of the bridges of the host."""

    def integration_bridge(self, name: str) -> IntegrationBridge:
        """Return the state of the bridge *name* in Open vSwitch, and whether ovn-controller manages it. Never
        raises."""

    def filter_switch(self, bridge: str) -> None:
        """Make *bridge* drop router advertisements that OVN has marked, from now on, also after a restart of Open
        vSwitch or ovn-controller. Return immediately."""

    def switch_unfiltered(self) -> str:
        """Return why marked router advertisements are not dropped; "" if they are, or if ``filter_switch`` was never
        called."""

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        """Set virtual function *number* of the network device *card*. The *settings* have the names of ip-link(8):
        ``trust``, ``max_tx_rate``, ``min_tx_rate`` (Mbit/s, 0 for none). Raises ``HypervisorError`` when the card's
        driver refuses."""

    def plug_representor(self, netdev: str, desired: RepresentorPort | None) -> None:
        """Set the port of the network device *netdev* in Open vSwitch as *desired*; if that is ``None``, remove the
        port. Raises ``HypervisorError`` if this fails."""

    def routes(self) -> Sequence[tuple[str, IPv4Network]]:
        """Return device ("" without one) and destination network of each IPv4 route of the host, in all tables: also of
        routes to its own addresses, but not of default routes."""

    def networks(self) -> dict[str, NetworkSeen]:
        """Return all libvirt networks by name."""

    def make_network(self, spec: NetworkSpec) -> None:
        """Define and start the network of *spec*, and enable its autostart. Raises ``Conflict`` when its name belongs
        to a network that is not Magnetar's."""

    def remove_network(self, name: str) -> None:
        """Stop and undefine a network. Raises ``Conflict`` when it is not Magnetar's. A missing network is no error."""

    def reserve(self, network: str, mac: str, address: str) -> None:
        """Reserve *address* in the DHCP of a network of Magnetar for *mac*. A missing network is no error."""

    def release(self, network: str, mac: str) -> None:
        """Remove the reservation that ``reserve`` made for *mac* in *network*, and end the DHCP lease of *mac*; no
        error when there is none."""

    def leases(self, network: str) -> list[Lease]:
        """Return the DHCP leases of a libvirt network, newest last."""

    def taps(self, uuid: str | None = None) -> list[Tap]:
        """Return the taps of a domain of Magnetar, or of all its domains; none for a domain that does not run."""

    def filter_ports(self, desired: PortFilter, loaded: PortFilter | None = None) -> None:
        """Load the filter *desired* into the kernel, in one step; without ports and bridges, remove the filter.
        *loaded*: the filter that is loaded now, so that only the difference is sent. Addresses learned from DHCP are
        kept.
        """

    def filters_ports(self, prefix: str) -> bool:
        """Return whether the filter with this *prefix* is loaded: a reload of the host's own firewall may have flushed
        it."""

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        """Call *listener*, from a separate thread, whenever filters may have been removed, until ``close``."""

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        """Add to the filter of *prefix* addresses that DHCP gave before the filter was loaded. *leased*: pairs of tap
        and address."""
