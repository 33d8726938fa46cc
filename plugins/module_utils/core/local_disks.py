# SPDX-License-Identifier: GPL-3.0-or-later
"""The disks of a server that go with it, besides its root disk: ephemeral disks and a swap disk. Pure.

Which there are, flavor and block device mapping say: without blank local items, an ephemeral disk of the flavor's size;
with such items (BDM-24), one for each, of its own size. So it is with the swap disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_lowercase
from typing import Any, NamedTuple

EPHEMERAL, SWAP = "disk.ephemeral", "disk.swap"
GIB, MIB = 2**30, 2**20
#: How many there may be: device names end with vdy, and vda is the root disk.
MOST = 24

Item = Mapping[str, Any]
#: What an item that is a local disk cannot say, but for the values that it may have, and why.
REFUSED: Sequence[tuple[str, Sequence[Any], str]] = (
    ("volume_type", (), "is for volumes; local disks lie with the server"),
    ("delete_on_termination", (True,), "must be true for a local disk, which goes with its server, or be left out"),
    ("disk_bus", ("virtio",), "must be virtio for a local disk, or be left out; flavor and image say what all of them "
                              "are behind (hw_disk_bus)"),
    ("readonly", (False,), "is for volumes; a local disk is the server's own to write to"),
    ("volume", (), "is for volumes"),
)


class LocalDisk(NamedTuple):
    """*file*: its name in the server's folder. *size*: bytes. *label*: of what is in it, ``swap`` or a file system.
    *device*: its name on a virtio bus, as the guest numbers its disks."""

    file: str
    size: int
    label: str
    device: str


def is_blank(item: Item) -> bool:
    """Whether an item of a mapping is an ephemeral or swap disk."""
    return item["source_type"] == "blank" and item.get("destination_type") in (None, "local")


def is_swap(item: Item) -> bool:
    """Whether a blank local item is the swap disk."""
    return bool(item.get("guest_format") == "swap")


def named(mapping: Sequence[Item]) -> Iterator[tuple[Item, str]]:
    """The blank local items of *mapping*, each with the name of its file. Ephemeral disks after the first are
    numbered."""
    at = 0
    for item in filter(is_blank, mapping):
        if is_swap(item):
            yield item, SWAP
        else:
            yield item, f"{EPHEMERAL}{at or ''}"
            at += 1


def local_disks(flavor: Item, mapping: Sequence[Item] = ()) -> list[LocalDisk]:
    """Those of a server, ephemeral disks first, in the order of *mapping*. A swap disk is never larger than the flavor
    says (MiB), and ephemeral disks without a size have all of it (GiB)."""
    if not (mapping or flavor["ephemeral"] or flavor["swap"]):
        return []
    items = list(named(mapping))
    sizes = [one.get("volume_size") or flavor["ephemeral"] for one, file in items if file != SWAP]
    found = [LocalDisk(f"{EPHEMERAL}{at or ''}", size * GIB, f"ephemeral{at}", f"vd{ascii_lowercase[1 + at]}")
             for at, size in enumerate(sizes or [flavor["ephemeral"]]) if size]
    swap = min([flavor["swap"], *filter(None, (one.get("volume_size") for one, file in items if file == SWAP))])
    if swap:
        found.append(LocalDisk(SWAP, swap * MIB, "swap", f"vd{ascii_lowercase[1 + len(found)]}"))
    return found


def ephemeral_gib(flavor: Item, mapping: Sequence[Item] = ()) -> int:
    """GiB of a server's ephemeral disks together."""
    return sum(one.size for one in local_disks(flavor, mapping) if one.file != SWAP) // GIB
