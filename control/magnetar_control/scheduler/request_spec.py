# SPDX-License-Identifier: GPL-3.0-or-later
"""The request for a host: what one server needs of a host. ``spec_of_server`` builds it for creates, moves and dry
runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from magnetar_control.documents import BlockDevice, FlavorOfServer, PortRequest, ServerNic
from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import Amounts, Group
from magnetar_control.store.claims.nic_bandwidth import (
    BandwidthRequest,
    RequestedResources,
    bandwidth_placements,
    bandwidth_requests,
)
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidField, MagnetarError
from magnetar_core.hardware import groups, numa, pmem
from magnetar_core.hardware.flavor_specs import RESOURCES
from magnetar_core.hardware.machines import machine_of_image
from magnetar_core.hardware.merge import MEMORY_KEY, encrypts_memory, hardware_of_specs, requested_hardware
from magnetar_core.hardware.numa import Needs
from magnetar_core.hardware.pci import REMOTE
from magnetar_core.hardware.pci import device_requests as asked_devices
from magnetar_core.hardware.rows import BY_SPEC, parse_hardware_specs
from magnetar_core.hardware.traits import RequestedTraits, requested_host_traits
from magnetar_core.kinds.server import is_root_volume
from magnetar_core.power import RESCUED, SOFT_DELETED

#: MiB in one GiB; flavors give swap in MiB.
MIB_PER_GIB = 1024


#: The extra spec of persistent memory.
PMEM = "hw:pmem"
#: Extra specs and image properties that affect which CPUs and memory of a host a server gets.
_PLACED = re.compile("hw[:_](cpu_policy|cpu_realtime|numa_nodes|mem_page_size)|resources:PCPU")


#: Extra specs that only filters compare with hosts: aggregates' metadata, capabilities, and names without a scope.
_FILTERED = re.compile("(aggregate_instance_extra_specs|capabilities):|[^:]*$")


def placed_hardware(flavor: FlavorOfServer, image: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return the hardware request of a server with *flavor* (its ``extra_specs``) and *image* (its ``properties``), if
    this request affects which CPUs and memory of the host the server gets, such as dedicated CPUs or huge pages.
    Otherwise return an empty mapping."""
    names = (*(flavor.get("extra_specs") or ()), *((image or {}).get("properties") or ()))
    if not any(map(_PLACED.match, names)):
        return {}
    try:
        hardware: Mapping[str, Any] = requested_hardware(flavor, image or {}).get("hardware", {})
    except InvalidField:  # a server older than this refusal: its host reports it
        hardware = {}
    return hardware


def numa_of(flavor: FlavorOfServer, image: Mapping[str, Any], nics: Iterable[ServerNic | PortRequest]) -> Needs | None:
    """Return the requirements of a server with *flavor*, *image* and *nics* on the NUMA cells of its host; ``None`` if
    the server has no such requirements."""
    numa_needs = numa.numa_needs(placed_hardware(flavor, image), int(flavor["vcpus"]), int(flavor["ram"]))
    return numa_needs and numa_needs._replace(networks=tuple(sorted(
        {nic["network_affinity"] for nic in nics if nic.get("network_affinity")})))


def claimed_amounts(flavor: FlavorOfServer, volume_backed: bool = False,
                    image: Mapping[str, Any] | None = None) -> Amounts:
    """Return the amounts (shared CPUs, MiB of memory, GiB of disk, dedicated CPUs) that a server with *flavor* and
    *image* claims on its host. *volume_backed*: the root disk is a volume, and claims nothing. As in Nova, the extra
    specs ``resources:VCPU``, ``resources:MEMORY_MB`` and ``resources:DISK_GB`` override an amount, even with 0."""
    amounts, specs = needed_amounts(flavor, volume_backed, image), flavor.get("extra_specs")
    if not specs:
        return amounts
    return amounts._replace(**{field: int(specs[f"resources:{name}"])
                               for name, field in zip(RESOURCES, Amounts._fields, strict=False)
                               if f"resources:{name}" in specs})


