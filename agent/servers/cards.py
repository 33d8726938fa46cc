# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs of a running server: taken out and plugged in while it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.servers import spec
from magnetar_agent.volumes import attaching

if TYPE_CHECKING:
    from magnetar_agent.drivers import Fields, Task
    from magnetar_agent.hypervisor import Nic


def plug(task: Task, networks: list[Fields]) -> None:
    """Let the guest have the NICs of the document, and no others. When it does not let go of one, the document is what
    it was: *networks*."""
    agent, id = task.agent, task.document.id
    seen = agent.hypervisor.running(id)
    if seen is None:
        return  # it has stopped; its next start brings them
    wanted = {nic.mac: nic for nic in (spec.nic(agent, one) for one in task.document.want["networks"])}
    try:
        for nic in seen.nics:
            if nic.mac not in wanted or not _alike(nic, wanted[nic.mac]):
                attaching.unplug(agent, id, nic, f"NIC {nic.mac}", task.operation)
        for nic in wanted.values():
            attaching.plug(agent, id, nic)
    except Exception:
        task.document.want["networks"] = networks
        task.document.state.pop("unfinished", None)
        task.keep()
        raise


def _alike(one: Nic, other: Nic) -> bool:
    """Whether they differ in nothing but what is only noted."""
    return replace(one, tag=None) == replace(other, tag=None)
