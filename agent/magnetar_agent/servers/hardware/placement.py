# SPDX-License-Identifier: GPL-3.0-or-later
"""Which dedicated CPUs, NUMA cells and pages of this host a server has.

They are chosen under the lock of choices, and kept in the server's document (``FIELD``) before anything acts on them:
so no two servers ever get the same, and what a server has is free again when its document is gone. A server that
changes holds what its guest still runs on (``before``) until its domain is defined anew. What is on its way here holds
what the document has that its migration keeps. A server whose CPUs or pages are gone, since the host was booted with
fewer or its agent has other settings, gets others at its next start, or an error that says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware import numa
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_core.bandwidth import TUNNELS
from magnetar_core.errors import Conflict
from magnetar_core.hardware.cpus import cpu_set, cpu_text
from magnetar_core.hardware.numa import (
    HostCell,
    Needs,
    NoFit,
    Placement,
    left,
    lost,
    needs,
    pinned,
    place,
    realtime,
    tell,
)
from magnetar_core.hardware.numa_providers import providers
from magnetar_core.power import LIVE, SUSPENDED
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: What a document has of the host, in its ``want``: ``core.hardware.numa.Placement``, and ``before``.
FIELD, BEFORE = "placement", "before"
#: Note in a document's ``state``: something was chosen anew, and its domain is not defined with it yet.
REDEFINE = "redefine"


# What there is ------------------------------------------------------------------------------------------------------
def cells(host: LocalHost) -> list[HostCell]:
    """The host's NUMA cells as the settings divide them: without a set of dedicated CPUs all are shared; with it alone
    none is, as in Nova. Memory is what is not set aside for large pages, of which there are none where guests' memory
    is in files."""
    dedicated, shared = (None if text is None else cpu_set(text)
                         for text in (host.settings.cpu_dedicated_set, host.settings.cpu_shared_set))
    found, near = [], near_networks(host)
    for cell in host.hypervisor.numa_cells():
        floats = cell.shared if shared is None and dedicated is None else cell.shared & (shared or frozenset())
        reserved = host.settings.reserved_huge_pages.get(cell.id, {})
        found.append(cell._replace(
            dedicated=cell.shared & (dedicated or frozenset()), shared=floats,
            memory_mb=cell.memory_mb - sum(kib * count for kib, count in cell.pages.items()) // 1024,
            networks=frozenset(name for name, ids in near.items() if cell.id in ids),
            pages={} if host.settings.file_backed_memory else {
                kib: max(0, count - reserved.get(kib, 0)) for kib, count in cell.pages.items()}))
    return found


def near_networks(host: LocalHost) -> dict[str, Sequence[int]]:
    """Physical networks, and the one between hosts, to the NUMA cells that their cards are near."""
    tunnels = host.settings.tunnel_numa_nodes
    return {**host.settings.physical_network_numa_nodes, **({TUNNELS: tunnels} if tunnels else {})}


def networks(want: Mapping[str, Any]) -> tuple[str, ...]:
    """The networks that a server of these fields is to be near: what a cloud says of its ports, bridges, and what its
    virtual functions are plugged into."""
    names = (nic.get("network_affinity") or nic.get("physical_network") or nic.get("bridge")
             for nic in want.get("networks") or ())
    return tuple(sorted({name for name in names if name}))


def shared(host: LocalHost) -> str:
    """The CPUs that servers share; "" where they may be on all of the host's."""
    if host.settings.cpu_dedicated_set is None and host.settings.cpu_shared_set is None:
        return ""
    return cpu_text(cpu for cell in cells(host) for cpu in cell.shared)


def held(host: LocalHost, without: str = "") -> Iterator[Placement]:
    """What servers of this host have, and those on their way here, but for the server *without*."""
    for want in holders(host, without):
        yield from _parts(want)


def holders(host: LocalHost, without: str = "") -> Iterator[Mapping[str, Any]]:
    """The fields of the servers that have something of this host: those here, and those on their way here."""
    for id, want in wants(host):
        if id != without:
            yield want


def wants(host: LocalHost) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The same with their uuids."""
    for document in host.documents.peek("server"):
        yield document.id, document.want
    for one in host.documents.peek("migration"):
        coming = one.state.get("server")
        if coming and one.want["side"] == "target" and not one.state.get("settled") \
                and host.documents.look("server", one.want["server"]) is None:
            yield one.want["server"], coming["want"]


def on_cells(want: Mapping[str, Any]) -> list[int]:
    """The host's NUMA cells that a server with these fields is on; none for one that is on any."""
    return [one["host"] for one in (want.get(FIELD) or {}).get("cells", ())]


def _parts(want: Mapping[str, Any]) -> Iterator[Placement]:
    found = want.get(FIELD)
    if found:
        yield found
        if BEFORE in found:
            yield found[BEFORE]


def free(host: LocalHost, without: str = "") -> list[HostCell]:
    """What is free of ``cells``."""
    return left(cells(host), held(host, without))


def asked(want: Mapping[str, Any]) -> Needs | None:
    """What a server of these fields needs of a host."""
    return needs(want.get("hardware") or {}, want["flavor"]["vcpus"], want["flavor"]["ram"])


def floating(want: Mapping[str, Any]) -> int:
    """How many virtual CPUs of a server of these fields share the host's."""
    vcpus: int = want["flavor"]["vcpus"]
    return vcpus - len(pinned(want.get("hardware") or {}, vcpus))