def resources_of(flavor: FlavorOfServer, image: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Return the claims of a server with *flavor* and *image* on further resource classes, as amount by class.

    These are: the classes in the extra specs ``resources:CUSTOM_…``, also with a group number
    (``resources1:CUSTOM_…``); persistent memory (``hw:pmem``); and MEM_ENCRYPTION_CONTEXT, the key of a server with
    encrypted memory. The extra spec ``resources:MEM_ENCRYPTION_CONTEXT`` claims such a key, but does not encrypt the
    memory.
    """
    specs = flavor.get("extra_specs") or {}
    resources = groups.custom_resources(specs)
    if PMEM in specs:
        resources.update(pmem.pmem_resources(specs[PMEM]))
    keys = max(int(specs.get(f"resources:{MEMORY_KEY}", 0)), bool(encrypts_memory(flavor, image or {})))
    if keys:
        resources[MEMORY_KEY] = keys
    return resources


def nics_of(row: ServerRow) -> Sequence[ServerNic | PortRequest]:
    """Return the NICs of the server of *row*; for a server that was never started and has no NICs yet, the NICs in its
    create request."""
    return row.nics if row.nics or row.launched_at else row.request.get("networks") or ()


def isolates_nics(flavor: FlavorOfServer) -> bool:
    """Return whether the *flavor* requires a separate bandwidth provider for each NIC (Nova's ``group_policy``)."""
    return (flavor.get("extra_specs") or {}).get("group_policy") == "isolate"


def bandwidth_of_nics(nics: Iterable[ServerNic | PortRequest]) -> Counter[str]:
    """Return the bandwidth that the NICs request of a host, summed by resource
    (``core.bandwidth.bandwidth_resource``)."""
    bandwidth = Counter[str]()
    for nic in nics:
        bandwidth.update(nic.get("resources") or {})
    return bandwidth


def rescue_gb(row: ServerRow) -> int:
    """Return the GiB of the rescue disk that the server of *row* has or is about to get; 0 without a rescue disk. A
    soft-deleted server keeps its rescue disk until it is restored."""
    rescued = row.vm_state in (RESCUED, SOFT_DELETED) or row.task_state == ACTIONS["rescue"].task
    return (row.rescue_gb or 0) if rescued else 0


def amounts_held_by(row: ServerRow) -> tuple[Amounts, RequestedResources]:
    """Return what the server of *row* must claim on its host, as (amounts including its rescue disk, other resources in
    the form of ``requested_resources``)."""
    amounts = claimed_amounts(row.flavor, any(map(is_root_volume, row.request.get("blocks") or ())), row.image)
    amounts = amounts._replace(disk_gb=amounts.disk_gb + rescue_gb(row))
    return amounts, requested_resources(row.flavor, row.image, nics_of(row))


def requested_resources(flavor: FlavorOfServer, image: Mapping[str, Any],
                        nics: Sequence[ServerNic | PortRequest]) -> RequestedResources:
    """Return the claims of a server with *flavor*, *image* and *nics* in addition to ``claimed_amounts``: further
    resource classes, the bandwidth of its ports, and PCI devices."""
    return RequestedResources({**resources_of(flavor, image), **bandwidth_of_nics(nics)}, devices_of(flavor, nics),
                              bandwidth_requests(nics), isolates_nics(flavor))


def needed_amounts(flavor: FlavorOfServer, volume_backed: bool = False,
                   image: Mapping[str, Any] | None = None) -> Amounts:
    """Return the amounts (shared CPUs, MiB of memory, GiB of disk, dedicated CPUs) that a server with *flavor* and
    *image* really uses on its host. These amounts differ from ``claimed_amounts`` if extra specs override the claimed
    amounts. *volume_backed*: the root disk is a volume, and uses none of the host's disk."""
    hardware, vcpus = placed_hardware(flavor, image), int(flavor["vcpus"])
    shared, pcpus = vcpus - len(numa.pinned_cpus(hardware, vcpus)), numa.dedicated_cpu_count(hardware, vcpus)
    swap, had = -(-int(flavor.get("swap") or 0) // MIB_PER_GIB), flavor_disk_sizes(flavor)
    root = 0 if volume_backed else had["disk"]
    return Amounts(shared, int(flavor["ram"]), root + had["ephemeral"] + swap, pcpus)


def flavor_disk_sizes(flavor: FlavorOfServer) -> dict[str, int]:
    """Return {"disk": GiB, "ephemeral": GiB} of the local disks of a server with *flavor*. The sizes in the flavor's
    field ``grown`` have precedence: disks never shrink, so they stay large when a resize is reverted."""
    grown, sizes = flavor.get("grown") or {}, {"disk": flavor.get("disk"), "ephemeral": flavor.get("ephemeral")}
    return {name: max(int(size or 0), int(grown.get(name) or 0)) for name, size in sizes.items()}


def devices_of(flavor: FlavorOfServer, nics: Iterable[ServerNic | PortRequest] = ()) -> dict[str, int]:
    """Return the number of PCI devices that a server with *flavor* and *nics* requests, by name. For the flavor the
    name is an alias, including virtual GPUs; for NICs it is made from the physical network
    (``pci.network_devices_name``)."""
    specs = flavor.get("extra_specs")
    devices = Counter(asked_devices(parse_hardware_specs(specs, BY_SPEC)) if specs else {})
    for nic in nics:
        devices.update(nic.get("devices") or {})
    return dict(devices)


@dataclass(frozen=True)
class RequestSpec:
    """The request to the scheduler to place one server. Hosts are given by name. ``None`` or an empty value of a field
    means no restriction."""

    server_id: str
    project_id: str
    amounts: Amounts
    #: Amounts of custom resource classes, and of bandwidth (``core.bandwidth``).
    resources: Mapping[str, int] = field(default_factory=dict)
    #: The NICs that request the bandwidth in ``resources``, and whether each needs a separate provider.
    nics: Sequence[BandwidthRequest] = ()
    isolate: bool = False
    #: The unclaimed amounts of the classes in ``resources``, by host name; filled by ``with_current_offers``.
    offers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    numa: Needs | None = None  # CPUs, cells and pages that only some hosts have
    flavor_name: str = ""
    vcpus: int = 1  # of the guest; ``amounts`` may count others
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    image: Mapping[str, Any] = field(default_factory=dict)  # image properties, as in Glance
    machine: str = ""  # the server's machine type
    image_id: str = ""  # empty for a server whose root disk is a volume
    availability_zone: str | None = None  # one zone, or several with commas
    cell_id: str | None = None  # only a host of this cell: a move stays in its cell
    near_cell: str | None = None  # hosts of this cell weigh more: a move that may go into another cell
    host: str | None = None  # only this host (``host``, ``hypervisor_hostname``, the target of a move)
    ignored: frozenset[str] = frozenset()  # excluded hosts: tried before, or the source of a move
    volume_hosts: frozenset[str] | None = None  # hosts that reach the server's volumes; ``None`` for any
    needs_ovn: bool = False  # only hosts that can plug in ports of OVN
    hints: Mapping[str, Any] = field(default_factory=dict)  # the scheduler hints as requested
    #: Hosts of the servers in the hints different_host and same_host; filled by ``spec_of_server``.
    different_host: frozenset[str] = frozenset()
    same_host: frozenset[str] | None = None
    group: Group | None = None
    #: The PCI devices that the server holds from before a resize, by host and name.
    has_devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)  # number of devices claimed, by name
    #: An administrator chose the host with ZONE:HOST: the filters of Nova's scheduler are not applied.
    past_filters: bool = False
    forced: bool = False  # an administrator chose the host: only the claim and a host that answers count
    keeps_reserve: bool = False  # room for the loss of a host stays reserved, for a request that claims more for good
    held: Amounts = field(default_factory=Amounts)  # what a resize gives back in the end

    @property
    def added(self) -> Amounts:
        """Return the amounts by which the action increases the server's claims, for example a resize to a larger
        flavor."""
        return Amounts(*(max(0, new - old) for new, old in zip(self.amounts, self.held, strict=True)))

    def may_enter(self, cell_id: str, *, disabled: bool) -> bool:
        """Return whether the server may be placed in the cell *cell_id*. A *disabled* cell accepts only servers that
        are already in it, and forced requests."""
        return not disabled or self.forced or cell_id == self.cell_id

    def forced_to(self) -> RequestSpec:
        """Return a copy of the request, for a host that an administrator has forced. The copy bypasses most filters:
        the host may be disabled, or in another zone or aggregate."""
        return replace(self, forced=True, past_filters=True, availability_zone=None, extra_specs={}, image={},
                       machine="", volume_hosts=None, hints={}, different_host=frozenset(), same_host=None, group=None)

    def past_all_filters(self) -> RequestSpec:
        """Return a copy of the request that bypasses most filters, for a server that is created with ZONE:HOST. As in
        Nova, the checks of Placement remain: zone, disabled hosts, traits and claims. The server group's policies
        affinity and anti-affinity remain, too."""
        return replace(self, past_filters=True, hints={}, different_host=frozenset(), same_host=None, extra_specs={
            name: value for name, value in self.extra_specs.items() if not _FILTERED.match(name)})

    @cached_property
    def hardware(self) -> Mapping[str, Any]:
        """The hardware that flavor and image request. Empty if flavor and image contradict each other, since the build
        is refused then."""
        try:
            hardware = hardware_of_specs(self.extra_specs, self.image, self.vcpus)
        except InvalidField:
            return {}
        return {**hardware, "machine": self.machine} if self.machine else hardware

    @cached_property
    def only(self) -> frozenset[str] | None:
        """The names of the hosts to which the request limits the choice by name, such as the requested host, or the
        hosts that store the server's volumes; ``None`` without such a limit."""
        group = self.group.hosts if self.group and self.group.policy == "affinity" else ()
        sets = [names for names in (None if self.host is None else frozenset([self.host]), self.volume_hosts,
                                    self.same_host, frozenset(group) or None, self._offering) if names is not None]
        return frozenset.intersection(*sets) if sets else None

    @cached_property
    def _offering(self) -> frozenset[str] | None:
        return frozenset(filter(self._offered_by, self.offers)) if self.resources else None

    def is_offered(self, host: str) -> bool:
        """Return whether *host* has enough left of all requested custom resource classes and bandwidth."""
        return self._offering is None or host in self._offering

    def _offered_by(self, host: str) -> bool:
        offer = self.offers[host]
        if not (self.isolate or any(nic.devices for nic in self.nics)):  # every resource belongs to the whole host
            return all(offer.get(name, 0) >= amount for name, amount in self.resources.items())
        return all(offer.get(name, 0) >= amount for name, amount in self.of_no_nic.items()) and (
            next(bandwidth_placements(self.nics, offer, self.isolate), None) is not None)

    @cached_property
    def of_no_nic(self) -> dict[str, int]:
        """The requested amounts by custom resource class, without the bandwidth that NICs request."""
        amounts = Counter(self.resources)
        for nic in self.nics:
            amounts.subtract({f"{kind}:{nic.network}": n for kind, n in nic.amounts.items()})
        return dict(+amounts)

    @cached_property
    def never(self) -> frozenset[str]:
        """The names of the hosts that the request excludes by name, such as hosts that were already tried."""
        group = self.group if self.group and self.group.policy == "anti-affinity" else None
        crowded = {host for host, n in group.hosts.items() if n >= group.max_per_host} if group else ()
        return self.ignored.union(self.different_host, crowded)

    @cached_property
    def traits(self) -> RequestedTraits:
        """The traits that flavor and image require and forbid."""
        return requested_host_traits(self.extra_specs, self.image)

    @cached_property
    def mates(self) -> Mapping[str, int]:
        """The number of other members of the server's group on each host, if the group has a soft policy; otherwise
        empty."""
        return self.group.hosts if self.group and self.group.policy.startswith("soft-") else {}


def hint_texts(hints: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of the scheduler hint *name* as a list: all values if the hint is a list, its single value if
    it is a text. Empty if the hint is missing."""
    value = hints.get(name) or []
    return [str(text) for text in value] if isinstance(value, (list, tuple)) else [str(value)]


def hinted_host_fields(hints: Mapping[str, Any], where: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the fields ``different_host`` and ``same_host`` of a ``RequestSpec`` for scheduler *hints*. *where*: the
    hosts of each server in these hints, by uuid of the server (``store.hosts.hosts.fetch_hosts_of_servers``). A server
    without a host excludes no host by different_host, and allows no host by same_host."""
    def of(name: str) -> frozenset[str]:
        return frozenset(host for server in hint_texts(hints, name) for host in where.get(server, ()))
    return {"different_host": of("different_host"), "same_host": of("same_host") if hint_texts(hints, "same_host")
            else None}


def spec_of_server(api: Database, volumes: Any, context: Any, row: ServerRow,
                   flavor: FlavorOfServer | None = None, **over: Any) -> RequestSpec:
    """Return the scheduler's request for the server of *row*, which need not be in the database yet.

    *api*: the API database, read only if scheduler hints need it. *volumes*: the volume service. *context*: the context
    of the user whose volumes are read. *flavor*: the new flavor of a resize. *over*: fields of the request that the
    caller sets, such as ``host`` and ``ignored`` for a move.
    """
    request, hints = row.request, row.hints
    names = hinted_server_ids(hints)
    group, where = None, {}
    if hints.get("group") or names:
        with api.read() as connection:
            group = hosts.fetch_scheduling_group(connection, row.id, hints["group"]) if hints.get("group") else None
            where = hosts.fetch_hosts_of_servers(connection, row.project_id, names) if names else {}
    if "volume_hosts" not in over:
        over["volume_hosts"] = hosts_of_block_devices(volumes, context, request.get("blocks") or ())
    spec = spec_of_row(row, flavor, **{"group": group, **hinted_host_fields(hints, where), **over})
    return with_current_offers(api, spec)


def hinted_server_ids(hints: Mapping[str, Any]) -> list[str]:
    """Return the uuids of the servers that the scheduler hints different_host and same_host name."""
    return hint_texts(hints, "different_host") + hint_texts(hints, "same_host")


def spec_of_row(row: ServerRow, flavor: FlavorOfServer | None = None, **over: Any) -> RequestSpec:
    """Return the scheduler's request for the server of *row*, without reading a database. *flavor*: the new flavor of a
    resize. *over*: fields of the request that the caller sets. The caller must also set ``group``, ``volume_hosts`` and
    the hosts of scheduler hints, because these are not in the row."""
    request, image = row.request, row.image
    root, nics = next(filter(is_root_volume, request.get("blocks") or ()), None), nics_of(row)
    if flavor is None:
        flavor = row.flavor
    else:
        over = {"held": claimed_amounts(row.flavor, root is not None, image), **over}
    spec = RequestSpec(**{
        "server_id": row.id, "project_id": row.project_id,
        "amounts": claimed_amounts(flavor, root is not None, image),
        **requested_resources(flavor, image, nics)._asdict(), "numa": numa_of(flavor, image, nics),
        "flavor_name": flavor["name"], "vcpus": int(flavor["vcpus"]), "extra_specs": flavor.get("extra_specs") or {},
        "image": image.get("properties") or {}, "machine": machine_of_image(image),
        "image_id": row.image_id or "", "availability_zone": row.pinned_availability_zone or row.availability_zone,
        "host": request.get("host") or request.get("hypervisor_hostname"), "hints": row.hints,
        "needs_ovn": _on_ovn(row), **over})
    if request.get("past_filters") and not row.launched_at:  # moves and rebuilds do not keep it
        spec = spec.past_all_filters()
    return spec


def with_current_offers(api: Database, spec: RequestSpec) -> RequestSpec:
    """Return a copy of *spec* with the field ``offers``: for each host, the amounts of the requested custom resource
    classes that are not claimed now."""
    if not spec.resources:
        return spec
    with api.read() as connection:
        return replace(spec, offers=inventories.fetch_available_amounts(connection, spec.resources, [
            f"{kind}:{nic.network}/" for nic in spec.nics if nic.devices for kind in nic.amounts]))


def _on_ovn(row: ServerRow) -> bool:
    """Return whether the server has, or will get, OVN ports that its host connects. If the server is new and has no
    NICs yet, the answer depends on the networks in its request."""
    if row.nics:
        return any(agent_nic.get("port") and agent_nic.get("vnic_type") != REMOTE for agent_nic in (
            nic.get("on_host") or {} for nic in row.nics))
    return any(network.get("by_engine") for network in row.request.get("networks") or ())


def hosts_of_block_devices(volumes: Any, context: Any, block_devices: Sequence[BlockDevice]) -> frozenset[str] | None:
    """Return the names of the hosts that can use the existing volumes and snapshots in a server's create request
    (*block_devices*); ``None`` for any host. Such a host can reach the root volume, or has the snapshot from which the
    root volume is created. It can also reach each volume that the server's host opens directly, without an export by
    the host that stores the volume. *volumes*: the volume service."""
    hosts = _hosts_of_volumes(volumes, [{"volume_id": device["uuid"], "boot_index": device["boot_index"]}
                                        for device in block_devices if device["source_type"] == "volume"])
    root = next(filter(is_root_volume, block_devices), None)
    if root is None or root["source_type"] != "snapshot":
        return hosts
    with suppress(MagnetarError):
        snapshot = volumes.snapshot(context, root["uuid"])
        if snapshot and snapshot.get("host"):
            return frozenset([snapshot["host"]]) if hosts is None else hosts & {snapshot["host"]}
    return hosts


def _hosts_of_volumes(volumes: Any, attachments: Sequence[Mapping[str, Any]]) -> frozenset[str] | None:
    """Return the names of the hosts that can use the existing volumes in *attachments*, each {volume_id, boot_index};
    ``None`` for any host. If the volume service refuses, for example because a volume no longer exists, consider only
    the root volume. If it refuses the root volume too, return ``None``; the build will report the error. *volumes*: the
    volume service."""
    roots = [attachment for attachment in attachments if attachment["boot_index"] == 0]
    for counted in (attachments, roots) if attachments else ():
        with suppress(MagnetarError):
            hosts: frozenset[str] | None = volumes.homes.hosts_for_build(counted)
            return hosts
    return None
