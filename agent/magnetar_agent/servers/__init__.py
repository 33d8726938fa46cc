# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the server driver: ``resolve`` completes what is wanted, ``spec`` makes a domain of it, ``verbs`` act."""

from __future__ import annotations

import os.path
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.volumes import by_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.hardware.pci import PciDevice
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain
    from magnetar_agent.host.networks import Lease
    from magnetar_agent.reconcile.documents import Document

GIB = 2**30
MIB = 2**20


def folder(host: LocalHost, id: str) -> Path:
    """Where the disks of a server lie."""
    return _folder(path(host, id))


@lru_cache(maxsize=256)
def _folder(path: str) -> Path:
    """Each step of a server asks for it."""
    return Path(path)


def path(host: LocalHost, id: str, *names: str) -> str:
    """``folder``, or what is in it, as text: lists and batches ask for those of all servers, and a ``Path`` takes ten
    times as long to make."""
    return os.path.join(host.settings.state_dir, "servers", id, *names)  # noqa: PTH118


def domain_name(id: str) -> str:
    """Name of the libvirt domain of a server; by uuid, since servers may share a name."""
    return f"magnetar-{id}"


@dataclass
class DomainsView:
    """What is seen of the host in one look: domains, and leases of networks when first needed."""

    host: LocalHost
    domains: dict[str, Domain]
    _volumes: dict[str, list[Document]] | None = None
    _leases: dict[str, dict[str, list[Lease]]] = field(default_factory=dict)
    _devices: list[PciDevice] | None = None

    def devices(self, look: Callable[[LocalHost], list[PciDevice]]) -> list[PciDevice]:
        """The PCI devices that servers may have, which *look* finds once for all servers that are shown."""
        if self._devices is None:
            self._devices = look(self.host)
        return self._devices

    def volumes(self, server: str) -> list[Document]:
        """The attachments of volumes of *server*, by device: to be read, never changed."""
        if self._volumes is None:
            self._volumes = {}
            for one in self.host.documents.peek("volume_attachment"):
                self._volumes.setdefault(one.want["server"], []).append(one)
        return sorted(self._volumes.get(server, []), key=by_device)

    def addresses(self, networks: list[dict[str, Any]], runs: bool = True) -> dict[str, list[dict[str, Any]]]:
        """Name of network, bridge, port or physical network to the addresses of its NICs: those that are given to them,
        and, while the server *runs*, those that DHCP has chosen."""
        found: dict[str, list[dict[str, Any]]] = {}
        for nic in networks:
            name = str(nic.get("network") or nic.get("bridge") or nic.get("port") or nic.get("physical_network"))
            address = str(nic.get("address") or "").partition("/")[0]
            there = found.setdefault(name, [])
            if address:
                there.append({"addr": address, "version": 4, "mac": nic["mac"], "source": "fixed"})
            if runs and nic.get("network"):
                there.extend({"addr": lease.address, "version": lease.version, "mac": lease.mac, "source": "lease"}
                             for lease in self._leased(name).get(nic["mac"], []) if lease.address != address)
        return {name: addresses for name, addresses in found.items() if addresses}

    def _leased(self, network: str) -> dict[str, list[Lease]]:
        """The leases of *network* by MAC."""
        if network not in self._leases:
            by_mac: dict[str, list[Lease]] = {}
            for lease in self.host.hypervisor.leases(network):
                by_mac.setdefault(lease.mac, []).append(lease)
            self._leases[network] = by_mac
        return self._leases[network]


def seen(host: LocalHost, id: str) -> dict[str, Domain]:
    """The domain of one server by its uuid, or nothing."""
    domain = host.hypervisor.domain(id)
    return {id: domain} if domain else {}


def users(host: LocalHost, network: str) -> list[Document]:
    """Servers with a NIC on *network*."""
    return [d for d in host.documents.list("server") if any(n.get("network") == network for n in d.want["networks"])]
