# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of running domains: hot-plug, unplug and resize."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Disk
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.disks import disk_keys, qemu_img
from magnetar_agent.virt.disks.disks import direct_io

from .domain import render_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.host.hypervisor import Domain as DomainSeen
    from magnetar_agent.virt.connection.pool import ConnectionPool

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
#: libvirt's messages when the unplug of a device was requested already and the guest has not released it yet.
_UNDERWAY = ("in the process of unplug", "pending", "already in the process")


class Devices:
    """The methods of ``LocalHypervisor`` for devices of running domains."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]

    def _with(self, purpose: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def _with_seen(self, purpose: str, uuid: str, act: Callable[[Any, DomainSeen], None], missing_is_fine: bool = False,
                   flags: int = 0, lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def running(self, uuid: str) -> DomainSeen | None:
        """Return the domain *uuid* as parsed from its live XML; ``None`` if it is not running."""
        running: list[DomainSeen] = []

        def look(domain: Any, parsed: DomainSeen) -> None:
            if domain.isActive():
                running.append(parsed)
        self._with_seen("read", uuid, look, missing_is_fine=True, lane=Lane.READ)
        return running[0] if running else None

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """Attach *device* to the running domain *uuid*, unless it has the device. The persistent definition is not
        changed."""
        def plug(domain: Any, parsed: DomainSeen) -> None:
            if has_device(parsed, device):
                return
            if isinstance(device, Disk) and device.bus == "scsi" and not any(d.bus == "scsi" for d in parsed.disks):
                with contextlib.suppress(libvirt.libvirtError):  # one is there already
                    domain.attachDeviceFlags('<controller type="scsi" index="0" model="virtio-scsi"/>', _LIVE)
            if isinstance(device, Disk):
                qemu_img.check_backing_files([device], self.qemu_user())
            with disk_keys.unlocked_disks(domain.connect(), [device.key] if isinstance(device, Disk) else ()):
                domain.attachDeviceFlags(self.device_xml(device), _LIVE)
        self._with_seen("attach a device to", uuid, plug)

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """Request the guest of the running domain *uuid* to release *device*. When this method returns, the guest may
        still have the device."""
        def unplug(domain: Any, parsed: DomainSeen) -> None:
            if not domain.isActive() or not has_device(parsed, device):
                return
            try:
                domain.detachDeviceFlags(self.device_xml(device), _LIVE)
            except libvirt.libvirtError as error:
                text = str(error.get_error_message())
                is_missing = error.get_error_code() == libvirt.VIR_ERR_DEVICE_MISSING
                if not is_missing and not any(words in text for words in _UNDERWAY):
                    raise
        self._with_seen("detach a device from", uuid, unplug, missing_is_fine=True)

    def resize(self, uuid: str, target: str, size: int) -> None:
        """Set the size of the disk *target* (such as vda) of the running domain *uuid* to *size* bytes."""
        self._with(f"grow the disk {target} of", uuid,
                   lambda domain: domain.blockResize(target, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES))

    def device_xml(self, device: Disk | Nic) -> str:
        """Return the libvirt XML of *device*. The cache mode of a disk depends on whether its file system supports
        O_DIRECT."""
        plain = isinstance(device, Disk) and not device.block_device and device.remote is None
        direct = not plain or direct_io(device.path.parent)  # type: ignore[union-attr]
        return render_device(device, "none" if direct else "writeback", self.templates)


def has_device(domain: DomainSeen, device: Disk | Nic) -> bool:
    """Return whether *domain* has a disk with the same target, or a NIC with the same MAC, as *device*."""
    if isinstance(device, Nic):
        return any(nic.mac == device.mac for nic in domain.nics)
    return any(disk.target == device.target for disk in domain.disks)
