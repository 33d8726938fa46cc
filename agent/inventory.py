# SPDX-License-Identifier: GPL-3.0-or-later
"""The host resource: what the host is and has, what is used, and what no document knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent import hypervisor as hv
from magnetar_agent.migrations import arriving
from magnetar_agent.servers import GIB
from magnetar_agent.version import version
from magnetar_core.errors import MagnetarError
from magnetar_core.kinds import Host
from magnetar_core.power import LIVE, RUNNING

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent


def host(agent: Agent) -> dict[str, Any]:
    """The fields of kind ``host``. Works without libvirt too, and then says ``connected: false``."""
    found = usage(agent)
    try:
        found |= _virt(agent.hypervisor.kvm()) | {"orphans": orphans(agent, agent.hypervisor.domains())}
    except MagnetarError:
        found["connected"] = False
    return {field.name: found.get(field.name) for field in Host.fields}


def usage(agent: Agent) -> dict[str, Any]:
    """As ``host``, without what takes long to find (``orphans``): a few calls to libvirt and no look at the disks."""
    documents = agent.documents.peek("server")
    disk = shutil.disk_usage(agent.settings.state_dir)
    found: dict[str, Any] = {
        "name": agent.host_name, "agent_version": version(), "connected": agent.hypervisor.connected(),
        "servers": len(documents), "link_name": agent.links.name(),
        "link_port": agent.settings.address[1] if agent.settings.address else None,
        "disk_gb": disk.total // GIB, "disk_gb_free": disk.free // GIB,
    }
    try:
        domains = agent.hypervisor.domains()
        active = [d for d in documents if d.id in domains and domains[d.id].state in LIVE]
        facts = agent.hypervisor.host()
        found = facts | found | _virt(facts["kvm"]) | {
            "running": sum(domains[d.id].state == RUNNING for d in active),
            "vcpus_used": sum(d.want["flavor"]["vcpus"] for d in active),
            "memory_mb_used": sum(d.want["flavor"]["ram"] for d in active),
        }
    except MagnetarError:
        found["connected"] = False
    return {field.name: found.get(field.name) for field in Host.fields if field.name != "orphans"}


def _virt(kvm: dict[str, Any]) -> dict[str, Any]:
    return {"kvm": kvm, "virt_types": (["kvm"] if kvm["usable"] else []) + ["qemu"]}


def orphans(agent: Agent, domains: dict[str, hv.Domain]) -> dict[str, list[str]]:
    """Domains of ours and files that no document knows. There should be none; they are told, never removed."""
    known = {d.id for d in agent.documents.peek("server")} | arriving(agent)
    return {
        "domains": sorted(f"{d.name} ({d.uuid})" for d in domains.values() if d.owned and d.uuid not in known),
        "files": sorted({str(Path(path)) for driver in agent.drivers.values() for path in driver.left(agent)}),
    }