# What a server gets -------------------------------------------------------------------------------------------------
def choose(host: LocalHost, want: Mapping[str, Any], id: str, worth: Mapping[int, int],
           page: Mapping[str, Any] | None = None) -> Placement:
    """What the server *id* with these fields gets. *worth*: of the host's cells, for devices (``pci.cells``). *page*:
    where its guest runs already, whose pages keep their size. Hold the lock of choices until it is written. Raises
    ``Conflict``."""
    found = asked(want)
    assert found is not None
    found = found._replace(networks=networks(want))
    sizes = {one["page"] for one in page["cells"]} if page else set()
    if found.page and len(sizes) == 1:
        found = found._replace(page=str(sizes.pop()))
    there = free(host, id)
    if found.dedicated and host.settings.cpu_dedicated_set is None:
        raise Conflict(f"hardware.cpu_policy: host {host.name} has no dedicated CPUs. Name some in its agent's setting "
                       "cpu_dedicated_set, or choose another host.", field="hardware.cpu_policy")
    whole = len(realtime(want.get("hardware") or {}, want["flavor"]["vcpus"])) == want["flavor"]["vcpus"]
    if whole and not found.emulator and not shared(host):
        raise Conflict(f"hardware.emulator_threads: host {host.name} has no shared CPUs for QEMU's own threads, and "
                       "all virtual CPUs run in real time. Name some in its agent's setting cpu_shared_set, use "
                       "isolate, or choose another host.", field="hardware.emulator_threads")
    try:
        return place(there, found, worth, host.settings.pack_numa_cells)
    except NoFit as why:
        files = " (memory of its guests is in files, which have none)" if host.settings.file_backed_memory else ""
        raise Conflict(f"hardware: host {host.name} has no room for CPUs and memory of the server: {why}{files}. "
                       "Choose another host, or free some there.", field="hardware") from None


def complete(host: LocalHost, found: Fields, old: Fields, id: str, worth: Mapping[int, int]) -> None:
    """Set ``FIELD`` of *found*, whose flavor and hardware are known. *old*: what was wanted before. *worth*: as for
    ``choose``. Raises ``Conflict``."""
    had: Placement | None = old.get(FIELD)
    found.pop(FIELD, None)
    if old and asked(found) == asked(old):
        found.update({FIELD: had} if had else {})
        if had or asked(found) is None:
            return
    made = choose(host, found, id, worth) if asked(found) else None
    if had:
        made = {**(made or {"cells": []}), BEFORE: {name: part for name, part in had.items() if name != BEFORE}}
    if made:
        found[FIELD] = made


def arrive(host: LocalHost, want: Fields, id: str, live: bool, worth: Mapping[int, int]) -> None:
    """Choose what a server that comes from another host gets here. Hold the lock of choices until it is written.
    *live*: its guest runs, and keeps the size of its pages. *worth*: as for ``choose``. Raises ``Conflict``."""
    had = want.pop(FIELD, None)
    if asked(want):
        want[FIELD] = choose(host, want, id, worth, had if live else None)


def settle(host: LocalHost, document: Document, keep: Callable[[], None], worth: Mapping[int, int]) -> None:
    """Before a domain is defined or started: give up what the server had before a change, and choose anew where it can
    no more have what it has. *keep* writes the document. *worth*: as for ``choose``. Raises ``Conflict``."""
    want = document.want
    if FIELD not in want and asked(want) is None:
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest is on them
    with host.locks.hold(*CHOICES):
        had, needed = want.get(FIELD), asked(want)
        made = {name: part for name, part in (had or {}).items() if name != BEFORE}
        if needed is None:
            made = {}
        elif not had or (why := lost(free(host, document.id), made, needed)):
            if had and domain is not None and domain.state == SUSPENDED:
                raise Conflict(f"Server {document.name!r} is suspended, and its saved memory is bound to CPUs and "
                               f"pages that it cannot have any more: {why}. Give the host back what is missing, or "
                               "stop the server, which loses the saved memory.")
            made = choose(host, want, document.id, worth)
        if made == (had or {}):
            return
        want.pop(FIELD, None)
        want.update({FIELD: made} if made else {})
        write_choice(document, keep)


def write_choice(document: Document, keep: Callable[[], None]) -> None:
    """Write what was chosen anew, and with it that libvirt is to be told, also if something fails before that."""
    document.state[REDEFINE] = True
    keep()


# What a domain has --------------------------------------------------------------------------------------------------
def described(host: LocalHost, want: Mapping[str, Any]) -> numa.Numa:
    """What the domain of a server of these fields is told."""
    flavor, found = want["flavor"], want.get(FIELD)
    there = cells(host) if found else []
    return numa.numa(hardware(dict(want)), flavor["vcpus"], flavor["ram"], found, there, shared(host),
                     host.settings.realtime_scheduler_priority)


def told(host: LocalHost) -> dict[str, Any]:
    """``vcpus``, ``pcpus`` and ``numa_cells`` of ``kinds.Host``; and of its ``providers`` those that are cells."""
    there = cells(host)
    had = {id: parts for id, want in wants(host) if (parts := list(_parts(want)))}
    rest = left(there, chain.from_iterable(had.values()))
    return {"vcpus": sum(len(cell.shared) for cell in there), "pcpus": sum(len(cell.dedicated) for cell in there),
            "numa_cells": list(tell(there, rest)), "providers": providers(there, had)}
