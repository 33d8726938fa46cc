# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPU mode of guests, from the agent's settings ``cpu_mode``, ``cpu_models`` and ``cpu_model_extra_flags``, as in
Nova's ``[libvirt]``. A changed setting has effect when a guest is started next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware.cpu import CUSTOM, NONE, PASSTHROUGH, CpuMode, parse_cpu_flags, with_features
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, InvalidSettings, MagnetarError
from magnetar_core.hardware import architectures
from magnetar_core.hardware.rows import CPU_TRAITS
from magnetar_core.hardware.traits import EMULATED, traits_of_features

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain, LocalHypervisor
    from magnetar_agent.settings import AgentSettings

log = logging.getLogger(__name__)


def guest_cpu_mode(host: LocalHost, hardware: Mapping[str, Any], virt_type: str) -> CpuMode | None:
    """Return the CPU mode for a guest with this *hardware* and *virt_type* (kvm or qemu), from the agent's settings;
    ``None`` if they set no CPU mode. An emulated guest of another CPU architecture gets a fixed mode instead. Raises
    ``Conflict`` if the settings list CPU models, and none that the host supports has the traits that *hardware*
    requires."""
    if virt_type == "qemu" and (architecture := hardware.get(architectures.FIELD)):
        model = architectures.CPU_MODELS[architecture]
        return CpuMode(CUSTOM, model) if model else CpuMode(NONE)
    settings, mode = host.settings, _mode(host.settings, virt_type)
    if mode is None:
        return None
    if mode == NONE:
        return CpuMode(NONE)
    model = _model(host, hardware.get(CPU_TRAITS, ()), virt_type) if mode == CUSTOM else ""
    return CpuMode(mode, model, parse_cpu_flags(settings.cpu_model_extra_flags))


def _mode(settings: AgentSettings, virt_type: str) -> str | None:
    """Return the setting ``cpu_mode``; ``None`` if it is not set. If the setting is host-passthrough, which needs KVM,
    and *virt_type* is not kvm, return the CPU mode "none" instead."""
    return NONE if settings.cpu_mode == PASSTHROUGH and virt_type != "kvm" else settings.cpu_mode


def _model(host: LocalHost, required_traits: Collection[str], virt_type: str) -> str:
    """Return the first CPU model in the settings that this host supports and that has the *required_traits*.
    *virt_type*: kvm or qemu. Raises ``Conflict`` if there is no such model."""
    settings = host.settings
    models = _usable(settings, host.hypervisor, virt_type)
    if not models:
        raise Conflict(f"Host {host.name} can give guests of type {virt_type} none of the CPU models "
                       f"{', '.join(settings.cpu_models)} (its agent's setting cpu_models). It can give "
                       f"{', '.join(host.hypervisor.cpu_choices(virt_type).usable)}.")
    if not required_traits:
        return models[0]
    besides = parse_cpu_flags(settings.cpu_model_extra_flags)
    for model in models:
        if traits_of_features(host.hypervisor.cpu_features(virt_type, model, besides)).issuperset(required_traits):
            return model
    raise Conflict(f"hardware.{CPU_TRAITS}: none of the CPU models {', '.join(models)} of host {host.name} (its "
                   f"agent's setting cpu_models) has {', '.join(required_traits)}. Add one that has, or choose "
                   "another host.",
                   field=f"hardware.{CPU_TRAITS}")


def _usable(settings: AgentSettings, hypervisor: LocalHypervisor, virt_type: str) -> list[str]:
    known_models = hypervisor.cpu_choices(virt_type).models
    return [model for model in settings.cpu_models if known_models.get(model)]


def is_other(host: LocalHost, domain: Domain) -> bool:
    """Return whether the settings now give the *domain* another CPU mode than it was defined with."""
    try:
        cpu_mode = guest_cpu_mode(host, domain.hardware, domain.virt_type)
    except MagnetarError:
        return False  # its start reports the reason
    return domain.cpu != ("" if cpu_mode is None else cpu_mode.note)


def guest_cpu_features(host: LocalHost, facts: Mapping[str, Any], kvm: bool) -> Collection[str]:
    """Return the CPU features (flags) of guests on this host. With the setting ``cpu_models``, these are the features
    of all listed models together, as in Nova. *facts*: the result of ``LocalHypervisor.host``. *kvm*: whether guests
    run under KVM and can therefore have the features of the host's CPU."""
    settings, host_features = host.settings, (facts.get("cpu_info") or {}).get("features") or ()
    virt_type = "kvm" if kvm else "qemu"
    mode = _mode(settings, virt_type)
    if mode is None:
        return host_features if kvm else EMULATED
    if mode == NONE:
        return EMULATED
    besides = parse_cpu_flags(settings.cpu_model_extra_flags)
    try:
        if mode == CUSTOM:
            guest_features = frozenset[str]().union(*(host.hypervisor.cpu_features(virt_type, model, besides)
                                                      for model in _usable(settings, host.hypervisor, virt_type)))
        else:
            guest_features = frozenset(host_features) if kvm else host.hypervisor.cpu_features(virt_type)
    except HypervisorError as error:
        log.warning("no features of guests' CPUs are told: %s", error.message)
        return ()
    return with_features(guest_features, besides)


def check_cpu_settings(settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
    """Raise ``InvalidSettings`` if this host cannot provide the CPU mode or models in the settings. If libvirt does not
    answer, only log a warning: starting a guest reports the error later."""
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
    usable_text = ", ".join(choices.usable)
    if unknown := [model for model in models if model not in choices.models]:
        raise InvalidSettings(f"cpu_models: libvirt knows no CPU model {', '.join(unknown)} for guests of type "
                              f"{virt_type}. This host can give {usable_text}.")
    usable = _usable(settings, hypervisor, virt_type)
    if models and not usable:
        raise InvalidSettings(f"cpu_models: this host can give guests of type {virt_type} none of {', '.join(models)}. "
                              f"It can give {usable_text}.")
    if unusable := [model for model in models if model not in usable]:
        log.warning("cpu_models: this host cannot give %s, and passes over them", ", ".join(unusable))
    besides = parse_cpu_flags(settings.cpu_model_extra_flags)
    for model in usable or [""] if besides else ():
        try:
            hypervisor.cpu_features(virt_type, model, besides)
        except HypervisorError as error:
            raise InvalidSettings(f"cpu_model_extra_flags: {error.message} Remove what the host's CPU has not, or what "
                                  "no CPU has.") from None
