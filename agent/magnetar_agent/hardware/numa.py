# SPDX-License-Identifier: GPL-3.0-or-later
"""Translation of a server's placement to the CPUs, NUMA cells and pages of its domain: libvirt's ``vcpu``, ``cputune``,
``numatune``, ``memoryBacking`` and ``cpu/numa``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_core.hardware.cpus import cpu_text
from magnetar_core.hardware.numa import SMALL_KIB, HostCell, held_cpus, numa_needs, realtime_cpus


class GuestNode(NamedTuple):
    """A NUMA node of a guest. *cpus*: its virtual CPUs as text, such as ``0-3``. *host*: the NUMA node of the host that
    provides its CPUs and memory. *page*: the size of its pages in KiB, 0 for normal pages."""

    id: int
    cpus: str
    memory_mb: int
    host: int
    page: int


class Numa(NamedTuple):
    """The placement of a domain on the host's CPUs and NUMA nodes.

    *pins*: pairs of a virtual CPU and the host CPUs it may run on. *cpuset*: host CPUs for virtual CPUs without a pin,
    "" for all. *emulator*: host CPUs for QEMU's own threads, "" for *cpuset*. *locked*: whether the memory is never
    swapped. *realtime*: the virtual CPUs with real-time scheduling, and the priority.
    """

    cpuset: str = ""
    pins: tuple[tuple[int, str], ...] = ()
    emulator: str = ""
    nodes: tuple[GuestNode, ...] = ()
    locked: bool = False
    realtime: tuple[str, int] | None = None

    @property
    def pages(self) -> tuple[GuestNode, ...]:
        """Return the guest's NUMA nodes whose memory consists of huge pages."""
        return tuple(node for node in self.nodes if node.page)

    @property
    def hosts(self) -> str:
        """Return the numbers of the host's NUMA nodes that the domain uses, as text with ranges such as ``0-1``."""
        return cpu_text({node.host for node in self.nodes})


def guest_numa(hardware: Mapping[str, Any], vcpus: int, ram: int, placement: Mapping[str, Any] | None,
               cells: Sequence[HostCell], shared: str, priority: int = 1) -> Numa:
    """Return the placement for the domain of a server on the host's CPUs and NUMA nodes.

    *hardware*: the server's hardware fields (made from extra specs and image properties). *ram*: MiB. *placement*: the
    stored choice of host CPUs and NUMA nodes, ``None`` without one. *cells*: the host's NUMA nodes. *shared*: the
    host's shared CPUs, "" if all CPUs are shared. *priority*: the priority of virtual CPUs with real-time scheduling.

    QEMU's own threads run on the CPU that the placement reserves for them. Without such a CPU, they run on the shared
    CPUs if the hardware has ``emulator_threads: share`` or the server has no dedicated CPUs; otherwise on the server's
    CPUs except those of real-time virtual CPUs.
    """
    requirements = numa_needs(hardware, vcpus, ram)
    if requirements is None or not placement or not placement["cells"]:
        return Numa(cpuset=shared)
    by_id = {cell.id: cell for cell in cells}
    pins: dict[int, str] = {}
    nodes = []
    for at, (guest, placed_cell) in enumerate(zip(requirements.cells, placement["cells"], strict=True)):
        cell_pins, host_cell = placed_cell["pins"], by_id.get(placed_cell["host"])
        floats = cpu_text(host_cell.shared) if host_cell else ""
        for vcpu in guest.cpus:
            if text := str(cell_pins[str(vcpu)]) if str(vcpu) in cell_pins else floats:
                pins[vcpu] = text
        nodes.append(GuestNode(at, cpu_text(guest.cpus), guest.memory_mb, placed_cell["host"],
                               placed_cell["page"] if placed_cell["page"] != SMALL_KIB else 0))
    fast = realtime_cpus(hardware, vcpus)
    other_pins = {vcpu: cpus for vcpu, cpus in pins.items() if vcpu not in fast} or pins
    return Numa(shared, tuple(sorted(pins.items())), _emulator(hardware, placement, other_pins, shared), tuple(nodes),
                bool(hardware.get("locked_memory") or fast), (cpu_text(fast), priority) if fast else None)


def _emulator(hardware: Mapping[str, Any], placement: Mapping[str, Any], pins: Mapping[int, str], shared: str) -> str:
    if "emulator" in placement:
        return str(placement["emulator"])
    if hardware.get("emulator_threads") == "share" and shared:
        return shared
    if not held_cpus(placement):
        return shared
    return ",".join(dict.fromkeys(pins.values()))
