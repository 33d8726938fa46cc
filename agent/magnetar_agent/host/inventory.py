# SPDX-License-Identifier: GPL-3.0-or-later
"""The host resource: facts, inventory and usage of the host, and objects on it that belong to no document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.migrations import arriving_servers
from magnetar_agent.reconcile.documents import CLOUD
from magnetar_agent.servers import GIB, shares
from magnetar_agent.servers.disks import own_disks, pmem, rbd_owner, root_pool
from magnetar_agent.servers.hardware import encrypted_memory, mdevs, memory, pci, placement
from magnetar_agent.volumes.pool_reports import report_pools
from magnetar_core.capabilities import capabilities_of
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware import machines, numa_providers
from magnetar_core.kinds import Host
from magnetar_core.power import LIVE, RUNNING
from magnetar_core.version import installed_version

from . import facts
from . import hypervisor as hv
from .disk_folder import report_disk_folder

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers

    from .host import LocalHost


def host_resource(drivers: Drivers) -> dict[str, Any]:
    """Return the fields of the API's resource ``host``. When libvirt does not answer, ``connected`` is ``False``."""
    fields, hypervisor = host_usage(drivers.host), drivers.host.hypervisor
    try:
        fields |= _virt(hypervisor.kvm()) | {"orphans": host_orphans(drivers, hypervisor.domains())}
    except MagnetarError:
        fields["connected"] = False
    return {field.name: fields.get(field.name) for field in Host.fields}


def host_usage(host: LocalHost) -> dict[str, Any]:
    """Return the fields of the API's resource ``host`` except ``orphans``, which take long to find; the other fields
    need only few calls of libvirt and no scan of disks. When libvirt does not answer, ``connected`` is ``False``."""
    documents = host.documents.peek("server")
    room, persistent = own_disks.own_disk_room(host), pmem.pmem_facts(host)
    fields: dict[str, Any] = {
        "name": host.name, "agent_version": installed_version(), "connected": host.hypervisor.connected(),
        "servers": len(documents), "cloud_servers": sum(CLOUD in d.state for d in documents),
        "link_name": host.links.name(), "metadata_service": host.metadata_status(),
        "port_security": host.port_security_status(),
        "link_port": host.settings.address[1] if host.settings.address else None,
        "shares": shares.share_names(host), "ovn": ovn_status(host),
        "resources": host.provider_config.resources | pmem.pmem_inventories(persistent), "pmem": persistent,
        "provider_config": host.provider_config.as_field, "bandwidths": pci.promised_bandwidths(host),
        "address": facts.advertised_host_address(host), "metrics": host.meter.measure(),
        "images": facts.stored_image_ids(host), "capabilities": list(capabilities_of("agent")),
        "image_cache_gb": facts.image_cache_gb(host), "injection": facts.injection_status(host),
        "disk_gb": None if room.total is None else room.total // GIB,
        "disk_gb_free": None if room.free is None else room.free // GIB,
        **_storage(host, room),
    }
    try:
        domains = host.hypervisor.domains()
        host.load.measure(host.hypervisor.guest_usages)
        active = [d for d in documents if d.id in domains and domains[d.id].state in LIVE]
        known_facts = facts.host_facts(host)
        fields = known_facts | fields | _virt(known_facts["kvm"]) | _parts(host) | {
            "machine_types": machines.guest_machines(known_facts),
            "traits": facts.traits_of(host, known_facts, known_facts["kvm"]["usable"]),
            "consoles": host.kinds_of_consoles(), "running": sum(domains[d.id].state == RUNNING for d in active),
            "vcpus_used": sum(placement.floating_vcpus(d.want) for d in active),
            "memory_mb": memory.guest_memory_total(host),
            "resources": fields["resources"] | encrypted_memory.memory_key_inventory(host, known_facts),
            "memory_mb_used": sum(d.want["flavor"]["ram"] for d in active),
        }
    except MagnetarError:
        fields |= {"connected": False, "resources": None}  # libvirt knows a part of these
    return {field.name: fields.get(field.name) for field in Host.fields if field.name != "orphans"}


