# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA cells of a host as resource providers below it: their names, inventories and allocations. Pure: agents report
them, and clouds show them.

The host's provider counts all its dedicated CPUs (``PCPU``) and its memory (``MEMORY_MB``). The cells' providers count
the same under other classes, so that nothing counts twice: CPUs and small pages under standard classes of
``os-resource-classes``, and large pages under a custom class for each size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .numa import SMALL_KIB, HostCell, Placement

#: Trait that only providers of cells have (of ``os-traits``).
ROOT = "HW_NUMA_ROOT"
#: Classes of dedicated CPUs, and of MiB in small pages.
CPUS, MEMORY = "NUMA_THREAD", "NUMA_MEMORY_MB"
CLASSES = (CPUS, MEMORY)
_PAGES, _UNIT = "CUSTOM_HUGEPAGES_", "KB"


def pages_class(kib: int) -> str:
    """Return the resource class that counts large pages of *kib* KiB, such as ``CUSTOM_HUGEPAGES_2048KB``."""
    return "%s%d%s" % (_PAGES, kib, _UNIT)


def is_cell_class(resource_class: str) -> bool:
    """Return whether *resource_class* is one of the classes that count the CPUs and memory of NUMA cells."""
    size = resource_class[len(_PAGES):-len(_UNIT)]
    return resource_class in CLASSES or (size.isdigit() and resource_class == pages_class(int(size)))


def is_cell_provider(provider: Mapping[str, Any]) -> bool:
    """Return whether the resource provider *provider* (an item of the field ``providers`` of ``kinds.Host``) is a NUMA
    cell.
    """
    return ROOT in provider["traits"]


def cell_provider_name(cell: int) -> str:
    """Return the name of the resource provider of a host's NUMA cell *cell*."""
    return "NUMA%d" % cell


def cell_parents(cells: Iterable[int]) -> dict[int, str]:
    """Return the name of the resource provider of each NUMA cell, by the cell's number. This provider is the parent of
    the providers of devices that are attached to the cell.
    """
    return {cell: cell_provider_name(cell) for cell in cells}


def cell_providers(cells: Iterable[HostCell],
                   placements_by_server: Mapping[str, Iterable[Placement]]) -> list[dict[str, Any]]:
    """Return a resource provider (an item of the field ``providers`` of ``kinds.Host``) for each of a host's NUMA
    *cells*. *placements_by_server*: by server uuid, its placements (results of ``numa.place_guest``); a server that is
    being resized has two.
    """
    allocations: dict[int, dict[str, dict[str, int]]] = {}
    for server, placements in sorted(placements_by_server.items()):
        for cell, amounts in _amounts(placements).items():
            allocations.setdefault(cell, {})[server] = amounts
    return [{"name": cell_provider_name(cell.id), "parent": "", "traits": [ROOT], "held": allocations.get(cell.id, {}),
             "inventories": {
        kind: {"total": total, "reserved": 0, "max_unit": total} for kind, total in _totals(cell).items() if total > 0}}
        for cell in cells]


def _totals(cell: HostCell) -> dict[str, int]:
    return {CPUS: len(cell.dedicated), MEMORY: cell.memory_mb,
            **{pages_class(kib): count for kib, count in sorted(cell.pages.items()) if kib > SMALL_KIB}}


def _amounts(placements: Iterable[Placement]) -> dict[int, dict[str, int]]:
    """Return the amounts that one server's *placements* (results of ``numa.place_guest``) use, by NUMA cell and
    resource class. A CPU that is in two placements (during a resize) counts once.
    """
    cpus: dict[int, set[int]] = {}
    amounts_by_cell: dict[int, dict[str, int]] = {}
    for placement in placements:
        for at, cell in enumerate(placement["cells"]):
            cell_cpus = cpus.setdefault(cell["host"], set())
            cell_cpus.update(cell["pins"].values())
            if not at and "emulator" in placement:  # it is on the cell of the guest's first cell
                cell_cpus.add(placement["emulator"])
            small = cell["page"] == SMALL_KIB
            kind = MEMORY if small else pages_class(cell["page"])
            amounts = amounts_by_cell.setdefault(cell["host"], {})
            amounts[kind] = amounts.get(kind, 0) + (
                cell["memory_mb"] if small else cell["memory_mb"] * 1024 // cell["page"])
    return {cell: {**({CPUS: len(cpus[cell])} if cpus[cell] else {}), **amounts} for cell,
            amounts in amounts_by_cell.items()}
