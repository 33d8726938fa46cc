# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU of a guest: its mode, topology, features of the host's CPU, timers, and its share of the host's CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Modes of libvirt's ``cpu``, and ``NONE``: QEMU's default CPU.
HOST_MODEL, PASSTHROUGH, MAXIMUM, CUSTOM, NONE = "host-model", "host-passthrough", "maximum", "custom", "none"
MODES = (HOST_MODEL, PASSTHROUGH, CUSTOM, MAXIMUM, NONE)
#: QEMU's default model.
USUAL = "qemu64"
REQUIRE, DISABLE = "require", "disable"
#: Policy and libvirt's name of each requested feature.
Features = tuple[tuple[str, str], ...]


class CpuMode(NamedTuple):
    """The CPU of guests as the agent's settings define it: libvirt's *mode*, or ``none`` for QEMU's default CPU; the
    *model* for the mode ``custom``; and additional *features*."""

    mode: str
    model: str = ""
    features: Features = ()

    @property
    def note(self) -> str:
        """Return all fields as one text, to be stored in the domain."""
        return " ".join((self.mode, *([self.model] if self.model else ()),
                         *(("-" if policy == DISABLE else "+") + name for policy, name in self.features)))


class CpuChoices(NamedTuple):
    """The CPU modes that guests can have, and the CPU models, each with whether this host can provide it."""

    modes: frozenset[str]
    models: Mapping[str, bool]

    @property
    def usable(self) -> list[str]:
        """Return the models that this host can provide."""
        return sorted(name for name, usable in self.models.items() if usable)


class Topology(NamedTuple):
    """The topology of a guest's CPU. The product of the fields is the number of virtual CPUs."""

    sockets: int
    cores: int
    threads: int


class Cpu(NamedTuple):
    """The CPU of a domain. *mode*: libvirt's; "" for QEMU's default. *model*: of mode ``CUSTOM``. *features*: policy
    and name. *pmu*: ``None`` for QEMU's own choice. *maxphysaddr*: mode and bits of physical addresses. *tune*:
    elements of libvirt's ``cputune``."""

    mode: str
    model: str
    features: Features
    topology: Topology | None
    hidden: bool
    pmu: bool | None
    hpet: bool
    maxphysaddr: tuple[str, int | None] | None
    tune: tuple[tuple[str, int], ...]


def parse_cpu_flags(flags: Iterable[str]) -> Features:
    """Return the features of the setting ``cpu_model_extra_flags``: ``+name`` or ``name`` adds one, ``-name`` removes
    one."""
    return tuple((DISABLE if flag.startswith("-") else REQUIRE, flag.lstrip("+-").lower()) for flag in flags)


def with_features(model_features: frozenset[str], requested_features: Features) -> frozenset[str]:
    """Return the features *model_features* of a CPU, with *requested_features* added or removed by their policies."""
    return (model_features | {name for policy, name in requested_features if policy == REQUIRE}) - {
        name for policy, name in requested_features if policy == DISABLE}


def guest_cpu(hardware: Mapping[str, Any], virt_type: str, requested_mode: CpuMode | None = None) -> Cpu:
    """Return the CPU of the domain of a server with this *hardware*. *virt_type*: kvm or qemu.

    *requested_mode*: the CPU mode of the agent's settings. Without it the mode is ``HOST_MODEL`` with KVM, and QEMU's
    default CPU under emulation. The CPU shares of the hardware are passed to libvirt unchanged: they become
    ``cpu.shares`` with cgroup v1, and ``cpu.weight`` with v2.
    """
    hidden = hardware.get("hide_hypervisor_id", False)
    counts = [hardware.get(f"cpu_{name}") for name in Topology._fields]
    mode, model, features = requested_mode or CpuMode(HOST_MODEL if virt_type == "kvm" else NONE)
    if mode == NONE:  # a feature can only be removed from a named model
        mode, model = (CUSTOM, USUAL) if hidden else ("", "")
    if hidden:
        features = (*(feature for feature in features if feature[1] != "hypervisor"), (DISABLE, "hypervisor"))
    return Cpu(
        mode=mode, model=model, features=features,
        topology=Topology(*counts) if all(counts) else None,  # type: ignore[arg-type]
        hidden=hidden, pmu=hardware.get("pmu", False if hardware.get("cpu_realtime") else None),
        hpet=hardware.get("hpet", False),
        maxphysaddr=(hardware["maxphysaddr_mode"], hardware.get("maxphysaddr_bits"))
        if "maxphysaddr_mode" in hardware else None,
        tune=tuple((name, hardware[f"cpu_{name}"]) for name in ("shares", "period", "quota")
                   if f"cpu_{name}" in hardware))
