# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks of the fake: real small files, sparse raw ones and qcow2 headers."""

from __future__ import annotations

import os
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import Backing, Disk, DiskKey, DiskSeen, Injection, NetworkSource, Progress
from magnetar_agent.virt.disks import iso, vfat
from magnetar_agent.virt.disks.disks import atomic_file
from magnetar_core.errors import HypervisorError
from magnetar_core.image_format import CONVERTED, converted_disk_size

from .exports import Exports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Fields of a qcow2 header, version 2: magic, version, offset and length of the backing name, cluster bits, size,
#: encryption method, …
_QCOW2 = struct.Struct(">4sIQIIQIIQQIIQ")
LUKS = 2


class Disks(Exports):
    """A base class of ``FakeHypervisor``, the fake hypervisor for tests. It has the methods of ``LocalHypervisor`` for
    disks."""

    #: The last injection into guests' disks, by path; the parts that cannot be written, each with the reason; an error
    #: for all.
    injected: dict[Path, Injection]
    not_injected: Mapping[str, str] = {}
    unreadable = ""
    #: Why the host cannot inject; empty if it can.
    no_injection = ""

    def disk(self, path: Path, format: str | None = None) -> DiskSeen | None:
        """Return format, sizes and backing file of a disk file; ``None`` if it is missing. *format*: the format of the
        disk; if ``None``, it is read from the file."""
        with self._call("disk", needs_libvirt=False):
            return read_fake_disk(path, format)

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        with self._call("make_disk", needs_libvirt=False):
            _check_key(format, key)
            if backing and not backing.path.exists():
                raise HypervisorError(f"qemu-img could not make the disk {path}: {backing.path} does not exist.")
            with atomic_file(path, named=False, flushed=flushed) as part:
                write_fake_disk(part, DiskSeen(format, size, backing.path if backing else None, key is not None))

    def label_disk(self, path: Path, label: str) -> None:
        with self._call("label_disk", needs_libvirt=False), path.open("r+b") as file:
            file.write(label.encode())

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        with self._call("copy_disk", needs_libvirt=False):
            _check_key(format, key)
            if isinstance(source, Path):
                self._unlocked(source)
            else:
                behind = self._behind(source)
                source, source_format = behind.path, behind.format
            source_disk = read_fake_disk(source, source_format)
            if source_disk is None:
                raise HypervisorError(f"The disk {source} cannot be copied: it does not exist.")
            _check_key("luks" if source_disk.encrypted else format, key)
            with atomic_file(path) as part:
                for tenth in range(11):
                    progress(source_disk.virtual_size * tenth // 10, source_disk.virtual_size)
                    time.sleep(self.delay / 10)
                if source_format == format == "raw":
                    copy_sparse(source, part)
                else:
                    write_fake_disk(part, DiskSeen(format, source_disk.virtual_size, None,
                                                   key is not None and format == "qcow2"))

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        with self._call("grow_disk", needs_libvirt=False):
            self._unlocked(path)
            current = read_fake_disk(path, format)
            if current is None:
                raise HypervisorError(f"The disk {path} cannot be grown: it does not exist.")
            _check_key("luks" if current.encrypted else format, key)
            if current.virtual_size > size:
                raise HypervisorError(f"The disk {path} has {current.virtual_size} bytes already; it is not shrunk.")
            write_fake_disk(path, replace(current, virtual_size=size))

    def inject(self, disk: Disk, injection: Injection, kvm: bool) -> Mapping[str, str]:
        with self._call("inject", needs_libvirt=False):
            if why := self.no_injection or (disk.remote and "it is in Ceph"):
                raise HypervisorError(f"libguestfs could not write into the disk {disk.path}: {why}.")
            if read_fake_disk(disk.path, disk.format) is None:
                raise HypervisorError(f"The disk {disk.path} cannot be opened: No such file or directory.")
            if self.unreadable:
                return dict.fromkeys(injection.parts(), self.unreadable)
            self.injected[disk.path] = injection
            return dict(self.not_injected)

    def lacks_injection(self) -> str:
        return self.no_injection

    def make_iso(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        with (self._call("make_iso", needs_libvirt=False), atomic_file(path, named=False, flushed=flushed) as part,
              part.open("wb") as target):
            iso.write_iso(target, label, files)

    def make_vfat(self, path: Path, label: str, files: Mapping[str, bytes], flushed: bool = True) -> None:
        with (self._call("make_vfat", needs_libvirt=False), atomic_file(path, named=False, flushed=flushed) as part,
              part.open("wb") as target):
            vfat.write_vfat(target, label, files)

    def permit(self, paths: Iterable[Path]) -> None:
        with self._call("permit", needs_libvirt=False):
            self.permitted.extend(paths)


def _check_key(format: str, key: DiskKey | None) -> None:
    if format == "luks" and not (key and key.secret):
        raise HypervisorError("qemu-img could not open the disk: it is encrypted, and there is no key.")


def copy_sparse(source: Path, target: Path) -> None:
    """Copy the file *source* to *target*; holes of a sparse file stay holes."""
    with source.open("rb") as old, target.open("wb") as new:
        size, at = os.fstat(old.fileno()).st_size, 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # only a hole follows
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            os.pwrite(new.fileno(), os.pread(old.fileno(), end - at, at), at)
            at = end
        new.truncate(size)


def write_fake_disk(path: Path, disk: DiskSeen) -> None:
    """Create the fake disk file *path* with the format and size of *disk*, or change the size of an existing file. The
    content of a raw disk is not changed."""
    if disk.format in ("raw", "luks"):  # these have no header here
        with path.open("ab") as file:
            file.truncate(disk.virtual_size)
        return
    name = str(disk.backing).encode() if disk.backing else b""
    at = _QCOW2.size if name else 0
    header = _QCOW2.pack(b"QFI\xfb", 2, at, len(name), 16, disk.virtual_size, LUKS * disk.encrypted, *(0,) * 6)
    path.write_bytes((header + name).ljust(4096, b"\0"))


def read_fake_disk(path: Path, format: str | None = None) -> DiskSeen | None:
    """Return format, sizes and backing file of a disk file of the fake; ``None`` if it is missing. *format*: the format
    of the disk; if ``None``, it is read from the file."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        head = file.read(1 << 14)
    if format == "luks":
        return DiskSeen("luks", path.stat().st_size)
    if format in CONVERTED:
        content = path.read_bytes().ljust(1 << 16, b"\0")
        return DiskSeen(format, converted_disk_size(format, path.stat().st_size, lambda at, length: content[
            at:at + length]))
    if format == "raw" or not head.startswith(b"QFI\xfb") or len(head) < _QCOW2.size:
        return DiskSeen("raw", path.stat().st_size)
    _magic, _version, at, length, _bits, size, crypt = _QCOW2.unpack_from(head)[:7]
    return DiskSeen("qcow2", size, Path(head[at:at + length].decode()) if at else None, bool(crypt))
