# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of running domains: hot-plugged, unplugged and resized."""

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
#: What libvirt says when a device was asked for already and the guest takes its time.
_UNDERWAY = ("in the process of unplug", "pending", "already in the process")


class Devices:
    """The part of ``LocalHypervisor`` for devices of running domains."""

    connection: ConnectionPool
    templates: Path
    qemu_user: Callable[[], tuple[int, int]]

    def _with(self, what: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False,
              lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def _with_seen(self, what: str, uuid: str, act: Callable[[Any, DomainSeen], None], missing_is_fine: bool = False,
                   flags: int = 0, lane: Lane = Lane.GUEST, kind: str = "") -> None:
        raise NotImplementedError

    def running(self, uuid: str) -> DomainSeen | None:
        """Its live XML, parsed."""
        found: list[DomainSeen] = []

        def look(domain: Any, seen: DomainSeen) -> None:
            if domain.isActive():
                found.append(seen)
        self._with_seen("read", uuid, look, missing_is_fine=True, lane=Lane.LOOK)
        return found[0] if found else None

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """virDomainAttachDeviceFlags, live; the definition is ``define``'s matter."""
        def plug(domain: Any, seen: DomainSeen) -> None:
            if plugged(seen, device):
                return
            if isinstance(device, Disk) and device.bus == "scsi" and not any(d.bus == "scsi" for d in seen.disks):
                with contextlib.suppress(libvirt.libvirtError):  # one is there already
                    domain.attachDeviceFlags('<controller type="scsi" index="0" model="virtio-scsi"/>', _LIVE)
            if isinstance(device, Disk):
                qemu_img.check([device], self.qemu_user())
            with disk_keys.unlocked(domain.connect(), [device.key] if isinstance(device, Disk) else ()):
                domain.attachDeviceFlags(self.device_xml(device), _LIVE)
        self._with_seen("attach a device to", uuid, plug)

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """virDomainDetachDeviceFlags, live: QEMU asks the guest, and libvirt waits some seconds for it."""
        def unplug(domain: Any, seen: DomainSeen) -> None:
            if not domain.isActive() or not plugged(seen, device):
                return
            try:
                domain.detachDeviceFlags(self.device_xml(device), _LIVE)
            except libvirt.libvirtError as error:
                text = str(error.get_error_message())
                gone = error.get_error_code() == libvirt.VIR_ERR_DEVICE_MISSING
                if not gone and not any(words in text for words in _UNDERWAY):
                    raise
        self._with_seen("detach a device from", uuid, unplug, missing_is_fine=True)

    def resize(self, uuid: str, target: str, size: int) -> None:
        """virDomainBlockResize."""
        self._with(f"grow the disk {target} of", uuid,
                   lambda domain: domain.blockResize(target, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES))

    def device_xml(self, device: Disk | Nic) -> str:
        """The XML of one device; its cache mode is what its file system can do."""
        plain = isinstance(device, Disk) and not device.block and device.remote is None
        direct = not plain or direct_io(device.path.parent)  # type: ignore[union-attr]
        return render_device(device, "none" if direct else "writeback", self.templates)


def plugged(domain: DomainSeen, device: Disk | Nic) -> bool:
    """Whether *domain* has the device, by its target or MAC."""
    if isinstance(device, Nic):
        return any(nic.mac == device.mac for nic in domain.nics)
    return any(disk.target == device.target for disk in domain.disks)
