# SPDX-License-Identifier: GPL-3.0-or-later
"""The dedicated CPUs, NUMA cells and pages of this host that a server has.

They are chosen under the lock ``CHOICES``, and kept in the server's document (``FIELD``) before anything acts on them:
so no two servers ever get the same, and they are free again when the document is gone. A server that changes holds the
placement of its running guest (``before``) until its domain is defined again. A server that moves to this host holds
the placement in the document that its migration keeps. A server whose CPUs or pages are gone, since the host was booted
with fewer or its agent has other settings, gets others at its next start, or an error that names what is missing.
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
    lost_placement,
    numa_needs,
    pinned_cpus,
    place_guest,
    realtime_cpus,
    remaining_cells,
    report_cells,
)
from magnetar_core.hardware.numa_providers import cell_providers
from magnetar_core.power import LIVE, SUSPENDED
from magnetar_core.server_plan import server_hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

#: Keys of ``want``: ``core.hardware.numa.Placement``, and ``before``.
FIELD, BEFORE = "placement", "before"
#: Key of ``state``: the choice has changed, and the domain is not defined with it yet.
REDEFINE = "redefine"


# What the host has --------------------------------------------------------------------------------------------------
def divide_host_cells(host: LocalHost) -> list[HostCell]:
    """Return the host's NUMA cells, with their CPUs divided by the settings ``cpu_dedicated_set`` and
    ``cpu_shared_set``. If neither is set, all CPUs are shared; if only ``cpu_dedicated_set`` is set, no CPUs are
    shared, as in Nova. The cells' memory does not include huge pages. With the setting ``file_backed_memory``, the
    cells have no huge pages."""
    dedicated, shared = (None if text is None else cpu_set(text)
                         for text in (host.settings.cpu_dedicated_set, host.settings.cpu_shared_set))
    divided, near = [], near_networks(host)
    for cell in host.hypervisor.numa_cells():
        floats = cell.shared if shared is None and dedicated is None else cell.shared & (shared or frozenset())
        reserved = host.settings.reserved_huge_pages.get(cell.id, {})
        divided.append(cell._replace(
            dedicated=cell.shared & (dedicated or frozenset()), shared=floats,
            memory_mb=cell.memory_mb - sum(kib * count for kib, count in cell.pages.items()) // 1024,
            networks=frozenset(name for name, ids in near.items() if cell.id in ids),
            pages={} if host.settings.file_backed_memory else {
                kib: max(0, count - reserved.get(kib, 0)) for kib, count in cell.pages.items()}))
    return divided


def near_networks(host: LocalHost) -> dict[str, Sequence[int]]:
    """Return ``{network: NUMA cells}`` from the settings: the cells to which the network cards of the network are
    attached. The networks are the physical networks, and the one for tunnels between hosts."""
    tunnels = host.settings.tunnel_numa_nodes
    return {**host.settings.physical_network_numa_nodes, **({TUNNELS: tunnels} if tunnels else {})}


def requested_networks(want: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the networks whose cards should be attached to the NUMA cells of a server with the desired fields *want*:
    for each NIC its ``network_affinity`` from the control plane, otherwise its physical network or bridge."""
    names = (nic.get("network_affinity") or nic.get("physical_network") or nic.get("bridge")
             for nic in want.get("networks") or ())
    return tuple(sorted({name for name in names if name}))


def shared_cpus(host: LocalHost) -> str:
    """Return the host CPUs that servers share, as text such as 0-3,8; "" if servers may use all CPUs."""
    if host.settings.cpu_dedicated_set is None and host.settings.cpu_shared_set is None:
        return ""
    return cpu_text(cpu for cell in divide_host_cells(host) for cpu in cell.shared)


def held_placements(host: LocalHost, excluded_server: str = "") -> Iterator[Placement]:
    """Yield the placements (CPUs, memory and pages on NUMA cells) of servers on this host and of servers that are
    migrating to it. The server with the uuid *excluded_server* is ignored."""
    for want in fields_of_holders(host, excluded_server):
        yield from _parts(want)


