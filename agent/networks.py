# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of ``LocalHypervisor`` about networks: libvirt's own, their leases, those that the host is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Protocol


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
    on a bridge with its own."""

    server: str
    mac: str
    device: str
    index: int
    bridge: str
    bridge_index: int


class HypervisorNetworks(Protocol):
    """See the head of this file."""

    def bridges(self) -> frozenset[str]:
        """Names of the bridges of the host."""

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
        """The taps on bridges of a domain of ours, or of all; none of what does not run."""
