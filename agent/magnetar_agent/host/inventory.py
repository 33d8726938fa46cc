# SPDX-License-Identifier: GPL-3.0-or-later
"""The host resource: what the host is and has, what is used, and what no document knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import arriving
from magnetar_agent.reconcile.documents import CLOUD
from magnetar_agent.servers import GIB, shares
from magnetar_agent.servers.disks import own_disks, pmem, root_pool
from magnetar_agent.servers.hardware import encrypted_memory, mdevs, memory, pci, placement
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware import machines, numa_providers
from magnetar_core.kinds import Host
from magnetar_core.power import LIVE, RUNNING
from magnetar_core.version import version

from . import facts as told
from . import hypervisor as hv

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers

    from .host import LocalHost


def host(drivers: Drivers) -> dict[str, Any]:
    """The fields of kind ``host``. Works without libvirt too, and then says ``connected: false``."""
    found, hypervisor = usage(drivers.host), drivers.host.hypervisor
    try:
        found |= _virt(hypervisor.kvm()) | {"orphans": orphans(drivers, hypervisor.domains())}
    except MagnetarError:
        found["connected"] = False
    return {field.name: found.get(field.name) for field in Host.fields}


def usage(host: LocalHost) -> dict[str, Any]:
    """As ``host``, without what takes long to find (``orphans``): a few calls to libvirt and no look at the disks."""
    documents = host.documents.peek("server")
    room, persistent = own_disks.room(host), pmem.told(host)
    found: dict[str, Any] = {
        "name": host.name, "agent_version": version(), "connected": host.hypervisor.connected(),
        "servers": len(documents), "cloud_servers": sum(CLOUD in d.state for d in documents),
        "link_name": host.links.name(), "metadata_service": host.metadata_status(),
        "port_security": host.port_security_status(),
        "link_port": host.settings.address[1] if host.settings.address else None,
        "shares": shares.offered(host), "ovn": ovn(host),
        "resources": host.provider_config.resources | pmem.resources(persistent), "pmem": persistent,
        "provider_config": host.provider_config.told,
        "bandwidths": pci.bandwidths(host),
        "address": told.address(host), "metrics": host.meter.look(), "images": told.images(host),
        "image_cache_gb": told.image_cache_gb(host), "injection": told.injection(host),
        "disk_gb": None if room.total is None else room.total // GIB,
        "disk_gb_free": None if room.free is None else room.free // GIB,
        "local_disks": {"format": host.settings.root_format, "pool": host.settings.root_pool or "",
                        "reason": room.reason},
    }
    try:
        domains = host.hypervisor.domains()
        active = [d for d in documents if d.id in domains and domains[d.id].state in LIVE]
        facts = told.facts(host)
        found = facts | found | _virt(facts["kvm"]) | _parts(host) | {
            "machine_types": machines.of_guests(facts),
            "consoles": host.kinds_of_consoles(), "traits": told.traits_of(host, facts, facts["kvm"]["usable"]),
            "running": sum(domains[d.id].state == RUNNING for d in active),
            "vcpus_used": sum(placement.floating(d.want) for d in active),
            "memory_mb": memory.total(host),
            "resources": found["resources"] | encrypted_memory.resources(host, facts),
            "memory_mb_used": sum(d.want["flavor"]["ram"] for d in active),
        }
    except MagnetarError:
        found |= {"connected": False, "resources": None}  # of which libvirt knows a part
    return {field.name: found.get(field.name) for field in Host.fields if field.name != "orphans"}


def _parts(host: LocalHost) -> dict[str, Any]:
    """NUMA cells and devices, and what is told of them."""
    devices, dividable, cells = pci.devices(host), mdevs.devices(host), placement.told(host)
    above = numa_providers.parents(cell["id"] for cell in cells["numa_cells"])
    return cells | pci.told(host, devices) | mdevs.told(host, dividable) | {"providers": [
        *cells["providers"], *pci.providers(host, devices, above), *mdevs.providers(host, dividable, above)]}


def ovn(host: LocalHost) -> dict[str, str]:
    """Whether ports of OVN can be plugged in."""
    seen = host.hypervisor.integration_bridge(host.settings.integration_bridge)
    return {"bridge": seen.name, "datapath": seen.datapath, "chassis": seen.chassis, "reason": seen.reason}


def _virt(kvm: dict[str, Any]) -> dict[str, Any]:
    return {"kvm": kvm, "virt_types": (["kvm"] if kvm["usable"] else []) + ["qemu"]}


def orphans(drivers: Drivers, domains: dict[str, hv.Domain]) -> dict[str, list[str]]:
    """Domains of ours and files that no document knows. There should be none; they are told, never removed."""
    known = {d.id for d in drivers.host.documents.peek("server")} | arriving(drivers.host)
    found = {
        "domains": sorted(f"{d.name} ({d.uuid})" for d in domains.values() if d.owned and d.uuid not in known),
        "files": sorted({str(Path(path)) for driver in drivers for path in driver.left(drivers.host)}),
    }
    if root_pool.type_of(drivers.host, drivers.host.settings.root_pool) == root_pool.RBD:
        found["shared"] = own_disks.unknown(drivers.host)
    return found