def _storage(host: LocalHost, room: own_disks.Room) -> dict[str, Any]:
    """Return the host's field ``pools``, and the fields ``local_disks``, ``disk_folder`` and ``disk_pool``, which say
    where its servers' disks are. *room*: the storage for new disks; its *reason* says why that storage cannot be used.
    """
    reports = report_pools(host)
    return {"pools": reports,
            "local_disks": {"format": host.settings.root_format, "pool": host.settings.root_pool or "",
                            "reason": room.reason},
            "disk_folder": disk_folder_fields(host), "disk_pool": rbd_owner.report_disk_pool(host, reports)}


def disk_folder_fields(host: LocalHost) -> dict[str, Any] | None:
    """Return ``path``, ``id``, ``owner`` and ``reason`` of the shared folder for servers' disks; ``None`` if the
    settings have no shared folder. ``owner``: the uuid of this host. ``reason``: why the folder cannot be used, "" if
    it can. The folder's size is left out, because it changes often."""
    report = report_disk_folder(host)
    return report and {name: report[name] for name in ("path", "id", "owner", "reason")}


def host_load(host: LocalHost) -> dict[str, Any]:
    """Return the load of the host and its guests. It is measured now, unless the last measurement is less than half a
    minute old."""
    host.load.measure(host.hypervisor.guest_usages)
    return host.load.report()


def _parts(host: LocalHost) -> dict[str, Any]:
    """Return the host's fields about NUMA cells, PCI devices and mediated devices, and ``providers``: the Placement
    resource providers for these cells and devices."""
    devices, dividable, cells = pci.assignable_devices(host), mdevs.divisible_devices(host), placement.placement_facts(
        host)
    above = numa_providers.cell_parents(cell["id"] for cell in cells["numa_cells"])
    return cells | pci.pci_facts(host, devices) | mdevs.mdev_facts(host, dividable) | {"providers": [
        *cells["providers"], *pci.pci_providers(host, devices, above), *mdevs.mdev_providers(host, dividable, above)]}


def ovn_status(host: LocalHost) -> dict[str, str]:
    """Return ``bridge``, ``datapath``, ``chassis`` and ``reason`` of OVN's integration bridge. ``reason``: why ports of
    OVN cannot be connected to the bridge; "" if they can."""
    bridge = host.hypervisor.integration_bridge(host.settings.integration_bridge)
    return {"bridge": bridge.name, "datapath": bridge.datapath, "chassis": bridge.chassis, "reason": bridge.reason}


def _virt(kvm: dict[str, Any]) -> dict[str, Any]:
    return {"kvm": kvm, "virt_types": (["kvm"] if kvm["usable"] else []) + ["qemu"]}


def host_orphans(drivers: Drivers, domains: dict[str, hv.Domain]) -> dict[str, list[str]]:
    """Return the domains and files on this host that Magnetar created and that belong to no document: ``domains``
    (names with uuids) and ``files`` (paths). Such orphans should not exist; they are reported for an operator, and
    never removed. If servers' disks are RBD images, also return ``shared``: images in the Ceph pool that belong to no
    server of this host, but may belong to a server of another host. *domains*: all domains of the host by uuid."""
    known_ids = {d.id for d in drivers.host.documents.peek("server")} | arriving_servers(drivers.host)
    unknown = {
        "domains": sorted(f"{d.name} ({d.uuid})" for d in domains.values() if d.owned and d.uuid not in known_ids),
        "files": sorted({str(Path(path)) for driver in drivers for path in driver.left(drivers.host)}),
    }
    if root_pool.type_of(drivers.host, drivers.host.settings.root_pool) == root_pool.RBD:
        unknown["shared"] = own_disks.foreign_rbd_images(drivers.host)
    return unknown
