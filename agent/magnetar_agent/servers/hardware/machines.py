# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine type of servers. It is chosen when a server is made and stored with its version, so that the guest keeps
the same devices when its host gets another QEMU."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from magnetar_core.errors import HypervisorDown, InvalidField, InvalidSettings
from magnetar_core.hardware import architectures, machines
from magnetar_core.hardware.merge import check_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain, LocalHypervisor
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.settings import AgentSettings

log = logging.getLogger(__name__)


def complete_machine(host: LocalHost, desired: Fields, old: Fields) -> None:
    """Set ``machine`` in *desired* to a versioned machine type that this host's QEMU has, such as pc-q35-8.2.
    *desired*: the server's new fields. *old*: the server's fields before the change; if the machine type is unchanged,
    the version in *old* stays. Raises ``InvalidField`` for a machine type that QEMU lacks."""
    if old and machines.is_same_machine(desired["machine"], old["machine"]):
        desired["machine"] = old["machine"]
        return
    facts, hardware = host.hypervisor.host(), desired.get("hardware") or {}
    architecture = architectures.guest_architecture(hardware, facts)
    machine = desired["machine"]
    if machine == machines.AUTO:
        machine = _default(host.settings, architecture, hardware)
    versions = _machine_versions(facts, architecture)
    if versions and machine not in versions:
        raise InvalidField("machine", f"must be a machine type that QEMU of host {host.name} has, which are "
                                      f"{machines.describe_machines(versions)}", machine)
    desired["machine"] = versions.get(machine, machine)


def _machine_versions(facts: Fields, architecture: str) -> Mapping[str, str]:
    """Return ``{machine type: versioned machine type}`` for guests of this CPU *architecture*. *facts*: the host's
    fields."""
    versions: Mapping[str, str] = facts["machine_types"].get(architecture, {})
    return versions


def _default(settings: AgentSettings, architecture: str, hardware: Fields) -> str:
    """Return the default machine type for guests of this CPU *architecture*: the type in the setting
    ``hw_machine_type`` if it supports the *hardware*, otherwise the built-in default."""
    machine = _settings(settings).get(architecture)
    if machine is not None:
        with suppress(InvalidField):
            check_machine(hardware, machine)
            return machine
    return machines.default_machine(hardware)


def _settings(settings: AgentSettings) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in settings.hw_machine_type)


def check_machine_settings(settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
    """Raise ``InvalidSettings`` if this host's QEMU lacks a machine type that the setting ``hw_machine_type`` names. If
    libvirt does not answer, only log a warning: creating a server reports the error later."""
    if not settings.hw_machine_type:
        return
    try:
        facts = hypervisor.host()
    except HypervisorDown as error:
        log.warning("hw_machine_type is not checked: %s", error.message)
        return
    for architecture, machine in _settings(settings).items():
        versions = _machine_versions(facts, architecture)
        if versions and machine not in versions:
            raise InvalidSettings(f"hw_machine_type: QEMU of this host has no machine type {machine}. It has "
                                  f"{machines.describe_machines(versions)}.")


def record_machine_versions(host: LocalHost, domains: Mapping[str, Domain]) -> None:
    """Store the versioned machine type in the documents of servers that lack it because an older agent created them.
    *domains*: the libvirt domains by server uuid; their definitions contain the version."""
    for server in host.documents.peek("server"):
        domain = domains.get(server.id)
        if machines.is_versioned(server.want.get("machine", "")) or domain is None or not domain.owned:
            continue
        with host.locks.hold("server", server.id):
            document = host.documents.get("server", server.id)
            if document and machines.is_same_machine(document.want["machine"], domain.machine):
                document.want["machine"] = domain.machine
                host.documents.write(document)
