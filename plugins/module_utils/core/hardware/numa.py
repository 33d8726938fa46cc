# SPDX-License-Identifier: GPL-3.0-or-later
"""Dedicated CPUs, NUMA cells and memory pages: what a server needs of a host's, and which of them it gets. Pure: agents
choose by it, and schedulers foresee the choice.

Source: Nova's pages on CPU topologies and huge pages (spec rows A3, A4, A6; XCPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

from ..errors import InvalidField
from .cpus import cpu_set, cpu_text, masked

SMALL, LARGE, ANY_SIZE = "small", "large", "any"
#: KiB of a small page.
SMALL_KIB = 4


class GuestCell(NamedTuple):
    """A NUMA cell of a guest: its virtual CPUs, those of them that have a CPU of the host for themselves, MiB."""

    cpus: tuple[int, ...]
    pinned: tuple[int, ...]
    memory_mb: int


class Needs(NamedTuple):
    """What a server needs. *page*: "" where nothing is said. *emulator*: whether QEMU's own threads have a CPU for
    themselves. *networks*: those that it is to be near, where the host says near which cells they are."""

    cells: tuple[GuestCell, ...]
    page: str = ""
    threads: str = "prefer"
    emulator: bool = False
    networks: tuple[str, ...] = ()

    @property
    def dedicated(self) -> int:
        """How many CPUs of the host it has for itself."""
        return sum(len(cell.pinned) for cell in self.cells) + self.emulator


class HostCell(NamedTuple):
    """A NUMA cell of a host: what is free of its dedicated CPUs, MiB and large pages (by KiB); its shared CPUs, the
    threads of each core, the sockets that its CPUs are on, and the *networks* (physical ones, and ``TUNNELS`` of
    ``core.bandwidth``) whose cards are near it."""

    id: int
    dedicated: frozenset[int]
    shared: frozenset[int]
    memory_mb: int
    pages: Mapping[int, int] = {}
    cores: tuple[frozenset[int], ...] = ()
    sockets: frozenset[int] = frozenset()
    networks: frozenset[str] = frozenset()


# What a server needs ------------------------------------------------------------------------------------------------
def pinned(hardware: Mapping[str, Any], vcpus: int) -> frozenset[int]:
    """The virtual CPUs that have a CPU of the host for themselves."""
    policy = hardware.get("cpu_policy")
    if policy == "mixed":
        mask = hardware.get("cpu_dedicated_mask")
        return cpu_set(mask) if mask else realtime(hardware, vcpus)
    return frozenset(range(vcpus)) if policy == "dedicated" else frozenset()


def realtime(hardware: Mapping[str, Any], vcpus: int) -> frozenset[int]:
    """The virtual CPUs that run in real time (spec rows XCPU-13, A5)."""
    if not hardware.get("cpu_realtime"):
        return frozenset()
    mask = hardware.get("cpu_realtime_mask")
    return frozenset(range(vcpus)) if mask is None else masked(mask, vcpus)


def dedicated(hardware: Mapping[str, Any], vcpus: int) -> int:
    """How many dedicated CPUs a server of this *hardware* takes of a host (the class PCPU)."""
    return len(pinned(hardware, vcpus)) + (hardware.get("emulator_threads") == "isolate")


def needs(hardware: Mapping[str, Any], vcpus: int, ram: int) -> Optional[Needs]:
    """What a server of this *hardware* (checked by ``check``) needs; ``None`` for one that may be anywhere. Dedicated
    CPUs and a page size imply one NUMA cell, as in Nova (XCPU-02)."""
    own, page = pinned(hardware, vcpus), hardware.get("mem_page_size", "")
    if not (own or page or "numa_nodes" in hardware):
        return None
    count = hardware.get("numa_nodes", 1)
    cpus = [cpu_set(one) for one in hardware.get("numa_cpus", ())] or [
        frozenset(range(at * vcpus // count, (at + 1) * vcpus // count)) for at in range(count)]
    memory = hardware.get("numa_mem") or [ram // count] * count
    cells = tuple(GuestCell(tuple(sorted(one)), tuple(sorted(one & own)), mib)
                  for one, mib in zip(cpus, memory))
    return Needs(cells, page, hardware.get("cpu_thread_policy", "prefer"),
                 hardware.get("emulator_threads") == "isolate")


def check(hardware: Mapping[str, Any], vcpus: int, ram: Optional[int] = None) -> None:
    """Raise ``InvalidField`` for what does not go together, or does not suit so many virtual CPUs and MiB (``None``:
    not known here)."""
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
        own = cpu_set(mask)
        if max(own) >= vcpus or len(own) == vcpus:
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
    mask, cpus = hardware.get("cpu_realtime_mask"), realtime(hardware, vcpus)
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
    if not cpus <= pinned(hardware, vcpus):
        raise InvalidField("hardware.cpu_realtime", "needs virtual CPUs that have one for themselves: "
                           "cpu_dedicated_mask does not name %s" % cpu_text(cpus - pinned(hardware, vcpus)))


def _check_cells(hardware: Mapping[str, Any], nodes: int, vcpus: int, ram: Optional[int]) -> None:
    for name in ("numa_cpus", "numa_mem"):
        if len(hardware[name]) != nodes or None in hardware[name]:
            raise InvalidField("hardware.%s" % name, "must say one for each of the %d cells, from 0 on" % nodes)
    seen: set[int] = set()
    for text in hardware["numa_cpus"]:
        cpus = cpu_set(text)
        if cpus & seen or max(cpus) >= vcpus:
            raise InvalidField("hardware.numa_cpus", "must name each of the virtual CPUs 0 to %d once" % (vcpus - 1),
                               hardware["numa_cpus"])
        seen |= cpus
    if len(seen) != vcpus:
        raise InvalidField("hardware.numa_cpus", "must name each of the virtual CPUs 0 to %d once; missing: %s" % (
            vcpus - 1, cpu_text(frozenset(range(vcpus)) - seen)), hardware["numa_cpus"])
    if ram is not None and sum(hardware["numa_mem"]) != ram:
        raise InvalidField("hardware.numa_mem", "must add up to the %d MiB of the server, and is %d"
                           % (ram, sum(hardware["numa_mem"])), hardware["numa_mem"])


# What it gets -------------------------------------------------------------------------------------------------------
#: What a server has of its host, as its document keeps it: ``cells``, for each of the guest's ``host`` (id of the
#: host's), ``memory_mb``, ``page`` (KiB) and ``pins`` (CPU of the host by virtual CPU); and ``emulator`` (a CPU).
Placement = dict[str, Any]


class NoFit(Exception):
    """A host has not what a server needs; the message says what it lacks."""


def place(cells: Sequence[HostCell], asked: Needs, worth: Mapping[int, int] = MappingProxyType({}),
          pack: bool = True) -> Placement:
    """Which of the host's *cells* a server gets: each cell of the guest one of its own, those that are *worth* more for
    their devices first, then the fullest that do, or else (*pack*) the emptiest (XCPU-03). One at least is near each of
    the networks that it needs (rows NET-04 to NET-06); those that are near no cell of the host do not count. Raises
    ``NoFit``."""
    if len(asked.cells) > len(cells):
        raise NoFit("it needs %d NUMA cells, and the host has %d" % (len(asked.cells), len(cells)))
    free = sum(len(one.dedicated) for one in cells)
    if asked.dedicated > free:
        raise NoFit("it needs %d dedicated CPUs, and %d are free" % (asked.dedicated, free))
    way = 1 if pack else -1
    order = sorted(cells, key=lambda one: (-worth.get(one.id, 0), way * len(one.dedicated), way * one.memory_mb,
                                           one.id))
    fits: list[dict[int, Placement]] = []
    for at, guest in enumerate(asked.cells):
        found, lacks = {}, ""
        for index, host in enumerate(order):
            try:
                found[index] = _cell(host, guest, asked, bool(asked.emulator and not at))
            except NoFit as error:
                lacks = str(error)
        if not found:
            raise NoFit(lacks if len(cells) == 1 else "no NUMA cell of the host suits cell %d: %s" % (at, lacks))
        fits.append(found)
    chosen = next(filter(None, (_matched(fits, near) for near in _near(order, asked.networks))), None)
    if chosen is None and _matched(fits):
        raise NoFit("it is to be near the networks %s, and its cells fit nowhere so that one is near each of them"
                    % ", ".join(sorted(asked.networks)))
    if chosen is None:
        raise NoFit("the host's NUMA cells that suit one cell of the guest each are not enough for all %d of them"
                    % len(asked.cells))
    made = [fits[at][index] for at, index in enumerate(chosen)]
    emulator = [one.pop("emulator") for one in made if "emulator" in one]
    return {"cells": made, **({"emulator": emulator[0]} if emulator else {})}


def _near(order: Sequence[HostCell], networks: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """Places in *order* of cells that are near all of the *networks* together, the first ones first."""
    known = {frozenset(at for at, cell in enumerate(order) if name in cell.networks) for name in networks}
    # A network that is near all cells of another one, and more cells, asks for nothing more than that one. So how much
    # there is to try follows from the host's cells, however many networks a server has.
    least = sorted(sorted(one) for one in known if one and not any(other and other < one for other in known))
    yield from dict.fromkeys(tuple(sorted(set(one))) for one in product(*least))


def _matched(fits: Sequence[Mapping[int, Placement]], near: Sequence[int] = ()) -> Optional[list[int]]:
    """For each cell of the guest another one of the host, the first ones that do, and those *near* among them; ``None``
    where there are none."""
    taken = _given(fits, near)
    if taken is None:
        return None

    def find(at: int, seen: set[int]) -> bool:
        for index in sorted(fits[at], key=lambda one: (one in taken, one)):
            if index not in seen:
                seen.add(index)
                if index not in taken or find(taken[index], seen):
                    taken[index] = at
                    return True
        return False

    if not all(at in taken.values() or find(at, set()) for at in range(len(fits))):
        return None
    by_guest = {at: index for index, at in taken.items()}
    return [by_guest[at] for at in range(len(fits))]


def _given(fits: Sequence[Mapping[int, Placement]], near: Sequence[int]) -> Optional[dict[int, int]]:
    """For each of the host's cells *near* something a cell of the guest; ``None`` where there are not enough. Whoever
    goes on from there keeps all of them."""
    taken: dict[int, int] = {}

    def give(index: int, seen: set[int]) -> bool:
        holders = {at: held for held, at in taken.items()}
        for at in range(len(fits)):
            if index in fits[at] and at not in seen:
                seen.add(at)
                if at not in holders or give(holders[at], seen):
                    taken[index] = at
                    return True
        return False

    return taken if all(give(index, set()) for index in near) else None


def _cell(host: HostCell, guest: GuestCell, asked: Needs, emulator: bool) -> Placement:
    """What a cell of the guest gets of a cell of the host. Raises ``NoFit``."""
    floating = len(guest.cpus) - len(guest.pinned)
    if floating > len(host.shared):
        raise NoFit("it needs %d shared CPUs, and the cell has %d" % (floating, len(host.shared)))
    cpus = _cpus(host, len(guest.pinned), asked.threads)
    page = _page(host, guest.memory_mb, asked.page)
    found: Placement = {"host": host.id, "memory_mb": guest.memory_mb, "page": page,
                        "pins": {str(vcpu): cpu for vcpu, cpu in zip(guest.pinned, cpus)}}
    if emulator:
        left = sorted(host.dedicated.difference(cpus))
        if not left:
            raise NoFit("it needs a dedicated CPU for QEMU's own threads beside %d for its virtual CPUs, and %d are "
                        "free in the cell" % (len(cpus), len(host.dedicated)))
        found["emulator"] = left[0]
    return found


def _cpus(host: HostCell, count: int, threads: str) -> list[int]:
    """*count* of the cell's dedicated CPUs. *threads*: ``require`` those that are threads of the same cores, ``prefer``
    them, or ``isolate``: a host without threads."""
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
    # Cores that are in use already first, so that whole cores stay for those who want threads together.
    return sorted(host.dedicated, key=lambda cpu: (cpu in together, cpu))[:count]


def _page(host: HostCell, memory_mb: int, size: str) -> int:
    """KiB of the pages that the memory is made of. Raises ``NoFit``."""
    sizes = sorted((kib for kib in host.pages if kib > SMALL_KIB), reverse=True)
    wanted = {"": [SMALL_KIB], SMALL: [SMALL_KIB], LARGE: sizes, ANY_SIZE: [*sizes, SMALL_KIB]}.get(size)
    for kib in [int(size)] if wanted is None else wanted:
        if kib == SMALL_KIB:
            if memory_mb <= host.memory_mb:
                return kib
        elif memory_mb * 1024 % kib == 0 and host.pages.get(kib, 0) * kib >= memory_mb * 1024:
            return kib
    if wanted == [SMALL_KIB]:
        raise NoFit("it needs %d MiB of memory in a cell, and %d are free there" % (memory_mb, host.memory_mb))
    there = ", ".join("%d of %d KiB" % (host.pages[kib], kib) for kib in sizes) or "none"
    raise NoFit("it needs %d MiB in pages of mem_page_size %s, and free in the cell are: %s" % (
        memory_mb, size if wanted is not None else "%s KiB" % size, there))


def held_cpus(placement: Mapping[str, Any]) -> frozenset[int]:
    """CPUs of the host that a server has for itself."""
    found = {cpu for cell in placement["cells"] for cpu in cell["pins"].values()}
    return frozenset(found | ({placement["emulator"]} if "emulator" in placement else set()))


def left(cells: Iterable[HostCell], placements: Iterable[Mapping[str, Any]]) -> list[HostCell]:
    """What is left of *cells* beside what *placements* hold."""
    cpus: set[int] = set()
    memory: dict[tuple[int, int], int] = {}
    for one in placements:
        cpus |= held_cpus(one)
        for cell in one["cells"]:
            key = cell["host"], cell["page"]
            memory[key] = memory.get(key, 0) + cell["memory_mb"]
    return [cell._replace(
        dedicated=cell.dedicated - cpus, memory_mb=cell.memory_mb - memory.get((cell.id, SMALL_KIB), 0),
        pages={kib: count - memory.get((cell.id, kib), 0) * 1024 // kib for kib, count in cell.pages.items()})
        for cell in cells]


def lost(cells: Iterable[HostCell], placement: Mapping[str, Any], asked: Needs) -> str:
    """What *placement* has that a server with these needs cannot have of *cells*, which are free for it: "" where it
    can have all of it."""
    there = {cell.id: cell for cell in cells}
    if [sorted(map(int, one["pins"])) for one in placement["cells"]] != [list(one.pinned) for one in asked.cells] or \
            [one["memory_mb"] for one in placement["cells"]] != [one.memory_mb for one in asked.cells] or \
            ("emulator" in placement) != asked.emulator:
        return "it is for other needs"
    if gone := held_cpus(placement) - {cpu for cell in there.values() for cpu in cell.dedicated}:
        return "CPUs %s are not dedicated ones, or taken" % cpu_text(gone)
    for one, guest in zip(placement["cells"], asked.cells):
        cell = there.get(one["host"])
        if cell is None or not cell.dedicated.issuperset(one["pins"].values()):
            return "NUMA cell %d is gone, or has not its CPUs" % one["host"]
        try:
            _page(cell, guest.memory_mb, str(one["page"]))
            if asked.page.isdigit() and int(asked.page) != one["page"]:
                raise NoFit("its pages have another size")
            if len(guest.cpus) - len(guest.pinned) > len(cell.shared):
                raise NoFit("the cell has %d shared CPUs" % len(cell.shared))
        except NoFit as why:
            return "NUMA cell %d: %s" % (one["host"], why)
    return ""


def tell(cells: Iterable[HostCell], free: Iterable[HostCell]) -> Iterator[dict[str, Any]]:
    """*cells* and what is *free* of them as a host tells them: the field ``numa_cells`` of ``kinds.Host``."""
    for cell, rest in zip(cells, free):
        parts = [{"cpus_dedicated": cpu_text(one.dedicated), "memory_mb": one.memory_mb,
                  "pages": {str(kib): count for kib, count in sorted(one.pages.items())}} for one in (cell, rest)]
        yield {"id": cell.id, "cpus_shared": cpu_text(cell.shared), **parts[0], "free": parts[1],
               "threads": [cpu_text(core) for core in cell.cores if len(core) > 1],
               "sockets": sorted(cell.sockets), "networks": sorted(cell.networks)}


def told(cells: Iterable[Mapping[str, Any]]) -> list[HostCell]:
    """The cells that a host tells."""
    def of(text: str) -> frozenset[int]:
        return cpu_set(text) if text else frozenset()
    return [HostCell(cell["id"], of(cell["cpus_dedicated"]), of(cell["cpus_shared"]), cell["memory_mb"],
                     {int(kib): count for kib, count in cell["pages"].items()}, tuple(map(of, cell["threads"])),
                     frozenset(cell.get("sockets") or ()), frozenset(cell.get("networks") or ()))
            for cell in cells]
