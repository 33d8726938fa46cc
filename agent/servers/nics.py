# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs of a running server: unplugged and plugged while it runs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.servers import function_settings, pci, spec
from magnetar_agent.volumes import attaching
from magnetar_core.errors import MagnetarError

if TYPE_CHECKING:
    from magnetar_agent.documents import Fields
    from magnetar_agent.hypervisor import Domain
    from magnetar_agent.networks import Nic
    from magnetar_agent.task import Task


def plug(task: Task, networks: list[Fields]) -> None:
    """Plug and unplug NICs until the guest has those of the document. If it does not release one, the document gets its
    former *networks* back."""
    host, id = task.host, task.document.id
    seen = host.hypervisor.running(id)
    if seen is None:
        return  # it has stopped; its next start brings them
    wanted = {nic.mac: nic for nic in spec.nics(host, task.document)}
    try:
        for nic in seen.nics:
            if nic.mac not in wanted or not _alike(nic, wanted[nic.mac]):
                attaching.unplug(host, id, nic, f"NIC {nic.mac}", task.operation)
        function_settings.apply(host, task.document)
        for nic in wanted.values():
            attaching.plug(host, id, nic)
    except Exception:
        there = _back(task, seen)
        task.document.want["networks"] = networks
        pci.follow_nics(task.document.want, failed=True, there=there)
        task.document.state.pop("unfinished", None)
        task.keep()
        function_settings.give_back(host)
        raise
    if pci.BEFORE in task.document.want:
        pci.follow_nics(task.document.want, failed=False)
        task.keep()
        function_settings.give_back(host)


def _back(task: Task, before: Domain) -> set[str]:
    """Plug again what was unplugged. Returns the addresses of devices that are NICs of the guest."""
    now = task.host.hypervisor.running(task.document.id)
    there = {nic.mac for nic in now.nics} if now else set()
    for nic in before.nics:
        if now and nic.mac not in there:
            with suppress(MagnetarError):  # its next start brings it
                attaching.plug(task.host, task.document.id, nic)
    return {nic.device for nic in now.nics if nic.device} if now else set()


def _alike(one: Nic, other: Nic) -> bool:
    """Whether they differ at most in their tags, which the guest does not see."""
    return replace(one, tag=None) == replace(other, tag=None)
