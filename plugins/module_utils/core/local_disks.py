# SPDX-License-Identifier: GPL-3.0-or-later
"""The local disks of a server other than its root disk: ephemeral disks and a swap disk. Pure functions.

Flavor and block device mapping determine them. Each blank local item of the mapping (``is_blank``) is one ephemeral
disk, or the swap disk, with its own size. Without such an item, the flavor's size determines the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

EPHEMERAL, SWAP = "disk.ephemeral", "disk.swap"
GIB, MIB = 2**30, 2**20
#: Maximum number of these disks: device names end with vdy, and vda is the root disk.
MOST = 24

Item = Mapping[str, Any]
#: Fields that an item for a local disk cannot have, except with the listed values, and the reason.
REFUSED: Sequence[tuple[str, Sequence[Any], str]] = (
    ("volume_type", (), "is for volumes; local disks lie with the server"),
    ("delete_on_termination", (True,), "must be true for a local disk, which goes with its server, or be left out"),
    ("disk_bus", ("virtio",), "must be virtio for a local disk, or be left out; flavor and image say what all of them "
                              "are behind (hw_disk_bus)"),
    ("readonly", (False,), "is for volumes; a local disk is the server's own to write to"),
    ("volume", (), "is for volumes"),
)


class LocalDisk(NamedTuple):
    """An ephemeral or swap disk of a server. *file*: its file name in the server's directory. *size*: its size in
    bytes. *label*: the label of its file system, or ``swap``. *device*: its device name on a virtio bus, such as vdb.
    """

    file: str
    size: int
    label: str
    device: str


def is_blank(item: Item) -> bool:
    """Return whether *item* of a block device mapping is an ephemeral disk or the swap disk."""
    return item["source_type"] == "blank" and item.get("destination_type") in (None, "local")


def is_swap(item: Item) -> bool:
    """Return whether *item* of a block device mapping, a blank local disk, is the swap disk."""
    return bool(item.get("guest_format") == "swap")


def blank_disk_files(mapping: Sequence[Item]) -> Iterator[tuple[Item, str]]:
    """Yield each blank local disk in the block device *mapping* (the item of the mapping) with its file name in the
    server's directory. Ephemeral disks after the first have a number in the name.
    """
    at = 0
    for item in filter(is_blank, mapping):
        if is_swap(item):
            yield item, SWAP
        else:
            yield item, f"{EPHEMERAL}{at or ''}"
            at += 1


def flavor_local_disks(flavor: Item, mapping: Sequence[Item] = ()) -> list[LocalDisk]:
    """Return the ephemeral disks and the swap disk of a server with this *flavor* and block device *mapping*. Ephemeral
    disks are in the order of *mapping*; one without a size gets the whole ephemeral size of the flavor (GiB). The swap
    disk is last, and at most as large as the flavor's swap (MiB).
    """
    if not (mapping or flavor["ephemeral"] or flavor["swap"]):
        return []
    items = list(blank_disk_files(mapping))
    sizes = [block_device.get("volume_size") or flavor["ephemeral"] for block_device, file in items if file != SWAP]
    disks = [LocalDisk(f"{EPHEMERAL}{at or ''}", size * GIB, f"ephemeral{at}", f"vd{ascii_lowercase[1 + at]}")
             for at, size in enumerate(sizes or [flavor["ephemeral"]]) if size]
    swap = min([flavor["swap"], *filter(None, (block_device.get("volume_size") for block_device,
                                               file in items if file == SWAP))])
    if swap:
        disks.append(LocalDisk(SWAP, swap * MIB, "swap", f"vd{ascii_lowercase[1 + len(disks)]}"))
    return disks


def ephemeral_gib(flavor: Item, mapping: Sequence[Item] = ()) -> int:
    """Return the total GiB of the ephemeral disks of a server with this *flavor* and block device *mapping*."""
    return sum(disk.size for disk in flavor_local_disks(flavor, mapping) if disk.file != SWAP) // GIB
