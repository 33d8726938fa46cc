# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of the scheduler for one server. ``of_server`` makes it for creates, moves and dry runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson

from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import Amounts, Group
from magnetar_control.store.claims.nic_bandwidth import Asking, WantedResources, asking, shares
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import hosts
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidField, MagnetarError
from magnetar_core.hardware import groups, numa, pmem
from magnetar_core.hardware.flavor_specs import RESOURCES
from magnetar_core.hardware.machines import machine_of
from magnetar_core.hardware.merge import MEMORY_KEY, asked_of, encrypts_memory, hardware_of
from magnetar_core.hardware.numa import Needs
from magnetar_core.hardware.pci import REMOTE
from magnetar_core.hardware.pci import asked as asked_devices
from magnetar_core.hardware.rows import BY_SPEC, said
from magnetar_core.hardware.traits import Asked, asked
from magnetar_core.kinds.server import is_root_volume
from magnetar_core.power import RESCUED, SOFT_DELETED

#: Swap of flavors is in MiB.
MIB_PER_GIB = 1024


#: The extra spec of persistent memory.
PMEM = "hw:pmem"
#: Beginnings of the extra specs and properties by which a server needs certain CPUs and memory of a host.
_PLACED = re.compile("hw[:_](cpu_policy|cpu_realtime|numa_nodes|mem_page_size)|resources:PCPU")


#: Extra specs that only filters compare with hosts: aggregates' metadata, capabilities, and names without a scope.
_FILTERED = re.compile("(aggregate_instance_extra_specs|capabilities):|[^:]*$")


