# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices of the host that can be divided among guests (mediated devices, such as virtual GPUs): those in sysfs of
which the settings name a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from .pci import ADDRESS, traits
from .sysfs import entries, text

if TYPE_CHECKING:
    from pathlib import Path


class Mdev(NamedTuple):
    """A part of the device *parent* (its PCI address), of that *type* (a word of its driver)."""

    uuid: str
    parent: str
    type: str


class MdevParent(NamedTuple):
    """A device that can be divided into *total* parts of a *type*, of which those with the uuids *made* exist. *node*:
    its NUMA cell, -1 where the host does not tell. *traits*: what the settings say of it."""

    address: str
    type: str
    node: int
    total: int
    made: frozenset[str]
    traits: tuple[str, ...] = ()


def parents(sysfs: Path, types: Sequence[Mapping[str, str]]) -> list[MdevParent]:
    """The devices under *sysfs* that have one of *types* (the setting ``enabled_mdev_types``), by address; each has the
    first type that it can have and that is meant for its address (row XDEV-01)."""
    if not types:
        return []
    found = []
    for folder in entries(sysfs / "class/mdev_bus"):
        for one in types:
            place = folder / "mdev_supported_types" / one["type"]
            if ADDRESS.fullmatch(folder.name) and fnmatchcase(folder.name, one.get("address", "*")) and place.is_dir():
                made = frozenset(path.name for path in entries(place / "devices"))
                found.append(MdevParent(folder.name, one["type"], _number(folder / "numa_node", -1),
                                        _number(place / "available_instances", 0) + len(made), made,
                                        traits(one)))
                break
    return found


def _number(path: Path, usual: int) -> int:
    try:
        return int(text(path))
    except ValueError:
        return usual
