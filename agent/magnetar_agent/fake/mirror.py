# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of disks of the fake's running domains. A copy is complete when it is queried for the second time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from magnetar_agent.host.storage import DiskSeen, Mirror
from magnetar_agent.virt.domain.domain import render_device
from magnetar_core.errors import Conflict, HypervisorError
from magnetar_core.power import LIVE

from .devices import Devices
from .disks import Disks, copy_sparse, read_fake_disk, write_fake_disk
from .state import FakeDomain, parse_domain

if TYPE_CHECKING:
    from magnetar_agent.host.storage import Disk


class Mirrors(Devices, Disks):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for copying disks of
    running domains."""

    def capacity(self, uuid: str, target: str) -> int:
        with self._call("capacity"):
            disk = self._disk_of(uuid, target, f"look at the disk {target} of")
            if disk.remote is None and not disk.path.exists():
                raise HypervisorError(f"libvirt could not look at the disk {target} of the domain {uuid}: no file "
                                      f"{disk.path}.")
            return _size(disk)

    def begin_mirror(self, uuid: str, target: str, disk: Disk) -> None:
        with self._call("begin_mirror", f"domain {uuid}"):
            old = self._disk_of(uuid, target, f"copy the disk {target} of")
            mirror_state = self._domains[uuid].mirrors.get(target)
            if mirror_state is not None and mirror_state["path"] != str(disk.path):
                raise Conflict(f"The disk {target} of the domain {uuid} is being copied already, by other tools. Wait "
                               "until that has ended, or end it (virsh blockjob), then repeat the call.")
            if disk.remote is None and not disk.path.exists():
                raise HypervisorError(f"libvirt could not copy the disk {target} of the domain {uuid}: no file "
                                      f"{disk.path}.")
            size, other = _size(old), _size(disk)
            if size and other and (other < size or (disk.format != "raw" and other != size)):
                raise HypervisorError(f"libvirt could not copy the disk {target} of the domain {uuid}: source and "
                                      "target have different sizes.")
            xml = render_device(replace(disk, target=target))
            self._domains[uuid].mirrors.setdefault(target, {"path": str(disk.path), "xml": xml, "looks": 0})

    def mirror(self, uuid: str, target: str) -> Mirror | None:
        with self._call("mirror", f"domain {uuid}"):
            domain = self._domains.get(uuid)
            mirror_state = domain.mirrors.get(target) if domain and domain.state in LIVE else None
            if mirror_state is None:
                return None
            mirror_state["looks"] += 1
            return Mirror(Path(mirror_state["path"]), min(mirror_state["looks"], 2), 2, mirror_state["looks"] > 1)

    def pivot(self, uuid: str, target: str) -> None:
        with self._call("pivot", f"domain {uuid}"):
            old = self._disk_of(uuid, target, f"have the copy of the disk {target} by")
            domain = self._domains[uuid]
            mirror_state = domain.mirrors.get(target)
            if mirror_state is None or mirror_state["looks"] < 2:
                raise HypervisorError(f"libvirt could not have the copy of the disk {target} by the domain {uuid}: it "
                                      "is not ready.")
            new = parse_domain(f"<domain><devices>{mirror_state['xml']}</devices></domain>").disks[0]
            if old.format == new.format == "raw" and not old.remote and not new.remote:
                size = new.path.stat().st_size
                copy_sparse(old.path, new.path)
                write_fake_disk(new.path, DiskSeen("raw", size))
            _give(domain, target, mirror_state["xml"])
            del domain.mirrors[target]

    def end_mirror(self, uuid: str, target: str, path: Path) -> None:
        with self._call("end_mirror", f"domain {uuid}"):
            domain = self._domains.get(uuid)
            if domain and domain.mirrors.get(target, {}).get("path") == str(path):
                del domain.mirrors[target]


def _size(disk: Disk) -> int:
    """Return the size of a disk in bytes; 0 for a missing disk or a disk on another host."""
    content = None if disk.remote else read_fake_disk(disk.path, disk.format)
    return content.virtual_size if content else 0


def _give(domain: FakeDomain, target: str, xml: str) -> None:
    """Give the disk with the device name *target* (such as vda) a new source, in the running domain and in its
    definition. *xml*: a disk element with the new source."""
    new = ET.fromstring(xml)  # noqa: S314 (made here)
    domain.live, domain.xml = (_with_source(definition, target, new) for definition in (domain.live, domain.xml))


def _with_source(xml: str, target: str, new: ET.Element) -> str:
    root = ET.fromstring(xml)  # noqa: S314 (made here)
    for disk in root.iterfind("devices/disk"):
        name = disk.find("target")
        if name is None or name.get("dev") != target:
            continue
        disk.set("type", new.get("type", "file"))
        for part in ("driver", "source"):
            old, other = disk.find(part), new.find(part)
            if old is not None and other is not None:
                at = list(disk).index(old)
                disk.remove(old)
                disk.insert(at, other)
    return ET.tostring(root, encoding="unicode")
