# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of the host that can be divided among guests (mediated devices, such as virtual GPUs): the devices in sysfs
that have a type named in the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from .pci import ADDRESS, setting_traits
from .sysfs import sysfs_entries, sysfs_text

if TYPE_CHECKING:
    from pathlib import Path


class Mdev(NamedTuple):
    """A mediated device. *parent*: the PCI address of the physical device that it is a part of. *type*: the mdev type,
    such as nvidia-35."""

    uuid: str
    parent: str
    type: str


class MdevParent(NamedTuple):
    """A physical device that can be split into at most *total* mediated devices of the mdev type *type*. *made*: the
    uuids of the mediated devices that exist. *node*: the NUMA node, -1 if unknown. *traits*: the traits from the
    settings."""

    address: str
    type: str
    node: int
    total: int
    made: frozenset[str]
    traits: tuple[str, ...] = ()


def mdev_parents(sysfs: Path, types: Sequence[Mapping[str, str]]) -> list[MdevParent]:
    """Return the physical devices that support one of *types*, sorted by PCI address. *sysfs*: the path of /sys.
    *types*: the setting ``enabled_mdev_types``, whose entries may name an ``address``. A device gets the first type
    that it supports and whose entry matches its address."""
    if not types:
        return []
    parents = []
    for folder in sysfs_entries(sysfs / "class/mdev_bus"):
        for spec in types:
            place = folder / "mdev_supported_types" / spec["type"]
            if ADDRESS.fullmatch(folder.name) and fnmatchcase(folder.name, spec.get("address", "*")) and place.is_dir():
                made = frozenset(path.name for path in sysfs_entries(place / "devices"))
                parents.append(MdevParent(folder.name, spec["type"], _number(folder / "numa_node", -1),
                                          _number(place / "available_instances", 0) + len(made), made,
                                          setting_traits(spec)))
                break
    return parents


def _number(path: Path, usual: int) -> int:
    try:
        return int(sysfs_text(path))
    except ValueError:
        return usual