def fields_of_holders(host: LocalHost, excluded_server: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the desired fields of the servers that use resources of this host: servers on it, and servers that are
    migrating to it. The server with the uuid *excluded_server* is ignored."""
    for id, want in fields_by_server(host):
        if id != excluded_server:
            yield want


def fields_by_server(host: LocalHost) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield pairs (uuid, desired fields) of the servers that use resources of this host: servers on it, and servers
    that are migrating to it."""
    for document in host.documents.peek("server"):
        yield document.id, document.want
    for migration in host.documents.peek("migration"):
        coming = migration.state.get("server")
        if coming and migration.want["side"] == "target" and not migration.state.get("settled") \
                and host.documents.peek_by_id("server", migration.want["server"]) is None:
            yield migration.want["server"], coming["want"]


def on_cells(want: Mapping[str, Any]) -> list[int]:
    """Return the ids of the host's NUMA cells on which a server with the desired fields *want* is placed; empty if it
    may run on any cell."""
    return [cell["host"] for cell in (want.get(FIELD) or {}).get("cells", ())]


def _parts(want: Mapping[str, Any]) -> Iterator[Placement]:
    placement = want.get(FIELD)
    if placement:
        yield placement
        if BEFORE in placement:
            yield placement[BEFORE]


def free_cells(host: LocalHost, excluded_server: str = "") -> list[HostCell]:
    """Return the host's NUMA cells with only their free CPUs, memory and pages. Resources of the server
    *excluded_server* (a uuid) count as free."""
    return remaining_cells(divide_host_cells(host), held_placements(host, excluded_server))


def placement_needs(want: Mapping[str, Any]) -> Needs | None:
    """Return the CPUs, memory and pages that a server with the desired fields *want* needs on NUMA cells; ``None`` if
    it does not need to be placed on particular cells."""
    return numa_needs(want.get("hardware") or {}, want["flavor"]["vcpus"], want["flavor"]["ram"])


def floating_vcpus(want: Mapping[str, Any]) -> int:
    """Return the number of virtual CPUs of a server with the desired fields *want* that run on the host's shared CPUs.
    """
    vcpus: int = want["flavor"]["vcpus"]
    return vcpus - len(pinned_cpus(want.get("hardware") or {}, vcpus))


# What a server gets -------------------------------------------------------------------------------------------------
def choose_placement(host: LocalHost, want: Mapping[str, Any], id: str, cell_weights: Mapping[int, int],
                     page: Mapping[str, Any] | None = None) -> Placement:
    """Choose CPUs, memory and pages on NUMA cells for the server *id* with the desired fields *want*, and return them.
    *cell_weights*: result of ``pci.preferred_device_cells``. *page*: placement of the running guest; its page size is
    used again. Raises ``Conflict`` if the host has no room. The caller must hold the lock ``CHOICES`` until the choice
    is stored in the server's JSON document. The lock allows one choice at a time on the host."""
    needed = placement_needs(want)
    assert needed is not None
    needed = needed._replace(networks=requested_networks(want))
    sizes = {cell["page"] for cell in page["cells"]} if page else set()
    if needed.page and len(sizes) == 1:
        needed = needed._replace(page=str(sizes.pop()))
    available = free_cells(host, id)
    if needed.dedicated and host.settings.cpu_dedicated_set is None:
        raise Conflict(f"hardware.cpu_policy: host {host.name} has no dedicated CPUs. Name some in its agent's setting "
                       "cpu_dedicated_set, or choose another host.", field="hardware.cpu_policy")
    whole = len(realtime_cpus(want.get("hardware") or {}, want["flavor"]["vcpus"])) == want["flavor"]["vcpus"]
    if whole and not needed.emulator and not shared_cpus(host):
        raise Conflict(f"hardware.emulator_threads: host {host.name} has no shared CPUs for QEMU's own threads, and "
                       "all virtual CPUs run in real time. Name some in its agent's setting cpu_shared_set, use "
                       "isolate, or choose another host.", field="hardware.emulator_threads")
    try:
        return place_guest(available, needed, cell_weights, host.settings.pack_numa_cells)
    except NoFit as why:
        files = " (memory of its guests is in files, which have none)" if host.settings.file_backed_memory else ""
        raise Conflict(f"hardware: host {host.name} has no room for CPUs and memory of the server: {why}{files}. "
                       "Choose another host, or free some there.", field="hardware") from None


def complete_placement(host: LocalHost, desired: Fields, old: Fields, id: str, cell_weights: Mapping[int, int]) -> None:
    """Set the placement (CPUs, memory and pages on NUMA cells) in *desired*, the new fields of the server *id*. If the
    needs are the same as in *old*, the fields before the change, the placement stays. Otherwise a new placement is
    chosen. Its key ``before`` contains the old placement, which stays reserved until ``prepare_placement`` releases it.
    *cell_weights*: see ``choose_placement``. Raises ``Conflict`` if the host has no room."""
    had: Placement | None = old.get(FIELD)
    desired.pop(FIELD, None)
    if old and placement_needs(desired) == placement_needs(old):
        desired.update({FIELD: had} if had else {})
        if had or placement_needs(desired) is None:
            return
    made = choose_placement(host, desired, id, cell_weights) if placement_needs(desired) else None
    if had:
        made = {**(made or {"cells": []}), BEFORE: {name: part for name, part in had.items() if name != BEFORE}}
    if made:
        desired[FIELD] = made


def choose_target_placement(host: LocalHost, want: Fields, id: str, live: bool,
                            cell_weights: Mapping[int, int]) -> None:
    """Replace the placement in *want* by a placement on this host, to which the server *id* migrates. *live*: whether
    it is a live migration, which cannot change the page size. *cell_weights*: see ``choose_placement``. Raises
    ``Conflict`` if the host has no room. The caller must hold the lock ``CHOICES`` until the choice is stored in the
    server's JSON document. The lock allows one choice at a time on the host."""
    had = want.pop(FIELD, None)
    if placement_needs(want):
        want[FIELD] = choose_placement(host, want, id, cell_weights, had if live else None)


def prepare_placement(host: LocalHost, document: Document, keep: Callable[[], None],
                      cell_weights: Mapping[int, int]) -> None:
    """Before the server's domain is defined or started, release its previous placement after a change, and replace a
    placement that is no longer possible. *keep*: writes the document to disk. *cell_weights*: see ``choose_placement``.
    Raises ``Conflict`` if the host has no room."""
    want = document.want
    if FIELD not in want and placement_needs(want) is None:
        return
    domain = host.hypervisor.domain(document.id)
    if domain is not None and domain.state in LIVE:
        return  # the guest is on them
    with host.locks.hold(*CHOICES):
        had, needed = want.get(FIELD), placement_needs(want)
        made = {name: part for name, part in (had or {}).items() if name != BEFORE}
        if needed is None:
            made = {}
        elif not had or (why := lost_placement(free_cells(host, document.id), made, needed)):
            if had and domain is not None and domain.state == SUSPENDED:
                raise Conflict(f"Server {document.name!r} is suspended, and its saved memory is bound to CPUs and "
                               f"pages that it cannot have any more: {why}. Give the host back what is missing, or "
                               "stop the server, which loses the saved memory.")
            made = choose_placement(host, want, document.id, cell_weights)
        if made == (had or {}):
            return
        want.pop(FIELD, None)
        want.update({FIELD: made} if made else {})
        write_choice(document, keep)


def write_choice(document: Document, keep: Callable[[], None]) -> None:
    """Call *keep* to write *document*, in which CPUs, memory or devices were newly chosen. Before that, set a state
    field that makes the agent define the domain again, even after a crash."""
    document.state[REDEFINE] = True
    keep()


# What a domain has --------------------------------------------------------------------------------------------------
def domain_numa(host: LocalHost, want: Mapping[str, Any]) -> numa.Numa:
    """Return the NUMA configuration for the libvirt domain of a server with the desired fields *want*."""
    flavor, placement = want["flavor"], want.get(FIELD)
    cells = divide_host_cells(host) if placement else []
    return numa.guest_numa(server_hardware(dict(want)), flavor["vcpus"], flavor["ram"], placement, cells,
                           shared_cpus(host), host.settings.realtime_scheduler_priority)


def placement_facts(host: LocalHost) -> dict[str, Any]:
    """Return the host's fields ``vcpus`` (number of shared CPUs), ``pcpus`` (number of dedicated CPUs), ``numa_cells``,
    and ``providers``, the Placement resource providers of the NUMA cells."""
    cells = divide_host_cells(host)
    had = {id: parts for id, want in fields_by_server(host) if (parts := list(_parts(want)))}
    remaining = remaining_cells(cells, chain.from_iterable(had.values()))
    return {"vcpus": sum(len(cell.shared) for cell in cells), "pcpus": sum(len(cell.dedicated) for cell in cells),
            "numa_cells": list(report_cells(cells, remaining)), "providers": cell_providers(cells, had)}
