# SPDX-License-Identifier: GPL-3.0-or-later
"""Persistent memory of the host that servers may have: namespaces of NVDIMMs in mode devdax, as sysfs tells of them,
and files in place of such.

A namespace ``namespaceX.Y`` in that mode is the device ``/dev/daxX.Y``, by which QEMU maps it. Source: the kernel's
drivers/dax/pmem and Documentation/ABI/testing/sysfs-bus-nvdimm.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .sysfs import entries, text

#: KiB at the end of a namespace that hold the guest's own labels (as Nova's), and the least unit of sizes.
LABELS_KIB, UNIT_KIB = 2048, 1024
_NAMESPACE, _DEVDAX = "namespace", "dax"


class Namespace(NamedTuple):
    """*name*: as the settings have it. *path*: the device or file. *align_kib*: of what QEMU maps; 0 for a file."""

    label: str
    name: str
    path: Path
    size_kib: int
    align_kib: int = 0

    @property
    def is_device(self) -> bool:
        """Whether it is persistent memory, and no file."""
        return self.align_kib > 0


class GuestPmem(NamedTuple):
    """A device in a domain; KiB."""

    path: Path
    size_kib: int
    align_kib: int


def namespaces(sysfs: Path, labelled: Mapping[str, Sequence[str]]) -> list[Namespace]:
    """Those of the setting ``pmem_namespaces`` (names by label) that are there, in its order."""
    if not labelled:
        return []
    devices = _devices(sysfs) if any(not name.startswith("/") for names in labelled.values() for name in names) else {}
    found, files = [], set[tuple[int, int]]()
    for label, names in labelled.items():
        for name in names:
            path, size, align = _file(Path(name), files) if name.startswith("/") else devices.get(name, _NOTHING)
            unit = max(UNIT_KIB, align)
            if (size := size - size % unit) > LABELS_KIB:
                found.append(Namespace(label, name, path, size, align))
    return found


_NOTHING = (Path(), 0, 0)


def _file(path: Path, seen: set[tuple[int, int]]) -> tuple[Path, int, int]:
    """Path, KiB and 0 of a file that is not among those *seen*, by device and inode: one by two names, of which one may
    be a link, would be two servers'."""
    try:
        one = path.stat()
    except OSError:
        return _NOTHING
    if not stat.S_ISREG(one.st_mode) or (one.st_dev, one.st_ino) in seen:
        return _NOTHING
    seen.add((one.st_dev, one.st_ino))
    return path, one.st_size // 1024, 0


def _devices(sysfs: Path) -> dict[str, tuple[Path, int, int]]:
    """Path, KiB and KiB of alignment of each namespace in mode devdax, by the name that ``ndctl --name`` gave it."""
    found = {}
    for folder in entries(sysfs / "bus/nd/devices"):
        if folder.name.startswith(_NAMESPACE) and text(folder / "mode") == _DEVDAX and (name := text(
                folder / "alt_name")):
            holder = sysfs / "bus/nd/devices" / (text(folder / "holder") or "-")
            size, align = (int(text(holder / one) or 0) // 1024 for one in ("size", "align"))
            found[name] = (Path("/dev") / f"dax{folder.name.removeprefix(_NAMESPACE)}", size, max(1, align))
    return found


def guest_device(found: Namespace) -> GuestPmem:
    """What a guest has of it: all of it."""
    return GuestPmem(found.path, found.size_kib, found.align_kib)


def warnings(sysfs: Path, labelled: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a host lacks to give what the setting names."""
    there = namespaces(sysfs, labelled)
    known = {one.name for one in there}
    if missing := [name for names in labelled.values() for name in names if name not in known]:
        yield (f"pmem_namespaces names {', '.join(missing)}, and there is no namespace of that name in mode devdax, or "
               "file that has no other name there. Make it (ndctl create-namespace --mode devdax --name NAME), or "
               "remove it from the setting.")
    if any(one.is_device for one in there) and shutil.which("daxio") is None:
        yield ("pmem_namespaces names namespaces, and daxio is missing, without which none is emptied, and so none "
               "given. Install it (Debian: pmdk-tools).")
