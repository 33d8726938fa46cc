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
    """A NIC of a domain. Exactly one of *network* (a libvirt network), *bridge* and *device* is set.

    *device*: the PCI address of a host device that is passed to the guest; *managed*: whether libvirt detaches the
    device from the host's driver; *vlan*: the VLAN tag of the device. *vnic_type*: how the guest gets the device
    (``core.hardware.pci.VNIC_TYPES``); ``None`` without a device. *netdev*: the host's name of the virtual function's
    network device (macvtap), or of the vDPA character device.

    *place*: bus and address in the guest, once libvirt has assigned them. *tap*: the tap device on the host. *port*:
    the interface id in OVN, set if *bridge* is an Open vSwitch bridge. *mtu*: the MTU of the tap and of the guest's
    NIC; 0 for the MTU of the bridge. *checksums*: whether the guest may use checksum and segmentation offload.

    *queues*, *packed* (ring layout), *iommu* and *bandwidth* (see ``hardware.limits``) are computed from the server's
    hardware fields. They are not read back from the domain.
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
        """Return the libvirt alias of a NIC that is a host device. The alias contains the MAC and the PCI address,
        because libvirt's XML of such a device has no other element for them."""
        return f"ua-nic-{self.mac}-{self.device}".replace(":", "-").replace(".", "-")


@dataclass(frozen=True)
class RepresentorPort:
    """The Open vSwitch port of a virtual function's representor. *bridge*: the integration bridge. *port*: the port's
    id in OVN. *mac*: the MAC of the NIC for which the server uses the function. *server*: the uuid of that server."""

    bridge: str
    port: str
    mac: str
    server: str


@dataclass(frozen=True)
class NetworkSpec:
    """The desired state of a libvirt network. *mode*: nat or isolated. *hosts*: the DHCP reservations, pairs of MAC and
    IP address."""

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
    """The observed state of a libvirt network. *owned*: it has Magnetar's metadata, so Magnetar has created it.
    *cidrs*: the IPv4 networks that its DHCP server serves."""

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
    """The tap device of a NIC of a running server.

    *index*: the kernel's interface index of the tap, which is never reused. *bridge_index*: the interface index of
    *bridge*. *switched*: the tap is in Open vSwitch, not in a bridge of the kernel; *bridge_index* is then the
    interface index of the tap.
    """

    server: str
    mac: str
    device: str
    index: int
    bridge: str
    bridge_index: int
    switched: bool = False


@dataclass(frozen=True)
class IntegrationBridge:
    """The Open vSwitch bridge to which ports of OVN are connected.

    *datapath*: ``system`` (the kernel's), or ``netdev`` (ovs-vswitchd forwards packets itself, without support for
    checksum offload). *chassis*: the host's name in OVN. *reason*: why ports cannot be connected, and what to do; "" if
    they can.
    """

    name: str
    datapath: str = ""
    chassis: str = ""
    reason: str = ""

    @property
    def checksums(self) -> bool:
        """Return whether guests may use checksum and segmentation offload on this bridge; ``False`` if the datapath is
        unknown."""
        return self.datapath == "system"


@dataclass(frozen=True)
class Port:
    """The filter rules for a NIC. *tap*: its tap device on the host.

    The guest may send frames with the source *mac* and source addresses in *ipv4* and *ipv6* (addresses and networks;
    ``None``: any, because the NIC's addresses are unknown). *dhcp*: also permit IPv4 addresses that the host's DHCP
    server assigns to the NIC. *not_from*: addresses of the host, never permitted as source. *secure*: if false, all
    frames pass.

    *switched*: the tap is in Open vSwitch, where OVN does the filtering; the host's network stack drops all traffic
    from the tap. *groups*: sorted ids of the security groups that limit the NIC's traffic; ``None``: no limit.
    *resolver*: the address of the host's DNS server for the guest.
    """

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
        """Return the known IPv4 and IPv6 addresses and networks of the NIC."""
        return (*(self.ipv4 or ()), *(self.ipv6 or ()))


@dataclass(frozen=True)
class GroupRule:
    """A rule of a security group: it permits incoming (*direction* ingress) or outgoing (egress) traffic of the IP
    *version* 4 or 6.

    *protocol*: the IP protocol number. *least*, *most*: the range of destination ports, or type and code of ICMP. The
    peer has an address in the network *prefix*, or is a port with the security group *group*. ``None`` means any.
    """

    direction: str
    version: int
    protocol: int | None = None
    least: int | None = None
    most: int | None = None
    prefix: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class PortGroup:
    """A security group. *members*: the IP addresses of its ports."""

    id: str
    rules: tuple[GroupRule, ...] = ()
    members: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PortFilter:
    """The complete packet filter that an agent loads into its host's kernel.

    Tap devices whose names begin with *prefix* may send only if they are in *ports*. *bridges*: bridges of networks
    that the agent created. *open_ports*: services of the host that guests may use, in addition to DHCP, DNS and the
    metadata service, such as ``tcp/3142``. *groups*: the security groups of the ports, and the groups that their rules
    refer to. *metadata*: the name prefix of the metadata service's devices.
    """

    prefix: str
    ports: frozenset[Port] = frozenset()
    bridges: frozenset[str] = frozenset()
    open_ports: tuple[str, ...] = ()
    groups: frozenset[PortGroup] = frozenset()
    metadata: str = ""