def placed_hardware(flavor: Mapping[str, Any], image: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The hardware of a server of *flavor* (``extra_specs``) and *image* (``properties``), where that needs certain
    CPUs and memory of its host; else nothing."""
    names = (*(flavor.get("extra_specs") or ()), *((image or {}).get("properties") or ()))
    if not any(map(_PLACED.match, names)):
        return {}
    try:
        found: Mapping[str, Any] = asked_of(flavor, image or {}).get("hardware", {})
    except InvalidField:  # of before it was refused: its host says so
        found = {}
    return found


def numa_of(flavor: Mapping[str, Any], image: Mapping[str, Any], nics: Iterable[Mapping[str, Any]]) -> Needs | None:
    """What a server of *flavor* and *image* with these *nics* needs of the NUMA cells of a host."""
    found = numa.needs(placed_hardware(flavor, image), int(flavor["vcpus"]), int(flavor["ram"]))
    return found and found._replace(networks=tuple(sorted(
        {nic["network_affinity"] for nic in nics if nic.get("network_affinity")})))


def amounts_of(flavor: Mapping[str, Any], volume_backed: bool = False,
               image: Mapping[str, Any] | None = None) -> Amounts:
    """What a server of *flavor* and *image* claims of a host; a root disk that is a volume claims nothing. Extra specs
    ``resources:VCPU``, ``MEMORY_MB`` and ``DISK_GB`` say another amount, which may be 0 (Nova's overrides)."""
    found, specs = needs(flavor, volume_backed, image), flavor.get("extra_specs")
    if not specs:
        return found
    return found._replace(**{field: int(specs[f"resources:{name}"])
                             for name, field in zip(RESOURCES, Amounts._fields, strict=False)
                             if f"resources:{name}" in specs})


def resources_of(flavor: Mapping[str, Any], image: Mapping[str, Any] | None = None) -> dict[str, int]:
    """What a server of *flavor* and *image* claims of resource classes that are no ``Amounts``: its extra specs
    ``resources:CUSTOM_…``, with those of groups (``resources1:CUSTOM_…``), its persistent memory (``hw:pmem``), and the
    key of memory that is encrypted, which ``resources:MEM_ENCRYPTION_CONTEXT`` claims without encrypting it, too."""
    specs = flavor.get("extra_specs") or {}
    found = groups.custom_resources(specs)
    if PMEM in specs:
        found.update(pmem.resources(specs[PMEM]))
    keys = max(int(specs.get(f"resources:{MEMORY_KEY}", 0)), bool(encrypts_memory(flavor, image or {})))
    if keys:
        found[MEMORY_KEY] = keys
    return found


def nics_of(row: Mapping[Any, Any], request: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The NICs of a server by its row, or, of one that was never started and may have none yet, what is asked for."""
    found: Sequence[Mapping[str, Any]] = orjson.loads(row.get("interfaces") or "[]")
    return found if found or row.get("launched_at") else request.get("networks") or ()


def isolates(flavor: Mapping[str, Any]) -> bool:
    """Whether the *flavor* wants each NIC to have its bandwidth of another provider (Nova's ``group_policy``)."""
    return (flavor.get("extra_specs") or {}).get("group_policy") == "isolate"


def bandwidth_of_nics(nics: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """The sum of what NICs ask of a host, by ``core.bandwidth.resource``."""
    found = Counter[str]()
    for nic in nics:
        found.update(nic.get("resources") or {})
    return found


def rescue_gb(row: Mapping[Any, Any]) -> int:
    """Return the GiB of the rescue disk that a server by its row has, or is about to have. A soft-deleted one keeps it
    until it is restored."""
    rescued = row.get("vm_state") in (RESCUED, SOFT_DELETED) or row.get("task_state") == ACTIONS["rescue"].task
    return int(row.get("rescue_gb") or 0) if rescued else 0


def held_by(row: Any) -> tuple[Amounts, WantedResources]:
    """What a server by its row is to hold of its host: ``amounts_of`` with its rescue disk, and ``wanted_of``."""
    flavor, request, image = (orjson.loads(one) for one in (row.flavor, row.request, row.image))
    amounts = amounts_of(flavor, any(map(is_root_volume, request.get("blocks") or ())), image)
    columns = row._mapping  # noqa: SLF001 - SQLAlchemy's name
    amounts = amounts._replace(disk_gb=amounts.disk_gb + rescue_gb(columns))
    return amounts, wanted_of(flavor, image, nics_of(columns, request))


def wanted_of(flavor: Mapping[str, Any], image: Mapping[str, Any],
              nics: Sequence[Mapping[str, Any]]) -> WantedResources:
    """What a server of *flavor* and *image* with these *nics* is to hold of a host, besides ``amounts_of``:
    ``resources_of`` with what its ports ask for, and ``devices_of``."""
    return WantedResources({**resources_of(flavor, image), **bandwidth_of_nics(nics)}, devices_of(flavor, nics),
                           asking(nics), isolates(flavor))


def needs(flavor: Mapping[str, Any], volume_backed: bool = False, image: Mapping[str, Any] | None = None) -> Amounts:
    """The CPUs of both kinds, MiB and GiB that a server of *flavor* and *image* really has of its host."""
    hardware, vcpus = placed_hardware(flavor, image), int(flavor["vcpus"])
    shared, pcpus = vcpus - len(numa.pinned(hardware, vcpus)), numa.dedicated(hardware, vcpus)
    swap, had = -(-int(flavor.get("swap") or 0) // MIB_PER_GIB), sizes(flavor)
    root = 0 if volume_backed else had["disk"]
    return Amounts(shared, int(flavor["ram"]), root + had["ephemeral"] + swap, pcpus)


def sizes(flavor: Mapping[str, Any]) -> dict[str, int]:
    """GiB of the disks of a server with *flavor*. Disks never shrink: after a reverted resize they are as large as
    ``grown`` in the server's flavor says."""
    grown = flavor.get("grown") or {}
    return {name: max(int(flavor.get(name) or 0), int(grown.get(name) or 0)) for name in ("disk", "ephemeral")}


def devices_of(flavor: Mapping[str, Any], nics: Iterable[Mapping[str, Any]] = ()) -> dict[str, int]:
    """How many PCI devices of which alias, and virtual GPUs, a server of *flavor* has, and devices of which
    physical network (``pci.of_network``) for its *nics*; only flavors and ports ask for some."""
    specs = flavor.get("extra_specs")
    found = Counter(asked_devices(said(specs, BY_SPEC)) if specs else {})
    for nic in nics:
        found.update(nic.get("devices") or {})
    return dict(found)


@dataclass(frozen=True)
class RequestSpec:
    """One server to be placed. Hosts are names; ``None`` or empty means any."""

    server_id: str
    project_id: str
    amounts: Amounts
    #: Amounts of custom resource classes, and of bandwidth (``core.bandwidth``).
    resources: Mapping[str, int] = field(default_factory=dict)
    #: The NICs that ask for that bandwidth, and whether each is to have another provider.
    nics: Sequence[Asking] = ()
    isolate: bool = False
    #: By name of host what is left there of each of them; ``offered`` looks it up.
    offers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    numa: Needs | None = None  # CPUs, cells and pages that only some hosts have
    flavor_name: str = ""
    vcpus: int = 1  # of the guest; ``amounts`` may count others
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    image: Mapping[str, Any] = field(default_factory=dict)  # properties of the image, as Glance has them
    machine: str = ""  # the machine type that the server has
    image_id: str = ""  # empty for a server whose root disk is a volume
    availability_zone: str | None = None  # one zone, or several with commas
    cell_id: str | None = None  # only a host of this cell: a move stays in its cell
    near_cell: str | None = None  # hosts of this cell weigh more: a move that may go into another cell
    host: str | None = None  # only this host (``host``, ``hypervisor_hostname``, the target of a move)
    ignored: frozenset[str] = frozenset()  # not these: tried before, or the source of a move
    volume_hosts: frozenset[str] | None = None  # only these, since the root volume lies there; ``None`` for any
    needs_ovn: bool = False  # only hosts that can give it ports of OVN
    hints: Mapping[str, Any] = field(default_factory=dict)  # the scheduler hints as they came
    #: Hosts of the servers that the hints different_host and same_host name; ``of_server`` looks them up.
    different_host: frozenset[str] = frozenset()
    same_host: frozenset[str] | None = None
    group: Group | None = None
    #: PCI devices by name that the server has already, by host: those before a resize.
    has_devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)  # how many of which name it claims
    #: An administrator has chosen the host by ZONE:HOST: the filters that Nova's scheduler has are not applied.
    past_filters: bool = False
    forced: bool = False  # only what a claim and a host that answers need is looked at: an administrator has chosen

    def may_enter(self, cell_id: str, *, disabled: bool) -> bool:
        """Return whether the server may be placed in a cell: in a disabled one where it is there, or was forced."""
        return not disabled or self.forced or cell_id == self.cell_id

    def forced_to(self) -> RequestSpec:
        """The same for a host that was forced: it may be disabled, and of whatever zone, group and aggregate."""
        return replace(self, forced=True, past_filters=True, availability_zone=None, extra_specs={}, image={},
                       machine="", volume_hosts=None, hints={}, different_host=frozenset(), same_host=None, group=None)

    def past_all_filters(self) -> RequestSpec:
        """Return the same request for a host that was asked for by ZONE:HOST. As in Nova, Placement's part stays: the
        zone, disabled hosts, traits, and everything that is claimed; so does the server group's hard policy."""
        return replace(self, past_filters=True, hints={}, different_host=frozenset(), same_host=None, extra_specs={
            name: value for name, value in self.extra_specs.items() if not _FILTERED.match(name)})

    @cached_property
    def hardware(self) -> Mapping[str, Any]:
        """What flavor and image ask of the server's hardware; nothing where they cannot go together, which its build
        is refused for."""
        try:
            found = hardware_of(self.extra_specs, self.image, self.vcpus)
        except InvalidField:
            return {}
        return {**found, "machine": self.machine} if self.machine else found

    @cached_property
    def only(self) -> frozenset[str] | None:
        """Names of the only hosts that can pass, ``None`` for any: what the filters by name say, in one set."""
        group = self.group.hosts if self.group and self.group.policy == "affinity" else ()
        sets = [names for names in (None if self.host is None else frozenset([self.host]), self.volume_hosts,
                                    self.same_host, frozenset(group) or None, self._offering) if names is not None]
        return frozenset.intersection(*sets) if sets else None

    @cached_property
    def _offering(self) -> frozenset[str] | None:
        return frozenset(filter(self._offered_by, self.offers)) if self.resources else None

    def is_offered(self, host: str) -> bool:
        """Whether a host has enough left of all custom resource classes, and of bandwidth."""
        return self._offering is None or host in self._offering

    def _offered_by(self, host: str) -> bool:
        offer = self.offers[host]
        if not (self.isolate or any(nic.devices for nic in self.nics)):  # all is of the whole host
            return all(offer.get(name, 0) >= amount for name, amount in self.resources.items())
        return all(offer.get(name, 0) >= amount for name, amount in self.of_no_nic.items()) and (
            next(shares(self.nics, offer, self.isolate), None) is not None)

    @cached_property
    def of_no_nic(self) -> dict[str, int]:
        """What it asks for of resource classes without what its NICs ask for."""
        found = Counter(self.resources)
        for nic in self.nics:
            found.subtract({f"{kind}:{nic.network}": n for kind, n in nic.amounts.items()})
        return dict(+found)

    @cached_property
    def never(self) -> frozenset[str]:
        """Names of hosts that cannot pass."""
        group = self.group if self.group and self.group.policy == "anti-affinity" else None
        crowded = {host for host, n in group.hosts.items() if n >= group.max_per_host} if group else ()
        return self.ignored.union(self.different_host, crowded)

    @cached_property
    def traits(self) -> Asked:
        """The traits that flavor and image require of a host, or forbid it."""
        return asked(self.extra_specs, self.image)

    @cached_property
    def mates(self) -> Mapping[str, int]:
        """Members of its group by host, where that weighs (soft policies)."""
        return self.group.hosts if self.group and self.group.policy.startswith("soft-") else {}


def hint(hints: Mapping[str, Any], name: str) -> list[str]:
    """A hint that is one text or a list of texts, as a list."""
    value = hints.get(name) or []
    return [str(one) for one in value] if isinstance(value, (list, tuple)) else [str(value)]


def hinted(hints: Mapping[str, Any], where: Mapping[str, list[str]]) -> dict[str, Any]:
    """``different_host`` and ``same_host`` of the hints. *where*: ``store.hosts.hosts.of_servers`` that they name. A
    server without a host excludes no host for different_host, and every host for same_host."""
    def of(name: str) -> frozenset[str]:
        return frozenset(host for server in hint(hints, name) for host in where.get(server, ()))
    return {"different_host": of("different_host"), "same_host": of("same_host") if hint(hints, "same_host") else None}


def of_server(api: Database, volumes: Any, context: Any, row: Mapping[Any, Any],
              flavor: Mapping[str, Any] | None = None, **over: Any) -> RequestSpec:
    """The spec of a server by its row, which may be one to be. *api*: the API database, read only where hints need it.
    *volumes*: the volume service, and *context*: the user, for it. *flavor*: the one that a resize gives the server.
    *over*: fields that the caller decides, such as ``host`` and ``ignored`` of a move."""
    request, hints = orjson.loads(row["request"]), orjson.loads(row["hints"])
    flavor = orjson.loads(row["flavor"]) if flavor is None else flavor
    blocks = request.get("blocks") or ()
    root, nics = next(filter(is_root_volume, blocks), None), nics_of(row, request)
    names = hint(hints, "different_host") + hint(hints, "same_host")
    group, where = None, {}
    if hints.get("group") or names:
        with api.read() as connection:
            group = hosts.group_of(connection, row["id"], hints["group"]) if hints.get("group") else None
            where = hosts.of_servers(connection, row["project_id"], names) if names else {}
    image = orjson.loads(row["image"])
    if "volume_hosts" not in over:
        over["volume_hosts"] = root_disk_hosts(volumes, context, root)
    spec = RequestSpec(**{
        "server_id": row["id"], "project_id": row["project_id"], "amounts": amounts_of(flavor, root is not None, image),
        **wanted_of(flavor, image, nics)._asdict(), "numa": numa_of(flavor, image, nics),
        "flavor_name": flavor["name"], "vcpus": int(flavor["vcpus"]), "extra_specs": flavor.get("extra_specs") or {},
        "image": image.get("properties") or {}, "machine": machine_of(image), "image_id": row.get("image_id") or "",
        "availability_zone": row["pinned_availability_zone"] or row["availability_zone"],
        "host": request.get("host") or request.get("hypervisor_hostname"), "hints": hints, "group": group,
        "needs_ovn": _on_ovn(row, request), **hinted(hints, where), **over})
    if request.get("past_filters") and not row.get("launched_at"):  # moves and rebuilds do not remember it
        spec = spec.past_all_filters()
    return offered(api, spec)


def offered(api: Database, spec: RequestSpec) -> RequestSpec:
    """The spec with what hosts have left at this moment of the custom resource classes that it asks for."""
    if not spec.resources:
        return spec
    with api.read() as connection:
        return replace(spec, offers=inventories.offers(connection, spec.resources, [
            f"{kind}:{nic.network}/" for nic in spec.nics if nic.devices for kind in nic.amounts]))


def _on_ovn(row: Mapping[Any, Any], request: Mapping[str, Any]) -> bool:
    """Whether the server has ports of OVN that its host plugs in, or will. A new one has no NICs yet, but networks that
    it asks for."""
    if nics := orjson.loads(row.get("interfaces") or "[]"):
        return any(one.get("port") and one.get("vnic_type") != REMOTE for one in (
            nic.get("on_host") or {} for nic in nics))
    return any(one.get("by_engine") for one in request.get("networks") or ())


def root_disk_hosts(volumes: Any, context: Any, root: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Hosts on which the server can be since its root disk, the block device *root*, is a volume that lies there or
    comes from a snapshot there; ``None`` for any. Other volumes are attached from any host."""
    if root is None or root["source_type"] not in ("volume", "snapshot"):
        return None
    try:
        if root["source_type"] == "volume":
            return frozenset([volumes.where(root["uuid"])])
        snapshot = volumes.snapshot(context, root["uuid"])
    except MagnetarError:
        return None  # it is gone: the build says so
    return frozenset([snapshot["host"]]) if snapshot and snapshot.get("host") else None
