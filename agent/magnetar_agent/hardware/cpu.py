# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU: mode, topology, what it shows of the host, its timers, and its share of the host's CPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Modes of libvirt's ``cpu``, and ``NONE``: QEMU's usual CPU.
HOST_MODEL, PASSTHROUGH, MAXIMUM, CUSTOM, NONE = "host-model", "host-passthrough", "maximum", "custom", "none"
MODES = (HOST_MODEL, PASSTHROUGH, CUSTOM, MAXIMUM, NONE)
#: QEMU's usual model.
USUAL = "qemu64"
REQUIRE, DISABLE = "require", "disable"
#: Policy and libvirt's name of each feature that is asked for.
Features = tuple[tuple[str, str], ...]


class CpuMode(NamedTuple):
    """What the agent's settings make of a guest's CPU: a *mode* of ``MODES``, the *model* where that is ``CUSTOM``, and
    *features* besides."""

    mode: str
    model: str = ""
    features: Features = ()

    @property
    def note(self) -> str:
        """A text of all of it, which a domain keeps."""
        return " ".join((self.mode, *([self.model] if self.model else ()),
                         *(("-" if policy == DISABLE else "+") + name for policy, name in self.features)))


class CpuChoices(NamedTuple):
    """The modes that guests can have, and the models, by whether this host can give them."""

    modes: frozenset[str]
    models: Mapping[str, bool]

    @property
    def usable(self) -> list[str]:
        """The models that this host can give."""
        return sorted(name for name, usable in self.models.items() if usable)


class Topology(NamedTuple):
    """Their product is the number of virtual CPUs."""

    sockets: int
    cores: int
    threads: int


class Cpu(NamedTuple):
    """*mode*: libvirt's; "" for what QEMU has anyway. *model*: of mode ``CUSTOM``. *features*: policy and name. *pmu*:
    ``None`` for QEMU's own choice. *maxphysaddr*: mode and bits of physical addresses. *tune*: elements of libvirt's
    ``cputune``."""

    mode: str
    model: str
    features: Features
    topology: Topology | None
    hidden: bool
    pmu: bool | None
    hpet: bool
    maxphysaddr: tuple[str, int | None] | None
    tune: tuple[tuple[str, int], ...]


def flags(given: Iterable[str]) -> Features:
    """The features of the setting ``cpu_model_extra_flags``: ``+name`` or ``name`` has it, ``-name`` has it not."""
    return tuple((DISABLE if one.startswith("-") else REQUIRE, one.lstrip("+-").lower()) for one in given)


def with_features(known: frozenset[str], asked: Features) -> frozenset[str]:
    """The features *known* of a CPU, with those that are *asked* for and without those that are not to be."""
    return (known | {name for policy, name in asked if policy == REQUIRE}) - {
        name for policy, name in asked if policy == DISABLE}


def cpu(hardware: Mapping[str, Any], virt_type: str, asked: CpuMode | None = None) -> Cpu:
    """*asked*: by the settings; without it ``HOST_MODEL`` with KVM, and QEMU's usual CPU under emulation. See the kinds
    of cgroups for *tune*: libvirt's shares are cgroup v1's ``cpu.shares`` or v2's ``cpu.weight``."""
    hidden = hardware.get("hide_hypervisor_id", False)
    counts = [hardware.get(f"cpu_{name}") for name in Topology._fields]
    mode, model, features = asked or CpuMode(HOST_MODEL if virt_type == "kvm" else NONE)
    if mode == NONE:  # a feature can be taken away of a model that is named only
        mode, model = (CUSTOM, USUAL) if hidden else ("", "")
    if hidden:
        features = (*(one for one in features if one[1] != "hypervisor"), (DISABLE, "hypervisor"))
    return Cpu(
        mode=mode, model=model, features=features,
        topology=Topology(*counts) if all(counts) else None,  # type: ignore[arg-type]
        hidden=hidden, pmu=hardware.get("pmu", False if hardware.get("cpu_realtime") else None),
        hpet=hardware.get("hpet", False),
        maxphysaddr=(hardware["maxphysaddr_mode"], hardware.get("maxphysaddr_bits"))
        if "maxphysaddr_mode" in hardware else None,
        tune=tuple((name, hardware[f"cpu_{name}"]) for name in ("shares", "period", "quota")
                   if f"cpu_{name}" in hardware))
