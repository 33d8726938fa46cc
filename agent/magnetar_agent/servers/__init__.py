# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the server driver: ``resolve`` completes a request, ``spec`` builds the domain, ``verbs`` act."""

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


def server_folder(host: LocalHost, id: str) -> Path:
    """Return the folder with the local disks of the server with the uuid *id*."""
    return _folder(server_path(host, id))


@lru_cache(maxsize=256)
def _folder(path: str) -> Path:
    """Return *path* as a ``Path``, from a cache: creating a ``Path`` is slow, and each step of a server needs one."""
    return Path(path)


def server_path(host: LocalHost, id: str, *names: str) -> str:
    """Return the path of the server's folder as text, or with *names* a path in it. Text is faster than a ``Path``:
    lists of servers need the paths of all servers."""
    return os.path.join(host.settings.servers_folder, id, *names)  # noqa: PTH118


def domain_name(id: str) -> str:
    """Return the name of a server's libvirt domain. It contains the uuid, because several servers may have the same
    name."""
    return f"magnetar-{id}"


@dataclass
class DomainsView:
    """A snapshot of the host for answers about several servers: the domains by uuid, and DHCP leases, attachments and
    PCI devices, which are read once when they are first needed."""

    host: LocalHost
    domains: dict[str, Domain]
    _volumes: dict[str, list[Document]] | None = None
    _leases: dict[str, dict[str, list[Lease]]] = field(default_factory=dict)
    _devices: list[PciDevice] | None = None

    def devices(self, look: Callable[[LocalHost], list[PciDevice]]) -> list[PciDevice]:
        """Return the PCI devices that servers may get. *look*: reads them; called only the first time."""
        if self._devices is None:
            self._devices = look(self.host)
        return self._devices

    def volumes(self, server: str) -> list[Document]:
        """Return the documents of the volume attachments of *server* (uuid), sorted by device name. The caller must not
        change them."""
        if self._volumes is None:
            self._volumes = {}
            for attachment in self.host.documents.peek("volume_attachment"):
                self._volumes.setdefault(attachment.want["server"], []).append(attachment)
        return sorted(self._volumes.get(server, []), key=by_device)

    def addresses(self, networks: list[dict[str, Any]], runs: bool = True) -> dict[str, list[dict[str, Any]]]:
        """Return the addresses of a server's NICs by network (or bridge, port, physical network), in the form of the
        field ``addresses``. *networks*: the server's NICs. *runs*: whether the server runs; if so, addresses from DHCP
        leases are included."""
        by_network: dict[str, list[dict[str, Any]]] = {}
        for nic in networks:
            name = str(nic.get("network") or nic.get("bridge") or nic.get("port") or nic.get("physical_network"))
            address = str(nic.get("address") or "").partition("/")[0]
            network_addresses = by_network.setdefault(name, [])
            if address:
                network_addresses.append({"addr": address, "version": 4, "mac": nic["mac"], "source": "fixed"})
            if runs and nic.get("network"):
                network_addresses.extend({"addr": lease.address, "version": lease.version, "mac": lease.mac,
                                          "source": "lease"}
                                         for lease in self._leased(name).get(nic["mac"], [])
                                         if lease.address != address)
        return {name: addresses for name, addresses in by_network.items() if addresses}

    def _leased(self, network: str) -> dict[str, list[Lease]]:
        """Return the DHCP leases of the libvirt network *network* by MAC."""
        if network not in self._leases:
            by_mac: dict[str, list[Lease]] = {}
            for lease in self.host.hypervisor.leases(network):
                by_mac.setdefault(lease.mac, []).append(lease)
            self._leases[network] = by_mac
        return self._leases[network]


def domains_of_server(host: LocalHost, id: str) -> dict[str, Domain]:
    """Return the server's domain as ``{uuid: domain}``, an empty dict if it has none, for ``DomainsView``."""
    domain = host.hypervisor.domain(id)
    return {id: domain} if domain else {}
