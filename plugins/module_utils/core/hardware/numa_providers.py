# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of a host as resource providers below it: what they are called, what they have, and what servers have of
them. Pure: agents tell it, and clouds show it.

A host counts all its dedicated CPUs (``PCPU``) and its memory (``MEMORY_MB``). What a cell has of them is of other
classes, so that nothing is counted twice: those of ``os-resource-classes`` for CPUs and small pages, and a custom one
for each size of large pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .numa import SMALL_KIB, HostCell, Placement

#: What only providers of cells have (of ``os-traits``).
ROOT = "HW_NUMA_ROOT"
#: Dedicated CPUs; MiB of small pages.
CPUS, MEMORY = "NUMA_THREAD", "NUMA_MEMORY_MB"
CLASSES = (CPUS, MEMORY)
_PAGES, _UNIT = "CUSTOM_HUGEPAGES_", "KB"


def pages_class(kib: int) -> str:
    """The class that counts large pages of *kib* KiB, named as Linux names their folder (``hugepages-2048kB``)."""
    return "%s%d%s" % (_PAGES, kib, _UNIT)


def is_of_cells(resource_class: str) -> bool:
    """Whether a class counts what NUMA cells have."""
    size = resource_class[len(_PAGES):-len(_UNIT)]
    return resource_class in CLASSES or (size.isdigit() and resource_class == pages_class(int(size)))


def is_cell(provider: Mapping[str, Any]) -> bool:
    """Whether one of the field ``providers`` of ``kinds.Host`` is a NUMA cell."""
    return ROOT in provider["traits"]


def name(cell: int) -> str:
    """What the provider of a cell is called below its host."""
    return "NUMA%d" % cell


def parents(cells: Iterable[int]) -> dict[int, str]:
    """Cell to the provider that devices near it are below."""
    return {cell: name(cell) for cell in cells}


def providers(cells: Iterable[HostCell], had: Mapping[str, Iterable[Placement]]) -> list[dict[str, Any]]:
    """*cells* (all that there is of them) as ``providers`` of ``kinds.Host``. *had*: what servers have, by uuid; one
    that changes has two placements."""
    held: dict[int, dict[str, dict[str, int]]] = {}
    for server, placements in sorted(had.items()):
        for cell, amounts in _amounts(placements).items():
            held.setdefault(cell, {})[server] = amounts
    return [{"name": name(cell.id), "parent": "", "traits": [ROOT], "held": held.get(cell.id, {}), "inventories": {
        kind: {"total": total, "reserved": 0, "max_unit": total} for kind, total in _totals(cell).items() if total > 0}}
        for cell in cells]


def _totals(cell: HostCell) -> dict[str, int]:
    return {CPUS: len(cell.dedicated), MEMORY: cell.memory_mb,
            **{pages_class(kib): count for kib, count in sorted(cell.pages.items()) if kib > SMALL_KIB}}


def _amounts(placements: Iterable[Placement]) -> dict[int, dict[str, int]]:
    """What a server has of each cell, by class. A CPU that it keeps while it changes counts once."""
    cpus: dict[int, set[int]] = {}
    found: dict[int, dict[str, int]] = {}
    for one in placements:
        for at, cell in enumerate(one["cells"]):
            own = cpus.setdefault(cell["host"], set())
            own.update(cell["pins"].values())
            if not at and "emulator" in one:  # of the cell that the guest's first one is on
                own.add(one["emulator"])
            small = cell["page"] == SMALL_KIB
            kind = MEMORY if small else pages_class(cell["page"])
            amounts = found.setdefault(cell["host"], {})
            amounts[kind] = amounts.get(kind, 0) + (
                cell["memory_mb"] if small else cell["memory_mb"] * 1024 // cell["page"])
    return {cell: {**({CPUS: len(cpus[cell])} if cpus[cell] else {}), **amounts} for cell, amounts in found.items()}
