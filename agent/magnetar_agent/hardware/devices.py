# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices beside disks and NICs, and what all disks and NICs have alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Disk
from magnetar_core.hardware.merge import MEMORY, PREFIX
from magnetar_core.kinds.volume import BUSES

from . import limits

#: The most queues that a tap device of Linux has (MAX_TAP_QUEUES). Each costs memory of the host and file descriptors
#: of QEMU.
QUEUES = 256


class GuestDevices(NamedTuple):
    """*watchdog*: its action, or ``None`` for none. *rng_rate*: (bytes, milliseconds), or ``None`` for no limit.
    *tpm*: version and model. *video_ram*: KiB. *usb*: whether there is a USB controller."""

    watchdog: str | None
    rng: bool
    rng_rate: tuple[int, int] | None
    video_model: str
    video_ram: int | None
    serial_ports: int
    pointer: str
    usb: bool
    guest_agent: bool
    scsi_model: str | None
    tpm: tuple[str, str] | None
    iommu: str | None

    @property
    def ports(self) -> int:
        """PCI Express ports that they take beside those that every machine has."""
        return bool(self.watchdog) + self.usb + bool(self.scsi_model)


def devices(hardware: Mapping[str, Any]) -> GuestDevices:
    """The devices of a server."""
    watchdog, pointer = hardware.get("watchdog", "disabled"), hardware.get("pointer", "virtio")
    rate = hardware.get("rng_bytes")
    return GuestDevices(
        watchdog=None if watchdog == "disabled" else watchdog, rng=hardware.get("rng", True),
        rng_rate=(rate, hardware.get("rng_period") or 1000) if rate else None,
        video_model=hardware.get("video_model", "vga"),
        video_ram=hardware["video_ram"] * 1024 if "video_ram" in hardware else None,
        serial_ports=hardware.get("serial_ports", 1), pointer=pointer, usb=pointer == "usb",
        guest_agent=hardware.get("guest_agent", True), scsi_model=hardware.get("scsi_model"),
        tpm=(hardware["tpm_version"], hardware.get("tpm_model", "tpm-tis")) if "tpm_version" in hardware else None,
        iommu="virtio" if hardware.get("viommu") == "auto" else hardware.get("viommu"))


def nic(hardware: Mapping[str, Any], found: Nic, vcpus: int) -> Nic:
    """A NIC as the hardware has NICs."""
    if not hardware:
        return found
    virtio = found.model == "virtio"
    queues = min(vcpus, QUEUES) if virtio and hardware.get("multiqueue") else 1
    return replace(found, queues=queues, packed=virtio and hardware.get("packed_ring", False),
                   iommu=virtio and bool(hardware.get(MEMORY)), bandwidth=limits.nic(hardware))


def disk(hardware: Mapping[str, Any], found: Disk) -> Disk:
    """A disk of whatever kind as the hardware has disks."""
    if found.bus != "virtio" or not (hardware.get("packed_ring") or hardware.get(MEMORY)):
        return found
    return replace(found, packed=bool(hardware.get("packed_ring")), iommu=bool(hardware.get(MEMORY)))


def volume_bus(hardware: Mapping[str, Any]) -> str:
    """Behind what a server sees volumes of which no bus is said: as its own disks, where volumes can be there."""
    bus = str(hardware.get("disk_bus", "virtio"))
    return bus if bus in BUSES else "virtio"


def config_drive(hardware: Mapping[str, Any], found: Disk) -> Disk:
    """The config drive on the bus of the server's other disks, after all of them; IDE has no place left for it."""
    bus = hardware.get("disk_bus", "virtio")
    return found if bus in ("virtio", "ide") else replace(found, bus=bus, target=PREFIX[bus] + "f")


def own_disk(hardware: Mapping[str, Any], found: Disk) -> Disk:
    """A disk that lives and dies with the server, of which no bus is said: on the bus that its hardware says, with its
    limits."""
    if not hardware:
        return found
    if found.device == "cdrom":
        bus = hardware.get("cdrom_bus", found.bus)
        # After the disks of the same kind, which have the first four names.
        return found if bus == found.bus and "disk_bus" not in hardware else replace(
            found, bus=bus, target=PREFIX[bus] + ("d" if bus == "ide" else "e"))
    bus = hardware.get("disk_bus", found.bus)
    return replace(found, bus=bus, target=PREFIX[bus] + found.target[2:], limits=limits.disk(hardware))