def tap_prefix(state_dir: Path) -> str:
    """Return the name prefix of an agent's tap devices. It is derived from *state_dir*, so that several agents on one
    machine have different prefixes."""
    return f"mt{_letters(str(state_dir), 4)}"


def tap_name(state_dir: Path, server: str, mac: str) -> str:
    """Return the name of the tap device for the NIC with the MAC *mac* of the *server* (uuid), on the agent with the
    folder *state_dir*. The name is computed from the arguments, so it is known before the device exists, and never
    changes. It has 15 characters, the limit of Linux."""
    return tap_prefix(state_dir) + _letters(f"{server} {mac}", 9)


def _letters(text: str, count: int) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:count]


class HypervisorNetworks(Protocol):
    """The methods of ``LocalHypervisor`` for networks."""

    def bridges(self) -> frozenset[str]:
        """Return the names of the host's bridges."""

    def integration_bridge(self, name: str) -> IntegrationBridge:
        """Return the state of the Open vSwitch bridge *name*, which ovn-controller should manage. Never raises:
        ``reason`` in the result says why the bridge cannot be used."""

    def filter_switch(self, bridge: str) -> None:
        """Make the Open vSwitch bridge *bridge* drop router advertisements that OVN has marked because the guest must
        not send any, and restore this rule after each restart of Open vSwitch or ovn-controller. Return immediately."""

    def switch_unfiltered(self) -> str:
        """Return why the rule of ``filter_switch`` is not in effect; "" if it is, or if ``filter_switch`` was never
        called."""

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        """Configure the virtual function *number* of the network device *card*. *settings*: values by option of
        ip-link(8): ``trust``, ``max_tx_rate``, ``min_tx_rate`` (Mbit/s, 0 for none). Raises ``HypervisorError`` when
        the driver rejects them."""

    def plug_representor(self, netdev: str, desired: RepresentorPort | None) -> None:
        """Make the Open vSwitch port of the network device *netdev* match *desired*; ``None`` removes the port. Raises
        ``HypervisorError`` if this fails."""

    def routes(self) -> Sequence[tuple[str, IPv4Network]]:
        """Return the host's IPv4 routes as pairs of device ("" for none) and destination network: from all routing
        tables, including routes to the host's own addresses, without default routes."""

    def networks(self) -> dict[str, NetworkSeen]:
        """Return all libvirt networks by name."""

    def make_network(self, spec: NetworkSpec) -> None:
        """Define and start the libvirt network of *spec*, with autostart. Raises ``Conflict`` when another program's
        network has that name."""

    def remove_network(self, name: str) -> None:
        """Stop and undefine a libvirt network. Raises ``Conflict`` when another program defined it. Does nothing for a
        missing network."""

    def reserve(self, network: str, mac: str, address: str) -> None:
        """Reserve *address* for *mac* in the DHCP server of a network of Magnetar. Does nothing for a missing network.
        """

    def release(self, network: str, mac: str) -> None:
        """Remove the DHCP reservation that ``reserve`` made for *mac* in *network*, and end the lease of *mac*. Does
        nothing if there is neither a reservation nor a lease."""

    def leases(self, network: str) -> list[Lease]:
        """Return the DHCP leases of a libvirt network, the newest last."""

    def taps(self, uuid: str | None = None) -> list[Tap]:
        """Return the tap devices of the running domain *uuid* of Magnetar; by default of all running domains of
        Magnetar."""

    def filter_ports(self, desired: PortFilter, loaded: PortFilter | None = None) -> None:
        """Replace the packet filter in the kernel by *desired*, in one transaction. If *desired* has neither ports nor
        bridges, remove the filter. *loaded*: the filter that is in the kernel now, so that only the difference is sent;
        ``None``: unknown. Addresses that the filter has learned from DHCP are kept."""

    def filters_ports(self, prefix: str) -> bool:
        """Return whether the packet filter for tap devices whose names begin with *prefix* is in the kernel: a reload
        of the host's firewall may have flushed the filter."""

    def on_filters_gone(self, listener: Callable[[], None]) -> None:
        """Call *listener* from a separate thread whenever the packet filter may have been removed. The calls end with
        ``close``."""

    def allow_leased(self, prefix: str, leased: Sequence[tuple[str, str]]) -> None:
        """Permit addresses that DHCP assigned before the packet filter for tap devices with the name prefix *prefix*
        was loaded. *leased*: pairs of tap device and address."""
