# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CPUs, NUMA cells and pages of the host a domain has: libvirt's ``vcpu``, ``cputune``, ``numatune``,
``memoryBacking`` and ``cpu/numa``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from magnetar_core.hardware.cpus import cpu_text
from magnetar_core.hardware.numa import SMALL_KIB, HostCell, held_cpus, needs, realtime


class GuestNode(NamedTuple):
    """A NUMA cell of the guest: its virtual CPUs, MiB, the host's cell, and KiB of its pages; 0 for the usual ones."""

    id: int
    cpus: str
    memory_mb: int
    host: int
    page: int


class Numa(NamedTuple):
    """*cpuset*: where virtual CPUs run that are not in *pins*, (virtual CPU, CPUs); "" for anywhere. *emulator*: where
    QEMU's own threads run, "" for *cpuset*. *realtime*: the virtual CPUs that run in real time, and the priority."""

    cpuset: str = ""
    pins: tuple[tuple[int, str], ...] = ()
    emulator: str = ""
    nodes: tuple[GuestNode, ...] = ()
    locked: bool = False
    realtime: tuple[str, int] | None = None

    @property
    def pages(self) -> tuple[GuestNode, ...]:
        """The cells whose memory is made of large pages."""
        return tuple(one for one in self.nodes if one.page)

    @property
    def hosts(self) -> str:
        """The host's cells."""
        return cpu_text({one.host for one in self.nodes})


def numa(hardware: Mapping[str, Any], vcpus: int, ram: int, placement: Mapping[str, Any] | None,
         cells: Sequence[HostCell], shared: str, priority: int = 1) -> Numa:
    """What a server has by its *placement*. *cells*: the host's; *shared*: its shared CPUs, "" where all are.
    *priority*: of virtual CPUs that run in real time.

    QEMU's own threads are on the server's CPUs, but for those that run in real time; on the one that they have for
    themselves; or (``share``) on the shared ones (spec rows A4.11, A5.6)."""
    asked = needs(hardware, vcpus, ram)
    if asked is None or not placement or not placement["cells"]:
        return Numa(cpuset=shared)
    by_id = {cell.id: cell for cell in cells}
    pins: dict[int, str] = {}
    nodes = []
    for at, (guest, had) in enumerate(zip(asked.cells, placement["cells"], strict=True)):
        own, there = had["pins"], by_id.get(had["host"])
        floats = cpu_text(there.shared) if there else ""
        for vcpu in guest.cpus:
            if text := str(own[str(vcpu)]) if str(vcpu) in own else floats:
                pins[vcpu] = text
        nodes.append(GuestNode(at, cpu_text(guest.cpus), guest.memory_mb, had["host"],
                               had["page"] if had["page"] != SMALL_KIB else 0))
    fast = realtime(hardware, vcpus)
    others = {vcpu: cpus for vcpu, cpus in pins.items() if vcpu not in fast} or pins
    return Numa(shared, tuple(sorted(pins.items())), _emulator(hardware, placement, others, shared), tuple(nodes),
                bool(hardware.get("locked_memory") or fast), (cpu_text(fast), priority) if fast else None)


def _emulator(hardware: Mapping[str, Any], placement: Mapping[str, Any], pins: Mapping[int, str], shared: str) -> str:
    if "emulator" in placement:
        return str(placement["emulator"])
    if hardware.get("emulator_threads") == "share" and shared:
        return shared
    if not held_cpus(placement):
        return shared
    return ",".join(dict.fromkeys(pins.values()))
