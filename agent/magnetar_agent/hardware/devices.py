# SPDX-License-Identifier: GPL-3.0-or-later
"""A guest's devices other than disks and NICs, and the settings of its ``hardware`` that apply to all disks or NICs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Disk
from magnetar_core.hardware.merge import MEMORY, PREFIX
from magnetar_core.kinds.volume import BUSES

from . import limits

#: The most queues of a tap device on Linux (MAX_TAP_QUEUES). Each costs memory of the host and file descriptors of
#: QEMU.
QUEUES = 256


class GuestDevices(NamedTuple):
    """The devices of a guest, except disks and NICs. *watchdog*: libvirt's action for the watchdog, ``None`` for no
    watchdog. *rng_rate*: the limit of the random number generator as (bytes, milliseconds), ``None`` for no limit.
    *tpm*: version and model, ``None`` for no TPM. *video_ram*: KiB. *usb*: whether there is a USB controller."""

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
        """Return how many PCI Express ports these devices occupy: watchdog, USB and SCSI controller take one each."""
        return bool(self.watchdog) + self.usb + bool(self.scsi_model)


def guest_devices(hardware: Mapping[str, Any]) -> GuestDevices:
    """Return the devices of a server with these *hardware* fields, such as ``watchdog``, which are made from extra
    specs and image properties."""
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


def apply_nic_hardware(hardware: Mapping[str, Any], nic: Nic, vcpus: int) -> Nic:
    """Return a copy of *nic* with the queues, packed ring, IOMMU and bandwidth limits from *hardware*, the server's
    hardware fields (made from extra specs and image properties). *vcpus*: the server's number of CPUs, which limits the
    queues."""
    if not hardware:
        return nic
    virtio = nic.model == "virtio"
    queues = min(vcpus, QUEUES) if virtio and hardware.get("multiqueue") else 1
    return replace(nic, queues=queues, packed=virtio and hardware.get("packed_ring", False),
                   iommu=virtio and bool(hardware.get(MEMORY)), bandwidth=limits.nic_limits(hardware))


def apply_disk_hardware(hardware: Mapping[str, Any], disk: Disk) -> Disk:
    """Return a copy of *disk* with packed ring and IOMMU as in *hardware*, the server's hardware fields (made from
    extra specs and image properties). Only disks on the virtio bus have these options; other disks are returned
    unchanged."""
    if disk.bus != "virtio" or not (hardware.get("packed_ring") or hardware.get(MEMORY)):
        return disk
    return replace(disk, packed=bool(hardware.get("packed_ring")), iommu=bool(hardware.get(MEMORY)))


def volume_bus(hardware: Mapping[str, Any]) -> str:
    """Return the bus of volumes for which no bus was requested: the bus of the server's local disks, or virtio if
    volumes cannot be attached to that bus. *hardware*: the server's hardware fields (made from extra specs and image
    properties)."""
    bus = str(hardware.get("disk_bus", "virtio"))
    return bus if bus in BUSES else "virtio"


def place_config_drive(hardware: Mapping[str, Any], disk: Disk) -> Disk:
    """Return a copy of the config drive *disk* on the bus of the server's local disks, with the letter f in the device
    name, such as sdf, because the local disks have earlier letters. Return *disk* unchanged if the bus of the local
    disks is virtio or IDE. *hardware*: the server's hardware fields (made from extra specs and image properties)."""
    bus = hardware.get("disk_bus", "virtio")
    return disk if bus in ("virtio", "ide") else replace(disk, bus=bus, target=PREFIX[bus] + "f")


def own_disk(hardware: Mapping[str, Any], disk: Disk) -> Disk:
    """Return a copy of *disk*, a local disk of a server, with the bus, device name and I/O limits from *hardware*, the
    server's hardware fields (made from extra specs and image properties)."""
    if not hardware:
        return disk
    if disk.device == "cdrom":
        bus = hardware.get("cdrom_bus", disk.bus)
        # After the disks of the same kind, which have the first four names.
        return disk if bus == disk.bus and "disk_bus" not in hardware else replace(
            disk, bus=bus, target=PREFIX[bus] + ("d" if bus == "ide" else "e"))
    bus = hardware.get("disk_bus", disk.bus)
    return replace(disk, bus=bus, target=PREFIX[bus] + disk.target[2:], limits=limits.disk_limits(hardware))
