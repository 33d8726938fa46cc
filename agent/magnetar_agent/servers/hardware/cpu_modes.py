# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU mode of guests, by the agent's settings ``cpu_mode``, ``cpu_models`` and ``cpu_model_extra_flags``, as of
Nova's ``[libvirt]`` (spec row KVM-06). A guest has it from its next start on; while it runs it keeps its CPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.cpu import CUSTOM, NONE, PASSTHROUGH, CpuMode, flags, with_features
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, InvalidSettings, MagnetarError
from magnetar_core.hardware import architectures
from magnetar_core.hardware.rows import CPU_TRAITS
from magnetar_core.hardware.traits import EMULATED, of_features

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain, LocalHypervisor
    from magnetar_agent.settings import AgentSettings

log = logging.getLogger(__name__)


def of(host: LocalHost, hardware: Mapping[str, Any], virt_type: str) -> CpuMode | None:
    """What a guest with this *hardware* has; ``None`` where the settings do not say, which speak of guests of the
    host's architecture. Raises ``Conflict`` where no model of the settings suits."""
    if virt_type == "qemu" and (architecture := hardware.get(architectures.FIELD)):
        model = architectures.CPU_MODELS[architecture]
        return CpuMode(CUSTOM, model) if model else CpuMode(NONE)
    settings, mode = host.settings, _mode(host.settings, virt_type)
    if mode is None:
        return None
    if mode == NONE:
        return CpuMode(NONE)
    model = _model(host, hardware.get(CPU_TRAITS, ()), virt_type) if mode == CUSTOM else ""
    return CpuMode(mode, model, flags(settings.cpu_model_extra_flags))


def _mode(settings: AgentSettings, virt_type: str) -> str | None:
    """The mode of guests of this type: under emulation there is no host's CPU to be shown as it is."""
    return NONE if settings.cpu_mode == PASSTHROUGH and virt_type != "kvm" else settings.cpu_mode


def _model(host: LocalHost, wanted: Collection[str], virt_type: str) -> str:
    """The first of the settings' models that this host can give and that has the traits *wanted*."""
    settings = host.settings
    models = _usable(settings, host.hypervisor, virt_type)
    if not models:
        raise Conflict(f"Host {host.name} can give guests of type {virt_type} none of the CPU models "
                       f"{', '.join(settings.cpu_models)} (its agent's setting cpu_models). It can give "
                       f"{', '.join(host.hypervisor.cpu_choices(virt_type).usable)}.")
    if not wanted:
        return models[0]
    besides = flags(settings.cpu_model_extra_flags)
    for model in models:
        if of_features(host.hypervisor.cpu_features(virt_type, model, besides)).issuperset(wanted):
            return model
    raise Conflict(f"hardware.{CPU_TRAITS}: none of the CPU models {', '.join(models)} of host {host.name} (its "
                   f"agent's setting cpu_models) has {', '.join(wanted)}. Add one that has, or choose another host.",
                   field=f"hardware.{CPU_TRAITS}")


def _usable(settings: AgentSettings, hypervisor: LocalHypervisor, virt_type: str) -> list[str]:
    known = hypervisor.cpu_choices(virt_type).models
    return [one for one in settings.cpu_models if known.get(one)]


def is_other(host: LocalHost, domain: Domain) -> bool:
    """Whether the *domain* was defined with another CPU mode than the settings give it now."""
    try:
        wanted = of(host, domain.hardware, domain.virt_type)
    except MagnetarError:
        return False  # its start says why
    return domain.cpu != ("" if wanted is None else wanted.note)


def features(host: LocalHost, facts: Mapping[str, Any], kvm: bool) -> Collection[str]:
    """The features of the CPU that guests of this host have: with ``cpu_models`` those of all of them, as in Nova.
    *facts*: ``LocalHypervisor.host``. *kvm*: whether guests run under it, and so can have what the host's CPU has."""
    settings, own = host.settings, (facts.get("cpu_info") or {}).get("features") or ()
    virt_type = "kvm" if kvm else "qemu"
    mode = _mode(settings, virt_type)
    if mode is None:
        return own if kvm else EMULATED
    if mode == NONE:
        return EMULATED
    besides = flags(settings.cpu_model_extra_flags)
    try:
        if mode == CUSTOM:
            found = frozenset[str]().union(*(host.hypervisor.cpu_features(virt_type, model, besides)
                                             for model in _usable(settings, host.hypervisor, virt_type)))
        else:
            found = frozenset(own) if kvm else host.hypervisor.cpu_features(virt_type)
    except HypervisorError as error:
        log.warning("no features of guests' CPUs are told: %s", error.message)
        return ()
    return with_features(found, besides)


def check(settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
    """Raise ``InvalidSettings`` for a CPU mode that this host cannot give its guests. While libvirt does not answer,
    nobody knows: then starts of guests say it."""
    mode = settings.cpu_mode
    if mode in (None, NONE):
        return
    try:
        kvm = settings.virt_type != "qemu" and bool(hypervisor.kvm()["usable"])
        _check(settings, hypervisor, "kvm" if kvm else "qemu")
    except HypervisorDown as error:
        log.warning("cpu_mode %s is not checked: %s", mode, error.message)


def _check(settings: AgentSettings, hypervisor: LocalHypervisor, virt_type: str) -> None:
    choices, mode, models = hypervisor.cpu_choices(virt_type), settings.cpu_mode, settings.cpu_models
    if mode not in choices.modes:
        raise InvalidSettings(f"cpu_mode: guests of type {virt_type} cannot have {mode} on this host; they can have "
                              f"{', '.join(sorted(choices.modes))} or none.")
    there = ", ".join(choices.usable)
    if unknown := [one for one in models if one not in choices.models]:
        raise InvalidSettings(f"cpu_models: libvirt knows no CPU model {', '.join(unknown)} for guests of type "
                              f"{virt_type}. This host can give {there}.")
    usable = _usable(settings, hypervisor, virt_type)
    if models and not usable:
        raise InvalidSettings(f"cpu_models: this host can give guests of type {virt_type} none of {', '.join(models)}. "
                              f"It can give {there}.")
    if left := [one for one in models if one not in usable]:
        log.warning("cpu_models: this host cannot give %s, and passes over them", ", ".join(left))
    besides = flags(settings.cpu_model_extra_flags)
    for model in usable or [""] if besides else ():
        try:
            hypervisor.cpu_features(virt_type, model, besides)
        except HypervisorError as error:
            raise InvalidSettings(f"cpu_model_extra_flags: {error.message} Remove what the host's CPU has not, or what "
                                  "no CPU has.") from None
