# SPDX-License-Identifier: GPL-3.0-or-later
"""FAT16 file systems with long names, such as config drives for guests that read no ISO 9660. The layout is Microsoft's
"FAT: General Overview of On-Disk Format", 1.03. The files are sparse, and written without a process per drive."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Sizes in bytes: of the file system (as of Nova's config drives), of a sector, of a cluster. Files begin at a cluster.
SIZE, SECTOR, CLUSTER = 64 << 20, 512, 2048
#: Sectors before the first table, and of each of the two tables; entries of the root folder, and bytes of one.
RESERVED, TABLE, ROOT, ENTRY = 1, 128, 512, 32
#: The offset of the root folder, and of cluster 2, the first.
ROOT_AT = (RESERVED + 2 * TABLE) * SECTOR
DATA_AT = ROOT_AT + ROOT * ENTRY
CLUSTERS = (SIZE - DATA_AT) // CLUSTER
FOLDER, LABEL, LONG, READ_ONLY = 0x10, 0x08, 0x0F, 0x01
#: The first of January 1980, in FAT's form: a drive has no times.
DAY = 0x21
#: Characters of a name in each entry of a long name, in its three parts.
PARTS = (5, 6, 2)
END = 0xFFFF


class _Volume:
    """A FAT16 volume that is written to *target*: its data clusters, allocated in order, and its file allocation table.
    """

    def __init__(self, target: BinaryIO) -> None:
        self.target, self.table = target, [0xFFF8, END]

    def put(self, content: bytes) -> int:
        """Write *content* into newly allocated clusters. Return the number of the first cluster; 0 if *content* is
        empty. Raises ``HypervisorError`` if the volume is full."""
        count = -(-len(content) // CLUSTER)
        if not count:
            return 0
        first = len(self.table)
        if first + count - 2 > CLUSTERS:
            raise HypervisorError("What the guest is to be told does not fit into a config drive of 64 MiB. Use "
                                  "config_drive_format: iso9660.")
        self.table += [*range(first + 1, first + count), END]
        self.write(first, content)
        return first

    def write(self, cluster: int, content: bytes) -> None:
        """Write *content* from the beginning of *cluster* on, across the following clusters. Cluster 0 means the root
        directory."""
        self.target.seek(ROOT_AT if cluster == 0 else DATA_AT + (cluster - 2) * CLUSTER)
        self.target.write(content)


def write_vfat(target: BinaryIO, label: str, files: Mapping[str, bytes]) -> None:
    """Write a FAT16 file system with *files* (``{path: content}``) to the empty file *target*. *label*: the volume
    label. Paths must be ASCII."""
    volume = _Volume(target)
    target.truncate(SIZE)
    first = _entry(label.encode().ljust(11), LABEL, 0, 0)
    entries = first + _folder(volume, _tree(files), 0)
    if len(entries) > ROOT * ENTRY:
        raise HypervisorError(f"A config drive of the format vfat has room for {ROOT} names at its top.")
    volume.write(0, entries)
    target.seek(0)
    target.write(_boot_sector(label))
    table = struct.pack(f"<{len(volume.table)}H", *volume.table).ljust(TABLE * SECTOR, b"\0")
    target.write(table + table)


def _tree(files: Mapping[str, bytes]) -> dict[str, object]:
    """Convert *files* (``{path: content}``) to nested dicts, one for each folder: ``{name: content, or dict of a
    folder}``.
    """
    top: dict[str, object] = {}
    for path, content in sorted(files.items()):
        at = top
        *folders, name = path.strip("/").split("/")
        for folder in folders:
            at = at.setdefault(folder, {})  # type: ignore[assignment]
        at[name] = content
    return top


def _folder(volume: _Volume, inside: Mapping[str, object], own_cluster: int) -> bytes:
    """Write the content of one folder to *volume*: its files, and its subfolders with their content. Return the
    directory entries of the content, which the caller writes to *volume*. *inside*: the content, a dict from ``_tree``.
    *own_cluster*: first cluster of the folder itself; 0 for the root."""
    folder_entries = b""
    for number, (name, child) in enumerate(inside.items()):
        if isinstance(child, dict):
            room = ENTRY * (2 + sum(len(list(_long(child_name, b""))) + 1 for child_name in child))
            at = volume.put(bytes(room))
            entries = _entry(b".".ljust(11), FOLDER, at, 0) + _entry(b"..".ljust(11), FOLDER, own_cluster, 0)
            volume.write(at, entries + _folder(volume, child, at))
            folder_entries += _directory_entries(name, number, FOLDER, at, 0)
        elif isinstance(child, bytes):
            folder_entries += _directory_entries(name, number, READ_ONLY, volume.put(child), len(child))
    return folder_entries


def _directory_entries(name: str, number: int, kind: int, at: int, size: int) -> bytes:
    """Return the FAT directory entries of a file or folder: several for the long *name*, and one for a short name
    generated from *number*. *kind*: FAT attributes. *at*: first cluster. *size*: bytes."""
    short = f"F{number:07}".encode().ljust(11)
    return b"".join(_long(name, short)) + _entry(short, kind, at, size)


def _entry(name: bytes, kind: int, at: int, size: int) -> bytes:
    return struct.pack("<11sBBBHHHHHHHI", name, kind, 0, 0, 0, DAY, DAY, 0, 0, DAY, at, size)


def _long(name: str, short: bytes) -> Iterator[bytes]:
    """Yield the FAT directory entries for the long file name *name*, last part first. *short*: the short name, whose
    checksum the entries contain."""
    check = 0
    for byte in short:
        check = (((check & 1) << 7) + (check >> 1) + byte) & 0xFF
    width = sum(PARTS)
    units = [ord(character) for character in name]
    count = -(-len(units) // width)
    units += [0, *[END] * width][:count * width - len(units)]
    for number in range(count, 0, -1):
        piece = units[(number - 1) * width:number * width]
        last = 0x40 if number == count else 0
        yield struct.pack("<B5HBBB6HH2H", number | last, *piece[:5], LONG, 0, check, *piece[5:11], 0, *piece[11:])


def _boot_sector(label: str) -> bytes:
    """Return the FAT16 boot sector with the volume label *label*."""
    block = struct.pack(
        "<3s8sHBHBHHBHHHIIBBBI11s8s", b"\xeb\x3c\x90", b"MAGNETAR", SECTOR, CLUSTER // SECTOR, RESERVED, 2, ROOT, 0,
        0xF8, TABLE, 32, 64, 0, SIZE // SECTOR, 0x80, 0, 0x29, 0x4D41474E, label.encode().ljust(11), b"FAT16   ")
    return block.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
