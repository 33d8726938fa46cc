# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of running domains: plugged in, let go of, grown and copied while the guest runs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.hypervisor import Disk, Nic, Progress
from magnetar_core.errors import HypervisorError

from .disks import complete, direct_io
from .domain import parse, render_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.hypervisor import Domain as DomainSeen

    from .connection import Connection

_LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
#: How often a copy looks how far it is, in seconds.
LOOK = 0.2
#: What libvirt says when a device was asked for already and the guest takes its time.
_UNDERWAY = ("in the process of unplug", "pending", "already in the process")


class Devices:
    """The part of ``Hypervisor`` for devices of running domains."""

    connection: Connection
    templates: Path

    def _with(self, what: str, uuid: str, act: Callable[[Any], None], missing_is_fine: bool = False) -> None:
        raise NotImplementedError

    def running(self, uuid: str) -> DomainSeen | None:
        """Its live XML, parsed."""
        found: list[DomainSeen] = []

        def look(domain: Any) -> None:
            if domain.isActive():
                found.append(parse(domain.XMLDesc()))
        self._with("read", uuid, look, missing_is_fine=True)
        return found[0] if found else None

    def attach(self, uuid: str, device: Disk | Nic) -> None:
        """virDomainAttachDeviceFlags, live; the definition is ``define``'s matter."""
        def plug(domain: Any) -> None:
            seen = parse(domain.XMLDesc())
            if plugged(seen, device):
                return
            if isinstance(device, Disk) and device.bus == "scsi" and not any(d.bus == "scsi" for d in seen.disks):
                with contextlib.suppress(libvirt.libvirtError):  # one is there already
                    domain.attachDeviceFlags('<controller type="scsi" index="0" model="virtio-scsi"/>', _LIVE)
            domain.attachDeviceFlags(self.device_xml(device), _LIVE)
        self._with("attach a device to", uuid, plug)

    def detach(self, uuid: str, device: Disk | Nic) -> None:
        """virDomainDetachDeviceFlags, live: QEMU asks the guest, and libvirt waits some seconds for it."""
        def unplug(domain: Any) -> None:
            if not domain.isActive() or not plugged(parse(domain.XMLDesc()), device):
                return
            try:
                domain.detachDeviceFlags(self.device_xml(device), _LIVE)
            except libvirt.libvirtError as error:
                text = str(error.get_error_message())
                gone = error.get_error_code() == libvirt.VIR_ERR_DEVICE_MISSING
                if not gone and not any(words in text for words in _UNDERWAY):
                    raise
        self._with("detach a device from", uuid, unplug, missing_is_fine=True)

    def resize(self, uuid: str, target: str, size: int) -> None:
        """virDomainBlockResize."""
        self._with(f"grow the disk {target} of", uuid,
                   lambda domain: domain.blockResize(target, size, libvirt.VIR_DOMAIN_BLOCK_RESIZE_BYTES))

    def backup(self, uuid: str, target: str, path: Path, format: str, progress: Progress) -> None:
        """virDomainBackupBegin in push mode: what the guest writes meanwhile is not in the copy."""
        with complete(path) as part:
            self._with(f"copy the disk {target} of", uuid,
                       lambda domain: _begin(domain, target, part, format))
            try:
                self._follow(uuid, target, part, progress)
            except BaseException:
                self._with("end the copy of a disk of", uuid, _abort, missing_is_fine=True)
                raise

    def _follow(self, uuid: str, target: str, part: Path, progress: Progress) -> None:
        seen: dict[str, Any] = {"done": False}

        def look(domain: Any) -> None:
            seen.update(_ended(domain) if not domain.isActive() or domain.jobInfo()[0] == 0 else
                        {"job": domain.jobStats()})
        while not seen["done"]:
            self._with("follow the copy of a disk of", uuid, look)
            job = seen.get("job") or {}
            progress(job.get("disk_processed", 0), job.get("disk_total", 0))
            if not seen["done"]:
                time.sleep(LOOK)
        if seen["error"]:
            raise HypervisorError(f"libvirt could not copy the disk {target} of the domain {uuid}: {seen['error']}.")
        size = part.stat().st_size
        progress(size, size)

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


def _begin(domain: Any, target: str, part: Path, format: str) -> None:
    others = "".join(f"<disk name={quoteattr(disk.target)} backup='no'/>" for disk in parse(domain.XMLDesc()).disks
                     if disk.target != target)
    domain.backupBegin(
        f"<domainbackup><disks><disk name={quoteattr(target)} backup='yes' type='file'><driver type={quoteattr(format)}"
        f"/><target file={quoteattr(str(part))}/></disk>{others}</disks></domainbackup>", None, 0)


def _abort(domain: Any) -> None:
    with contextlib.suppress(libvirt.libvirtError):  # it has ended by itself
        domain.abortJob()


def _ended(domain: Any) -> dict[str, Any]:
    """How the copy ended, which libvirt tells once it is over."""
    if not domain.isActive():
        return {"done": True, "error": "the server was stopped meanwhile; repeat the call"}
    stats = domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED | libvirt.VIR_DOMAIN_JOB_STATS_KEEP_COMPLETED)
    if stats.get("success", stats.get("type") == libvirt.VIR_DOMAIN_JOB_COMPLETED):
        return {"done": True, "error": None}
    return {"done": True, "error": str(stats.get("errmsg") or "it was ended from outside").rstrip(".")}
