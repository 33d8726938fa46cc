# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU: topology, what it shows of the host, its timers, and its share of the host's CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Topology(NamedTuple):
    """Their product is the number of virtual CPUs."""

    sockets: int
    cores: int
    threads: int


class Cpu(NamedTuple):
    """*mode*: ``host-model`` with KVM; ``qemu64``, QEMU's usual one, where a feature of an emulated CPU is taken away;
    else what QEMU has anyway. *pmu*: ``None`` for QEMU's own choice. *maxphysaddr*:
    mode and bits of physical addresses. *tune*: elements of libvirt's ``cputune``."""

    mode: str | None
    topology: Topology | None
    hidden: bool
    pmu: bool | None
    hpet: bool
    maxphysaddr: tuple[str, int | None] | None
    tune: tuple[tuple[str, int], ...]


def cpu(hardware: Mapping[str, Any], virt_type: str) -> Cpu:
    """See the kinds of cgroups for *tune*: libvirt's shares are cgroup v1's ``cpu.shares`` or v2's ``cpu.weight``."""
    hidden = hardware.get("hide_hypervisor_id", False)
    counts = [hardware.get(f"cpu_{name}") for name in Topology._fields]
    return Cpu(
        mode="host-model" if virt_type == "kvm" else "qemu64" if hidden else None,
        topology=Topology(*counts) if all(counts) else None,  # type: ignore[arg-type]
        hidden=hidden, pmu=hardware.get("pmu"), hpet=hardware.get("hpet", False),
        maxphysaddr=(hardware["maxphysaddr_mode"], hardware.get("maxphysaddr_bits"))
        if "maxphysaddr_mode" in hardware else None,
        tune=tuple((name, hardware[f"cpu_{name}"]) for name in ("shares", "period", "quota")
                   if f"cpu_{name}" in hardware))
