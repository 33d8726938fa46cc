# SPDX-License-Identifier: GPL-3.0-or-later
"""Dedicated CPUs, NUMA cells and memory pages: the needs of a server and its placement on a host. Pure: agents choose
with these functions, and schedulers predict the choice.

Source: Nova's pages on CPU topologies and huge pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ..errors import InvalidField
from .cpus import cpu_set, cpu_text, masked_cpus

SMALL, LARGE, ANY_SIZE = "small", "large", "any"
#: KiB of a small page.
SMALL_KIB = 4


class GuestCell(NamedTuple):
    """A NUMA cell of a guest. *cpus*: its virtual CPUs. *pinned*: the virtual CPUs among them that are pinned, each to
    a dedicated host CPU. *memory_mb*: its memory in MiB.
    """

    cpus: tuple[int, ...]
    pinned: tuple[int, ...]
    memory_mb: int


class Needs(NamedTuple):
    """The NUMA requirements of a server. *cells*: the guest's NUMA cells. *page*: the memory page size, "" if none is
    requested. *threads*: the CPU thread policy. *emulator*: whether QEMU's own threads get a dedicated CPU. *networks*:
    physical networks. For each network, one of the host cells that the guest uses must have a network card, if the host
    reports the cells of its cards.
    """

    cells: tuple[GuestCell, ...]
    page: str = ""
    threads: str = "prefer"
    emulator: bool = False
    networks: tuple[str, ...] = ()

    @property
    def dedicated(self) -> int:
        """Return the number of dedicated CPUs that the server needs."""
        return sum(len(cell.pinned) for cell in self.cells) + self.emulator


class HostCell(NamedTuple):
    """A NUMA cell of a host: its free dedicated CPUs, its shared CPUs, the free memory in MiB, the free large pages
    (page size in KiB to number), the threads of each core, the sockets of its CPUs, and the *networks* (physical ones,
    and ``TUNNELS`` of ``core.bandwidth``) whose network cards are attached to the cell.
    """

    id: int
    dedicated: frozenset[int]
    shared: frozenset[int]
    memory_mb: int
    pages: Mapping[int, int] = {}
    cores: tuple[frozenset[int], ...] = ()
    sockets: frozenset[int] = frozenset()
    networks: frozenset[str] = frozenset()


# Needs of a server --------------------------------------------------------------------------------------------------
def pinned_cpus(hardware: Mapping[str, Any], vcpus: int) -> frozenset[int]:
    """Return the virtual CPUs that are pinned to dedicated host CPUs, of a server with this *hardware* and number of
    *vcpus*.
    """
    policy = hardware.get("cpu_policy")
    if policy == "mixed":
        mask = hardware.get("cpu_dedicated_mask")
        return cpu_set(mask) if mask else realtime_cpus(hardware, vcpus)
    return frozenset(range(vcpus)) if policy == "dedicated" else frozenset()


def realtime_cpus(hardware: Mapping[str, Any], vcpus: int) -> frozenset[int]:
    """Return the virtual CPUs that run in real time, of a server with this *hardware* and number of *vcpus*."""
    if not hardware.get("cpu_realtime"):
        return frozenset()
    mask = hardware.get("cpu_realtime_mask")
    return frozenset(range(vcpus)) if mask is None else masked_cpus(mask, vcpus)


def dedicated_cpu_count(hardware: Mapping[str, Any], vcpus: int) -> int:
    """Return the number of dedicated host CPUs (the class PCPU) that a server with this *hardware* needs."""
    return len(pinned_cpus(hardware, vcpus)) + (hardware.get("emulator_threads") == "isolate")


def numa_needs(hardware: Mapping[str, Any], vcpus: int, ram: int) -> Optional[Needs]:
    """Return the NUMA requirements of a server with this *hardware* (validated by ``check_numa``), number of *vcpus*,
    and *ram* in MiB; ``None`` if it may run on any NUMA cells. Dedicated CPUs or a page size imply one NUMA cell, as in
    Nova.
    """
    pinned, page = pinned_cpus(hardware, vcpus), hardware.get("mem_page_size", "")
    if not (pinned or page or "numa_nodes" in hardware):
        return None
    count = hardware.get("numa_nodes", 1)
    cpus = [cpu_set(text) for text in hardware.get("numa_cpus", ())] or [
        frozenset(range(at * vcpus // count, (at + 1) * vcpus // count)) for at in range(count)]
    memory = hardware.get("numa_mem") or [ram // count] * count
    cells = tuple(GuestCell(tuple(sorted(cell_cpus)), tuple(sorted(cell_cpus & pinned)), mib)
                  for cell_cpus, mib in zip(cpus, memory))
    return Needs(cells, page, hardware.get("cpu_thread_policy", "prefer"),
                 hardware.get("emulator_threads") == "isolate")


def check_numa(hardware: Mapping[str, Any], vcpus: int, ram: Optional[int] = None) -> None:
    """Raise ``InvalidField`` for CPU and NUMA fields of *hardware* that contradict each other, or do not fit the number
    of *vcpus* or *ram* (MiB; ``None``: unknown).
    """
    _check_cpus(hardware, vcpus)
    if hardware.get("locked_memory") and "mem_page_size" not in hardware:
        raise InvalidField("hardware.locked_memory", "needs mem_page_size (hw:mem_page_size)")
    nodes = hardware.get("numa_nodes")
    if nodes is None:
        for name in ("numa_cpus", "numa_mem"):
            if name in hardware:
                raise InvalidField("hardware.%s" % name, "needs numa_nodes (hw:numa_nodes)")
        return
    if nodes > vcpus:
        raise InvalidField("hardware.numa_nodes", "must be no more than the %d virtual CPUs of the server" % vcpus,
                           nodes)
    if ("numa_cpus" in hardware) != ("numa_mem" in hardware):
        raise InvalidField("hardware.numa_cpus", "must be set together with numa_mem: for each cell both, or neither")
    if "numa_cpus" in hardware:
        _check_cells(hardware, nodes, vcpus, ram)
    elif vcpus % nodes or (ram or 0) % nodes:
        raise InvalidField("hardware.numa_nodes", "must divide the %d virtual CPUs and the memory of the server "
                           "evenly; else say numa_cpus and numa_mem of each cell" % vcpus, nodes)


def _check_cpus(hardware: Mapping[str, Any], vcpus: int) -> None:
    policy, mask = hardware.get("cpu_policy", "shared"), hardware.get("cpu_dedicated_mask")
    named = mask is not None or ("cpu_realtime" in hardware and "cpu_realtime_mask" in hardware)
    if (mask is not None and policy != "mixed") or (policy == "mixed" and not named):
        raise InvalidField("hardware.cpu_dedicated_mask", "must be set where cpu_policy is mixed, and only there", mask)
    if mask is not None:
        dedicated = cpu_set(mask)
        if max(dedicated) >= vcpus or len(dedicated) == vcpus:
            raise InvalidField("hardware.cpu_dedicated_mask", "must name some of the virtual CPUs 0 to %d, and not all "
                               "of them" % (vcpus - 1), mask)
    if "cpu_realtime" in hardware:
        _check_realtime(hardware, vcpus)
    for name, needed in (("cpu_thread_policy", None), ("emulator_threads", "isolate")):
        if policy == "shared" and name in hardware and needed in (None, hardware[name]):
            raise InvalidField("hardware.%s" % name, "needs cpu_policy dedicated or mixed", hardware[name])


def _check_realtime(hardware: Mapping[str, Any], vcpus: int) -> None:
    if hardware.get("cpu_policy", "shared") == "shared":
        raise InvalidField("hardware.cpu_realtime", "needs cpu_policy dedicated or mixed (hw:cpu_policy)", True)
    mask, cpus = hardware.get("cpu_realtime_mask"), realtime_cpus(hardware, vcpus)
    if mask is None and "emulator_threads" not in hardware:
        raise InvalidField("hardware.cpu_realtime", "needs cpu_realtime_mask (hw:cpu_realtime_mask), which leaves "
                           "virtual CPUs for QEMU's own threads, or emulator_threads (hw:emulator_threads_policy)",
                           True)
    if mask is not None and "cpu_dedicated_mask" in hardware:
        raise InvalidField("hardware.cpu_realtime_mask", "must not be set together with cpu_dedicated_mask: with "
                           "cpu_policy mixed it names the virtual CPUs that have one for themselves", mask)
    if not cpus or (mask and max(cpu_set(mask.replace("^", ""))) >= vcpus):
        raise InvalidField("hardware.cpu_realtime_mask", "must be some of the virtual CPUs 0 to %d, and name no other"
                           % (vcpus - 1), mask)
    if len(cpus) == vcpus and "emulator_threads" not in hardware:
        raise InvalidField("hardware.cpu_realtime_mask", "must leave a virtual CPU for QEMU's own threads, or "
                           "emulator_threads (hw:emulator_threads_policy) must say where they are", mask)
    if not cpus <= pinned_cpus(hardware, vcpus):
        raise InvalidField("hardware.cpu_realtime", "needs virtual CPUs that have one for themselves: "
                           "cpu_dedicated_mask does not name %s" % cpu_text(cpus - pinned_cpus(hardware, vcpus)))


def _check_cells(hardware: Mapping[str, Any], nodes: int, vcpus: int, ram: Optional[int]) -> None:
    for name in ("numa_cpus", "numa_mem"):
        if len(hardware[name]) != nodes or None in hardware[name]:
            raise InvalidField("hardware.%s" % name, "must say one for each of the %d cells, from 0 on" % nodes)
    named_cpus: set[int] = set()
    for text in hardware["numa_cpus"]:
        cpus = cpu_set(text)
        if cpus & named_cpus or max(cpus) >= vcpus:
            raise InvalidField("hardware.numa_cpus", "must name each of the virtual CPUs 0 to %d once" % (vcpus - 1),
                               hardware["numa_cpus"])
        named_cpus |= cpus
    if len(named_cpus) != vcpus:
        raise InvalidField("hardware.numa_cpus", "must name each of the virtual CPUs 0 to %d once; missing: %s" % (
            vcpus - 1, cpu_text(frozenset(range(vcpus)) - named_cpus)), hardware["numa_cpus"])
    if ram is not None and sum(hardware["numa_mem"]) != ram:
        raise InvalidField("hardware.numa_mem", "must add up to the %d MiB of the server, and is %d"
                           % (ram, sum(hardware["numa_mem"])), hardware["numa_mem"])


# Placement on a host -------------------------------------------------------------------------------------------------
#: The host CPUs and memory of a server: ``cells``, for each guest cell ``host`` (id of the host's cell), ``memory_mb``,
#: ``page`` (KiB) and ``pins`` (host CPU by virtual CPU); and ``emulator``, the CPU for QEMU's threads, if any.
Placement = dict[str, Any]


class NoFit(Exception):
    """The error for a host that does not have enough CPUs or memory for a server's NUMA requirements. The message says
    what is missing.
    """


def place_guest(cells: Sequence[HostCell], needs: Needs, cell_weights: Mapping[int, int] = MappingProxyType({}),
                pack: bool = True) -> Placement:
    """Choose a different host cell of *cells* for each guest cell of *needs*, and return the placement. For each guest
    cell, the placement has the host cell, the host CPUs of pinned virtual CPUs, the memory and the page size. Raises
    ``NoFit``.

    Host cells with a higher weight in *cell_weights* (see ``pci.preferred_cells``) are preferred. Among cells of equal
    weight, those with the fewest free dedicated CPUs are preferred (*pack*), or those with the most. For each network
    in *needs*, at least one chosen cell has a network card. A network without cards at any of the *cells* is ignored.
    """
    if len(needs.cells) > len(cells):
        raise NoFit("it needs %d NUMA cells, and the host has %d" % (len(needs.cells), len(cells)))
    free = sum(len(cell.dedicated) for cell in cells)
    if needs.dedicated > free:
        raise NoFit("it needs %d dedicated CPUs, and %d are free" % (needs.dedicated, free))
    way = 1 if pack else -1
    order = sorted(cells, key=lambda cell: (-cell_weights.get(cell.id, 0), way * len(cell.dedicated),
                                            way * cell.memory_mb,
                                            cell.id))
    fits: list[dict[int, Placement]] = []
    for at, guest in enumerate(needs.cells):
        candidates, lacks = {}, ""
        for index, host in enumerate(order):
            try:
                candidates[index] = _place_cell(host, guest, needs, bool(needs.emulator and not at))
            except NoFit as error:
                lacks = str(error)
        if not candidates:
            raise NoFit(lacks if len(cells) == 1 else "no NUMA cell of the host suits cell %d: %s" % (at, lacks))
        fits.append(candidates)
    chosen = next(filter(None, (_match_cells(fits, near) for near in _near_choices(order, needs.networks))), None)
    if chosen is None and _match_cells(fits):
        raise NoFit("it is to be near the networks %s, and its cells fit nowhere so that one is near each of them"
                    % ", ".join(sorted(needs.networks)))
    if chosen is None:
        raise NoFit("the host's NUMA cells that suit one cell of the guest each are not enough for all %d of them"
                    % len(needs.cells))
    placed_cells = [fits[at][index] for at, index in enumerate(chosen)]
    emulator = [cell.pop("emulator") for cell in placed_cells if "emulator" in cell]
    return {"cells": placed_cells, **({"emulator": emulator[0]} if emulator else {})}


def _near_choices(order: Sequence[HostCell], networks: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """Yield combinations of host cells that together have a network card of each of the *networks*: tuples of ascending
    indexes into *order*, the host's cells. A network without a card at any of the cells is ignored.
    """
    near_cells = {frozenset(at for at, cell in enumerate(order) if name in cell.networks) for name in networks}
    # A network near all cells of another network, and more, adds no constraint to it. So the number of choices depends
    # on the host's cells, not on the number of networks of a server.
    least = sorted(sorted(places) for places in near_cells if places
                   and not any(other and other < places for other in near_cells))
    yield from dict.fromkeys(tuple(sorted(set(places))) for places in product(*least))


def _match_cells(fits: Sequence[Mapping[int, Placement]], near: Sequence[int] = ()) -> Optional[list[int]]:
    """Match each guest cell to a different host cell. Return the host cell index of each guest cell, or ``None`` if
    that is impossible. *fits*: for each guest cell, a mapping whose keys are the indexes of the host cells that it fits
    on. *near*: indexes of host cells that must be used. Lower indexes are preferred.
    """
    taken = _cover_near_cells(fits, near)
    if taken is None:
        return None

    def find(at: int, tried: set[int]) -> bool:
        for index in sorted(fits[at], key=lambda candidate: (candidate in taken, candidate)):
            if index not in tried:
                tried.add(index)
                if index not in taken or find(taken[index], tried):
                    taken[index] = at
                    return True
        return False

    if not all(at in taken.values() or find(at, set()) for at in range(len(fits))):
        return None
    by_guest = {at: index for index, at in taken.items()}
    return [by_guest[at] for at in range(len(fits))]


def _cover_near_cells(fits: Sequence[Mapping[int, Placement]], near: Sequence[int]) -> Optional[dict[int, int]]:
    """Match each host cell in *near* to a different guest cell. Return ``{index of the host cell: index of the guest
    cell}``, or ``None`` if that is impossible. *fits*: for each guest cell, a mapping whose keys are the indexes of the
    host cells that it fits on.
    """
    taken: dict[int, int] = {}

    def give(index: int, tried: set[int]) -> bool:
        holders = {at: host_index for host_index, at in taken.items()}
        for at in range(len(fits)):
            if index in fits[at] and at not in tried:
                tried.add(at)
                if at not in holders or give(holders[at], tried):
                    taken[index] = at
                    return True
        return False

    return taken if all(give(index, set()) for index in near) else None


def _place_cell(host: HostCell, guest: GuestCell, needs: Needs, emulator: bool) -> Placement:
    """Return the resources of the host's NUMA cell *host* that the guest's NUMA cell *guest* gets: CPUs, memory and
    page size. *emulator*: whether QEMU's own threads get a dedicated CPU in this cell too. Raises ``NoFit``.
    """
    floating = len(guest.cpus) - len(guest.pinned)
    if floating > len(host.shared):
        raise NoFit("it needs %d shared CPUs, and the cell has %d" % (floating, len(host.shared)))
    cpus = _choose_cpus(host, len(guest.pinned), needs.threads)
    page = _page_size(host, guest.memory_mb, needs.page)
    placement: Placement = {"host": host.id, "memory_mb": guest.memory_mb, "page": page,
                            "pins": {str(vcpu): cpu for vcpu, cpu in zip(guest.pinned, cpus)}}
    if emulator:
        spare_cpus = sorted(host.dedicated.difference(cpus))
        if not spare_cpus:
            raise NoFit("it needs a dedicated CPU for QEMU's own threads beside %d for its virtual CPUs, and %d are "
                        "free in the cell" % (len(cpus), len(host.dedicated)))
        placement["emulator"] = spare_cpus[0]
    return placement


def _choose_cpus(host: HostCell, count: int, threads: str) -> list[int]:
    """Return *count* free dedicated CPUs of the NUMA cell *host*, or raise ``NoFit``. *threads*: the CPU thread policy.
    ``require``: CPUs of the same cores; ``prefer``: such CPUs if possible; ``isolate``: only on hosts with one thread
    per core.
    """
    if not count:
        return []
    if count > len(host.dedicated):
        raise NoFit("it needs %d dedicated CPUs in a cell, and %d are free there" % (count, len(host.dedicated)))
    smt = [core for core in host.cores if len(core) > 1]
    if threads == "isolate" and smt:
        raise NoFit("cpu_thread_policy isolate needs CPUs whose cores have one thread each")
    together = [cpu for core in smt if len(free := core & host.dedicated) > 1 for cpu in sorted(free)]
    if threads == "require" and len(together) < count:
        raise NoFit("cpu_thread_policy require needs %d dedicated CPUs that are threads of the same cores, and %d are "
                    "free in the cell" % (count, len(together)))
    if (count > 1 and len(together) >= count) or threads == "require":
        return together[:count]
    # Take cores in partial use first, so that whole cores stay for guests that want threads together.
    return sorted(host.dedicated, key=lambda cpu: (cpu in together, cpu))[:count]


def _page_size(host: HostCell, memory_mb: int, size: str) -> int:
    """Choose and return the page size in KiB for *memory_mb* MiB of memory in the NUMA cell *host*. *size*: the
    requested page size: "", small, large, any, or KiB. Raises ``NoFit``.
    """
    sizes = sorted((kib for kib in host.pages if kib > SMALL_KIB), reverse=True)
    accepted = {"": [SMALL_KIB], SMALL: [SMALL_KIB], LARGE: sizes, ANY_SIZE: [*sizes, SMALL_KIB]}.get(size)
    for kib in [int(size)] if accepted is None else accepted:
        if kib == SMALL_KIB:
            if memory_mb <= host.memory_mb:
                return kib
        elif memory_mb * 1024 % kib == 0 and host.pages.get(kib, 0) * kib >= memory_mb * 1024:
            return kib
    if accepted == [SMALL_KIB]:
        raise NoFit("it needs %d MiB of memory in a cell, and %d are free there" % (memory_mb, host.memory_mb))
    free_pages = ", ".join("%d of %d KiB" % (host.pages[kib], kib) for kib in sizes) or "none"
    raise NoFit("it needs %d MiB in pages of mem_page_size %s, and free in the cell are: %s" % (
        memory_mb, size if accepted is not None else "%s KiB" % size, free_pages))


def held_cpus(placement: Mapping[str, Any]) -> frozenset[int]:
    """Return the dedicated host CPUs that a server's *placement* (the result of ``place_guest``) uses: for pinned
    virtual CPUs, and for QEMU's own threads.
    """
    pinned = {cpu for cell in placement["cells"] for cpu in cell["pins"].values()}
    return frozenset(pinned | ({placement["emulator"]} if "emulator" in placement else set()))


def remaining_cells(cells: Iterable[HostCell], placements: Iterable[Mapping[str, Any]]) -> list[HostCell]:
    """Return the host's *cells* with the CPUs and memory that these *placements* of servers (results of
    ``place_guest``) leave free.
    """
    cpus: set[int] = set()
    memory: dict[tuple[int, int], int] = {}
    for placement in placements:
        cpus |= held_cpus(placement)
        for cell in placement["cells"]:
            key = cell["host"], cell["page"]
            memory[key] = memory.get(key, 0) + cell["memory_mb"]
    return [cell._replace(
        dedicated=cell.dedicated - cpus, memory_mb=cell.memory_mb - memory.get((cell.id, SMALL_KIB), 0),
        pages={kib: count - memory.get((cell.id, kib), 0) * 1024 // kib for kib, count in cell.pages.items()})
        for cell in cells]


def lost_placement(cells: Iterable[HostCell], placement: Mapping[str, Any], needs: Needs) -> str:
    """Return the reason why a server with these *needs* cannot keep its *placement* (the result of ``place_guest``) on
    a host with these *cells*; "" if it can. The caller counts the server's own CPUs and memory as free in *cells*.
    """
    cells_by_id = {cell.id: cell for cell in cells}
    if [sorted(map(int, cell["pins"])) for cell in placement["cells"]] != [list(cell.pinned)
                                                                           for cell in needs.cells] or \
            [cell["memory_mb"] for cell in placement["cells"]] != [cell.memory_mb for cell in needs.cells] or \
            ("emulator" in placement) != needs.emulator:
        return "it is for other needs"
    if missing_cpus := held_cpus(placement) - {cpu for cell in cells_by_id.values() for cpu in cell.dedicated}:
        return "CPUs %s are not dedicated ones, or taken" % cpu_text(missing_cpus)
    for placed_cell, guest in zip(placement["cells"], needs.cells):
        cell = cells_by_id.get(placed_cell["host"])
        if cell is None or not cell.dedicated.issuperset(placed_cell["pins"].values()):
            return "NUMA cell %d is gone, or has not its CPUs" % placed_cell["host"]
        try:
            _page_size(cell, guest.memory_mb, str(placed_cell["page"]))
            if needs.page.isdigit() and int(needs.page) != placed_cell["page"]:
                raise NoFit("its pages have another size")
            if len(guest.cpus) - len(guest.pinned) > len(cell.shared):
                raise NoFit("the cell has %d shared CPUs" % len(cell.shared))
        except NoFit as why:
            return "NUMA cell %d: %s" % (placed_cell["host"], why)
    return ""


def report_cells(cells: Iterable[HostCell], free: Iterable[HostCell]) -> Iterator[dict[str, Any]]:
    """Yield an item of the field ``numa_cells`` of ``kinds.Host`` for each cell. *cells*: the cells with their total
    CPUs and memory. *free*: the same cells, with only the free CPUs and memory.
    """
    for cell, free_cell in zip(cells, free):
        parts = [{"cpus_dedicated": cpu_text(source.dedicated), "memory_mb": source.memory_mb,
                  "pages": {str(kib): count for kib, count in sorted(source.pages.items())}}
                 for source in (cell, free_cell)]
        yield {"id": cell.id, "cpus_shared": cpu_text(cell.shared), **parts[0], "free": parts[1],
               "threads": [cpu_text(core) for core in cell.cores if len(core) > 1],
               "sockets": sorted(cell.sockets), "networks": sorted(cell.networks)}


def parse_cells(cells: Iterable[Mapping[str, Any]]) -> list[HostCell]:
    """Return the ``HostCell`` of each item in *cells*, the field ``numa_cells`` of ``kinds.Host``."""
    def of(text: str) -> frozenset[int]:
        return cpu_set(text) if text else frozenset()
    return [HostCell(cell["id"], of(cell["cpus_dedicated"]), of(cell["cpus_shared"]), cell["memory_mb"],
                     {int(kib): count for kib, count in cell["pages"].items()}, tuple(map(of, cell["threads"])),
                     frozenset(cell.get("sockets") or ()), frozenset(cell.get("networks") or ()))
            for cell in cells]
