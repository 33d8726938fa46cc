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
    """The CPU that the agent's settings define for guests: *mode* is a CPU mode of libvirt, or ``none`` for QEMU's
    default CPU; *model* is set for the mode ``custom``; *features* are CPU flags to add or remove."""

    mode: str
    model: str = ""
    features: Features = ()

    @property
    def note(self) -> str:
        """Return mode, model and features as one text, such as ``custom Haswell -avx2``, to compare with the text
        stored in the domain's metadata."""
        return " ".join((self.mode, *([self.model] if self.model else ()),
                         *(("-" if policy == DISABLE else "+") + name for policy, name in self.features)))


class CpuChoices(NamedTuple):
    """The CPU modes that guests can have, and the CPU models that libvirt knows. *models*: maps the name of each model
    to whether this host can provide the model."""

    modes: frozenset[str]
    models: Mapping[str, bool]

    @property
    def usable(self) -> list[str]:
        """Return the sorted names of the CPU models that this host can provide."""
        return sorted(name for name, usable in self.models.items() if usable)


class Topology(NamedTuple):
    """The CPU topology of a guest. The number of virtual CPUs is ``sockets * cores * threads``."""

    sockets: int
    cores: int
    threads: int


class Cpu(NamedTuple):
    """The CPU of a domain. *mode*: libvirt's CPU mode, "" for QEMU's default CPU. *model*: the CPU model for the mode
    ``CUSTOM``. *features*: pairs of libvirt's policy and the feature's name. *hidden*: whether the guest cannot see
    that it runs under a hypervisor. *pmu*: ``None`` leaves the choice to QEMU. *maxphysaddr*: mode and bits of physical
    addresses. *tune*: elements of libvirt's ``cputune``."""

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
    """Return the CPU features in the setting ``cpu_model_extra_flags`` as pairs of libvirt's policy and the name. The
    flags ``+name`` and ``name`` require a feature, ``-name`` disables it."""
    return tuple((DISABLE if flag.startswith("-") else REQUIRE, flag.lstrip("+-").lower()) for flag in flags)


def with_features(model_features: frozenset[str], requested_features: Features) -> frozenset[str]:
    """Return *model_features*, the features of a CPU model, after adding or removing *requested_features*: pairs of
    libvirt's policy (require or disable) and the name."""
    return (model_features | {name for policy, name in requested_features if policy == REQUIRE}) - {
        name for policy, name in requested_features if policy == DISABLE}


def guest_cpu(hardware: Mapping[str, Any], virt_type: str, requested_mode: CpuMode | None = None) -> Cpu:
    """Return the CPU for the domain of a server.

    *hardware*: the server's hardware fields, such as ``cpu_shares``. *virt_type*: kvm or qemu. *requested_mode*: the
    CPU mode of the agent's settings; ``None``: ``HOST_MODEL`` with KVM, QEMU's default CPU under emulation. Libvirt
    gets the number of CPU shares unchanged, whether it becomes ``cpu.shares`` (cgroup v1) or ``cpu.weight`` (v2).
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
