# SPDX-License-Identifier: GPL-3.0-or-later
"""Replacement of a running domain's disk: QEMU copies the disk, and continues with the copy (virDomainBlockCopy)."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import libvirt  # type: ignore[import-untyped]

from magnetar_agent.host.storage import Mirror
from magnetar_agent.virt.connection.limits import Lane
from magnetar_agent.virt.disks import qemu_img
from magnetar_core.errors import Conflict, HypervisorError

from .devices import Devices
from .power import Domains

if TYPE_CHECKING:
    from magnetar_agent.host.storage import Disk

#: The target disk of the copy exists already, and the copy is not in the domain's persistent definition.
_FLAGS = libvirt.VIR_DOMAIN_BLOCK_COPY_REUSE_EXT | libvirt.VIR_DOMAIN_BLOCK_COPY_TRANSIENT_JOB
_PIVOT = libvirt.VIR_DOMAIN_BLOCK_JOB_ABORT_PIVOT
#: Seconds that QEMU may take to end a copy, and between two checks.
END, POLL_INTERVAL = 60.0, 0.1


class Mirrors(Domains, Devices):
    """The methods of ``LocalHypervisor`` that replace a disk of a running domain by a copy (libvirt block copy)."""

    def capacity(self, uuid: str, target: str) -> int:
        """Return the size in bytes of the disk *target* (such as vda) of the running domain *uuid*."""
        sizes: list[int] = []
        self._with(f"look at the disk {target} of", uuid, lambda domain: sizes.append(domain.blockInfo(target)[0]))
        return sizes[0]

    def begin_mirror(self, uuid: str, target: str, disk: Disk) -> None:
        """Start to copy the disk *target* of the running domain *uuid* to *disk* (virDomainBlockCopy). If the raw
        *disk* is larger than the source, only the beginning of *disk* is used, because QEMU requires equal sizes."""
        qemu_img.check_backing_files([disk], self.qemu_user())

        def begin(domain: Any) -> None:
            copy_xml = ET.fromstring(self.device_xml(replace(disk, target=target)))  # noqa: S314 (made here)
            if disk.format == "raw":
                _cut(copy_xml, domain.blockInfo(target)[0])
            current_copy = _mirror(domain, target)
            if current_copy is not None and current_copy.path == disk.path:
                return
            if current_copy is not None or domain.blockJobInfo(target, 0):
                raise Conflict(f"The disk {target} of the domain {uuid} is being copied already, by other tools. Wait "
                               "until that has ended, or end it (virsh blockjob), then repeat the call.")
            domain.blockCopy(target, ET.tostring(copy_xml, encoding="unicode"), {}, _FLAGS)
        self._with(f"copy the disk {target} of", uuid, begin, lane=Lane.LONG)

    def mirror(self, uuid: str, target: str) -> Mirror | None:
        """Return the state of the copy of the disk *target* of the domain *uuid* that ``begin_mirror`` started;
        ``None`` if there is none."""
        mirrors: list[Mirror | None] = []
        self._with(f"look at the copy of the disk {target} of", uuid,
                   lambda domain: mirrors.append(_mirror(domain, target)), missing_is_fine=True)
        return mirrors[0] if mirrors else None

    def pivot(self, uuid: str, target: str) -> None:
        """End the copy of the disk *target* and make the domain *uuid* use the copy, in the running and the persistent
        definition."""
        self._with(f"have the copy of the disk {target} by", uuid, lambda domain: domain.blockJobAbort(target, _PIVOT),
                   lane=Lane.LONG)

    def end_mirror(self, uuid: str, target: str, path: Path) -> None:
        """Abort the copy of the disk *target* to *path* and wait for its end; the domain continues to use its original
        disk. Do nothing if there is no such copy. Raises ``HypervisorError`` if the copy does not end."""
        end = time.monotonic() + END
        while (current_copy := self.mirror(uuid, target)) is not None and current_copy.path == path:
            with contextlib.suppress(HypervisorError):  # it may end by itself meanwhile
                self._with(f"end the copy of the disk {target} of", uuid,
                           lambda domain: domain.blockJobAbort(target, 0), missing_is_fine=True, lane=Lane.LONG)
            if time.monotonic() > end:
                raise HypervisorError(f"libvirt could not end the copy of the disk {target} of the domain {uuid}.")
            time.sleep(POLL_INTERVAL)


def _cut(disk: ET.Element, size: int) -> None:
    """Limit a raw disk to its first *size* bytes, by a slice in its XML element *disk*."""
    source = disk.find("source")
    assert source is not None
    slices = ET.SubElement(source, "slices")
    ET.SubElement(slices, "slice", {"type": "storage", "offset": "0", "size": str(size)})


def _mirror(domain: Any, target: str) -> Mirror | None:
    if not domain.isActive():
        return None
    for disk in ET.fromstring(domain.XMLDesc(0)).iterfind("devices/disk"):  # noqa: S314 (libvirt wrote it)
        disk_target, other = disk.find("target"), disk.find("mirror")
        if disk_target is None or disk_target.get("dev") != target or other is None:
            continue
        source, job = other.find("source"), domain.blockJobInfo(target, 0) or {}
        named = {} if source is None else source.attrib
        return Mirror(Path(named.get("file") or named.get("dev") or named.get("name") or ""), job.get("cur", 0),
                      job.get("end", 0), other.get("ready") == "yes")
    return None
