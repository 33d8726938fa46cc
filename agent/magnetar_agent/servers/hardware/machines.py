# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine type of servers: chosen when they are made, and kept as the version that it was then, so that a guest
finds the same devices whatever QEMU its host gets (spec rows A23.1, A23.2)."""

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


def complete(host: LocalHost, found: Fields, old: Fields) -> None:
    """Make the ``machine`` of *found*, which has its ``hardware``, the version that it stands for here. *old*: what was
    wanted before; what means the same stays. Raises ``InvalidField`` for a machine type that QEMU has not."""
    if old and machines.means(found["machine"], old["machine"]):
        found["machine"] = old["machine"]
        return
    facts, hardware = host.hypervisor.host(), found.get("hardware") or {}
    architecture = architectures.of(hardware, facts)
    wanted = found["machine"]
    if wanted == machines.AUTO:
        wanted = _default(host.settings, architecture, hardware)
    there = _there(facts, architecture)
    if there and wanted not in there:
        raise InvalidField("machine", f"must be a machine type that QEMU of host {host.name} has, which are "
                                      f"{machines.listed(there)}", wanted)
    found["machine"] = there.get(wanted, wanted)


def _there(facts: Fields, architecture: str) -> Mapping[str, str]:
    """The machine types of guests of an architecture, and the version that each is."""
    found: Mapping[str, str] = facts["machine_types"].get(architecture, {})
    return found


def _default(settings: AgentSettings, architecture: str, hardware: Fields) -> str:
    """The machine type of a server of which none is said: the setting's, but for *hardware* that only the usual one
    has."""
    found = _settings(settings).get(architecture)
    if found is not None:
        with suppress(InvalidField):
            check_machine(hardware, found)
            return found
    return machines.usual(hardware)


def _settings(settings: AgentSettings) -> dict[str, str]:
    return dict(one.split("=", 1) for one in settings.hw_machine_type)


def check(settings: AgentSettings, hypervisor: LocalHypervisor) -> None:
    """Raise ``InvalidSettings`` for a default of an architecture of this host's guests that its QEMU has not. While
    libvirt does not answer, nobody knows: then servers that are made say it."""
    if not settings.hw_machine_type:
        return
    try:
        facts = hypervisor.host()
    except HypervisorDown as error:
        log.warning("hw_machine_type is not checked: %s", error.message)
        return
    for architecture, wanted in _settings(settings).items():
        there = _there(facts, architecture)
        if there and wanted not in there:
            raise InvalidSettings(f"hw_machine_type: QEMU of this host has no machine type {wanted}. It has "
                                  f"{machines.listed(there)}.")


def record(host: LocalHost, domains: Mapping[str, Domain]) -> None:
    """Note the version of servers that an earlier agent made without: that of their domain, which libvirt has noted."""
    for known in host.documents.peek("server"):
        domain = domains.get(known.id)
        if machines.is_versioned(known.want.get("machine", "")) or domain is None or not domain.owned:
            continue
        with host.locks.hold("server", known.id):
            document = host.documents.get("server", known.id)
            if document and machines.means(document.want["machine"], domain.machine):
                document.want["machine"] = domain.machine
                host.documents.write(document)
