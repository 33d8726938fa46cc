# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory of the host that servers may have: namespaces of NVDIMMs in mode devdax, found in sysfs, and files
in place of such.

A namespace ``namespaceX.Y`` in that mode is the device ``/dev/daxX.Y``, which QEMU maps. Source: the kernel's
drivers/dax/pmem and Documentation/ABI/testing/sysfs-bus-nvdimm.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .sysfs import sysfs_entries, sysfs_text

#: KiB at the end of a namespace that hold the guest's own labels (as Nova's), and the smallest unit of sizes.
LABELS_KIB, UNIT_KIB = 2048, 1024
_NAMESPACE, _DEVDAX = "namespace", "dax"


class Namespace(NamedTuple):
    """A namespace of persistent memory. *label*, *name*: from the setting ``pmem_namespaces``. *path*: the device, or a
    file that is used instead of a device. *align_kib*: the alignment that QEMU's mapping needs; 0 for a file."""

    label: str
    name: str
    path: Path
    size_kib: int
    align_kib: int = 0

    @property
    def is_device(self) -> bool:
        """Return whether the namespace is real persistent memory; false for a file that is used instead."""
        return self.align_kib > 0


class GuestPmem(NamedTuple):
    """A persistent memory device of a domain; sizes are in KiB."""

    path: Path
    size_kib: int
    align_kib: int


def present_namespaces(sysfs: Path, labelled: Mapping[str, Sequence[str]]) -> list[Namespace]:
    """Return the namespaces of the setting ``pmem_namespaces`` (*labelled*: names by label) that exist on this host, in
    the order of the setting. A name with a leading slash is the path of a file. *sysfs*: the path of /sys."""
    if not labelled:
        return []
    devices = _devices(sysfs) if any(not name.startswith("/") for names in labelled.values() for name in names) else {}
    present, files = [], set[tuple[int, int]]()
    for label, names in labelled.items():
        for name in names:
            path, size, align = _file(Path(name), files) if name.startswith("/") else devices.get(name, _NOTHING)
            unit = max(UNIT_KIB, align)
            if (size := size - size % unit) > LABELS_KIB:
                present.append(Namespace(label, name, path, size, align))
    return present


_NOTHING = (Path(), 0, 0)


def _file(path: Path, known_files: set[tuple[int, int]]) -> tuple[Path, int, int]:
    """Return path, size in KiB and alignment (0) of the file at *path*, which is used as a namespace, and add the file
    to *known_files*: (device, inode) of the files used so far. Return ``_NOTHING`` if the file is missing or in
    *known_files* already, so that a file with two names is not given to two servers."""
    try:
        status = path.stat()
    except OSError:
        return _NOTHING
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in known_files:
        return _NOTHING
    known_files.add((status.st_dev, status.st_ino))
    return path, status.st_size // 1024, 0


def _devices(sysfs: Path) -> dict[str, tuple[Path, int, int]]:
    """Return the namespaces in mode devdax by name (of ``ndctl --name``), each as path, size in KiB, and alignment in
    KiB. *sysfs*: the path of /sys."""
    devices = {}
    for folder in sysfs_entries(sysfs / "bus/nd/devices"):
        if folder.name.startswith(_NAMESPACE) and sysfs_text(folder / "mode") == _DEVDAX and (name := sysfs_text(
                folder / "alt_name")):
            holder = sysfs / "bus/nd/devices" / (sysfs_text(folder / "holder") or "-")
            size, align = (int(sysfs_text(holder / attribute) or 0) // 1024 for attribute in ("size", "align"))
            devices[name] = (Path("/dev") / f"dax{folder.name.removeprefix(_NAMESPACE)}", size, max(1, align))
    return devices


def guest_device(namespace: Namespace) -> GuestPmem:
    """Return the domain's persistent memory device for a namespace. The guest gets the whole namespace."""
    return GuestPmem(namespace.path, namespace.size_kib, namespace.align_kib)


def pmem_warnings(sysfs: Path, labelled: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield warning texts about namespaces of the setting ``pmem_namespaces`` (*labelled*: names by label) that this
    host cannot provide. *sysfs*: the path of /sys."""
    present = present_namespaces(sysfs, labelled)
    present_names = {namespace.name for namespace in present}
    if missing := [name for names in labelled.values() for name in names if name not in present_names]:
        yield (f"pmem_namespaces names {', '.join(missing)}, and there is no namespace of that name in mode devdax, or "
               "file that has no other name there. Make it (ndctl create-namespace --mode devdax --name NAME), or "
               "remove it from the setting.")
    if any(namespace.is_device for namespace in present) and shutil.which("daxio") is None:
        yield ("pmem_namespaces names namespaces, and daxio is missing, without which none is emptied, and so none "
               "given. Install it (Debian: pmdk-tools).")
