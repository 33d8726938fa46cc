# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of the fake's running domains. Guests release them immediately, unless their uuid is in ``deaf``."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from magnetar_agent.hardware.mdev import Mdev
from magnetar_agent.host.hypervisor import DomainEvent
from magnetar_agent.host.networks import Nic, RepresentorPort
from magnetar_agent.host.storage import Disk
from magnetar_agent.virt.disks.pmem import Pmem
from magnetar_agent.virt.domain.devices import has_device
from magnetar_agent.virt.domain.domain import render_device
from magnetar_core.errors import HypervisorError
from magnetar_core.hardware.pci import WHOLE
from magnetar_core.power import LIVE

from .disks import read_fake_disk, write_fake_disk
from .state import FakeDomain, State, parse_domain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from magnetar_agent.host.hypervisor import Domain


class Devices(State):
    """A base class of ``FakeHypervisor``, the fake hypervisor for tests. It has the methods of ``LocalHypervisor`` for
    devices of running domains, and for mediated devices. Mediated devices are stored in memory only."""

    @property
    def _mdevs(self) -> dict[str, Mdev]:
        mdevs: dict[str, Mdev] = self.__dict__.setdefault("_made_mdevs", {})
        return mdevs

    def mdevs(self) -> list[Mdev]:
        with self._call("mdevs"):
            return sorted(self._mdevs.values())

    def make_mdev(self, mdev: Mdev) -> None:
        with self._call("make_mdev"):
            if mdev.uuid in self._mdevs:
                raise HypervisorError("libvirt could not make a mediated device: it exists.")
            self._mdevs[mdev.uuid] = mdev

    def remove_mdev(self, uuid: str) -> None:
        with self._call("remove_mdev"):
            self._mdevs.pop(uuid, None)

    #: Serial numbers of cards by the addresses of their devices.
    cards: Mapping[str, str] = MappingProxyType({})

    def card_serials(self) -> Mapping[str, str]:
        with self._call("card_serials"):
            return self.cards

    @property
    def functions(self) -> dict[tuple[str, int], dict[str, str]]:
        """Return the settings that ``set_function`` has made, such as ``trust``, by (network device of the card, number
        of the virtual function)."""
        functions: dict[tuple[str, int], dict[str, str]] = self.__dict__.setdefault("_set_functions", {})
        return functions

    def set_function(self, card: str, number: int, settings: Mapping[str, str]) -> None:
        with self._call("set_function"):
            self.functions.setdefault((card, number), {}).update(settings)

    @property
    def representors(self) -> dict[str, RepresentorPort]:
        """Return the Open vSwitch ports of representors, by the representor's device name."""
        ports: dict[str, RepresentorPort] = self.__dict__.setdefault("_representors", {})
        return ports

    def plug_representor(self, netdev: str, desired: RepresentorPort | None) -> None:
        with self._call("plug_representor"):
            if desired is None:
                self.representors.pop(netdev, None)
            else:
                self.representors[netdev] = desired

    def empty_pmem(self, path: Path) -> None:
        with self._call("empty_pmem", f"pmem {path}"):
            if path.is_file():
                Pmem().empty_pmem(path)

    def running(self, uuid: str) -> Domain | None:
        with self._call("running"):
            domain = self._domains.get(uuid)
            return parse_domain(domain.live) if domain and domain.state in LIVE else None

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        with self._call("attach", f"domain {uuid}"):
            domain = self._runs(uuid, "attach a device to")
            self._must_answer(uuid, "attach a device")
            if has_device(parse_domain(domain.live), device):
                return
            if isinstance(device, Disk) and device.remote is None and not device.path.exists():
                raise HypervisorError(f"libvirt could not attach a device to the domain {uuid}: no file {device.path}.")
            if isinstance(device, Disk) and device.key and not device.key.secret:
                raise HypervisorError(f"libvirt could not attach a device to the domain {uuid}: no secret.")
            root = ET.fromstring(domain.live)  # noqa: S314 (made here)
            devices = root.find("devices")
            assert devices is not None
            devices.append(ET.fromstring(render_device(device)))  # noqa: S314
            domain.live = ET.tostring(root, encoding="unicode")

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        with self._call("detach", f"domain {uuid}"):
            domain = self._domains.get(uuid)
            if domain is None or domain.state not in LIVE or uuid in self.deaf:
                return
            self._must_answer(uuid, "detach a device")
            root = ET.fromstring(domain.live)  # noqa: S314 (made here)
            devices = root.find("devices")
            assert devices is not None
            whole = isinstance(device, Nic) and device.vnic_type == WHOLE
            path, attribute, device_mark = ("alias", "name", device.alias) if whole else (  # type: ignore[union-attr]
                "mac", "address", device.mac) if isinstance(device, Nic) else ("target", "dev", device.target)
            for child in list(devices):
                mark = child.find(path)
                if mark is not None and mark.get(attribute) == device_mark:
                    devices.remove(child)
                    self._events.append(DomainEvent(uuid, "detached"))
            domain.live = ET.tostring(root, encoding="unicode")

    def resize(self, uuid: str, target: str, size: int) -> None:
        with self._call("resize", f"domain {uuid}"):
            disk = self._disk_of(uuid, target, f"grow the disk {target} of")
            if disk.remote:
                raise HypervisorError(f"libvirt could not grow the disk {target} of the domain {uuid}: Cannot grow "
                                      f"{disk.remote.protocol} nodes.")
            path, current = disk.path, read_fake_disk(disk.path)
            assert current is not None
            write_fake_disk(path, replace(current, virtual_size=size))

    def _runs(self, uuid: str, purpose: str) -> FakeDomain:
        domain = self._domains.get(uuid)
        if domain is None or domain.state not in LIVE:
            raise HypervisorError(f"libvirt could not {purpose} the domain {uuid}: domain is not running.")
        return domain

    def _disk_of(self, uuid: str, target: str, purpose: str) -> Disk:
        disks = [disk for disk in parse_domain(self._runs(uuid, purpose).live).disks if disk.target == target]
        if not disks:
            raise HypervisorError(f"libvirt could not {purpose} the domain {uuid}: there is no disk {target}.")
        return disks[0]
