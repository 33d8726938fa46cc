# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource providers: hosts, and the providers below them.

Providers below a host are parts that its agent reports (``providers`` of ``kinds.Host``), such as PCI devices. The
``devices`` of allocations say how many devices are claimed. Which devices these are is not stored:
``core.hardware.pci.assign_held_devices`` computes it. The bandwidth of each physical network of a host, and of its
cards (``core.bandwidth``), is also a provider, and is claimed like custom classes. The NUMA cells of a host
(``core.hardware.numa_providers``) are providers too: agents choose the cells of servers, and only their reports record
the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from magnetar_control.scheduler.aggregate_filters import ratios_of_aggregates
from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import RESOURCES, ClaimRow, Ratios
from magnetar_control.store.claims.inventories import Inventory, InventoryRow
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.hosts.hosts import child_provider_id
from magnetar_core import bandwidth
from magnetar_core.hardware import flavor_specs, numa_providers, pci, standard, traits

#: The standard resource classes, in the order of ``allocations.RESOURCES``.
CLASSES = (*flavor_specs.RESOURCES, "PCPU")
#: Classes that clients can neither create nor remove.
STANDARD = tuple(dict.fromkeys((*CLASSES, *standard.RESOURCE_CLASSES)))
#: Columns of ``hosts`` by standard resource class.
COLUMNS = dict(zip(CLASSES, RESOURCES, strict=True))


@dataclass(frozen=True)
class Provider:
    """A host as a resource provider. *usual*: the allocation ratios from the settings. *classes*: the host's rows of
    the table ``inventories``, by resource class. *equipped*: the allocations on the host that include PCI devices.
    *bandwidths*: the rows of ``inventories`` for the bandwidth of physical networks."""

    row: HostRow
    aggregates: Sequence[Aggregate]
    usual: Ratios
    classes: Mapping[str, InventoryRow]
    equipped: Sequence[ClaimRow] = ()
    bandwidths: Mapping[str, InventoryRow] = field(default_factory=dict)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """The host's description by its agent, as last reported."""
        return self.row.info

    @property
    def id(self) -> str:
        """The provider's uuid, which is the uuid of the host."""
        return self.row.id

    @property
    def name(self) -> str:
        """The host's name."""
        return self.row.name

    @property
    def parent_id(self) -> str | None:
        """The uuid of the parent provider; ``None`` for a host."""
        return None

    @property
    def root_id(self) -> str:
        """The uuid of the root provider, which is the uuid of the host."""
        return self.row.id

    @cached_property
    def children(self) -> Sequence[ChildProvider]:
        """The providers below the host at every depth, as its agent reports them."""
        used: dict[str, Counter[str]] = {}
        for devices in self._held_devices.values():
            for _alias, at in devices:
                if at is not None:
                    used.setdefault(self._pools[at].provider, Counter())[self._pools[at].resource_class] += 1
        return [ChildProvider(self.row, self.aggregates, self.usual, {}, (), {}, self, part, used.get(part["name"], {}))
                for part in self.info.get("providers") or ()] + self._networks

    @cached_property
    def _cells(self) -> Sequence[Mapping[str, Any]]:
        """The host's NUMA cells, as its agent reports them."""
        return [part for part in self.info.get("providers") or () if numa_providers.is_cell_provider(part)]

    def cells_of(self, row: ClaimRow) -> dict[str, dict[str, int]]:
        """Return how much of the host's NUMA cells the server of the allocation *row* uses: amounts by uuid of the
        cell's provider, then by resource class."""
        if row.owner is not None:
            return {}
        return {child_provider_id(self.root_id, cell["name"]): dict(cell["held"][row.server_id]) for cell in self._cells
                if row.server_id in cell["held"]}

    @property
    def _networks(self) -> list[ChildProvider]:
        """The child providers whose inventories are bandwidth: one for each physical network, and one for each network
        card on a physical network (``core.bandwidth``)."""
        rows_by_place: dict[str, dict[str, InventoryRow]] = {}
        for name, row in self.bandwidths.items():
            kind, place = bandwidth.split_resource(name)
            rows_by_place.setdefault(place, {})[kind] = row
        divided = {bandwidth.network_of_place(place) for place in rows_by_place if bandwidth.card_of_place(place)}
        return [ChildProvider(self.row, self.aggregates, self.usual, {}, (), {}, self, {
            "name": place, "parent": "", "place": place, "traits": bandwidth.bandwidth_traits(place, place in divided),
            "inventories": {kind: inventories.effective_inventory(row)._asdict() for kind, row in rows.items()}},
            {kind: row.used for kind, row in rows.items()}) for place, rows in sorted(rows_by_place.items())]

    @property
    def tree(self) -> Sequence[Provider]:
        """The host, followed by all providers below it."""
        return [self, *self.children]

    @cached_property
    def tree_ids(self) -> frozenset[str]:
        """The uuids of all providers in the tree."""
        return frozenset(provider.id for provider in self.tree)

    @cached_property
    def _pools(self) -> Sequence[pci.DevicePool]:
        return pci.device_pools(self.info)

    @cached_property
    def _held_devices(self) -> Mapping[str, Sequence[pci.Held]]:
        """The PCI devices on this host that each server holds, by the server's uuid. A device that both a server and
        its migration hold counts once."""
        if not self.equipped:
            return {}
        counted: dict[str, dict[str, int]] = {}
        for row in self.equipped:
            had = counted.setdefault(row.server_id, {})
            had.update({alias: max(n, had.get(alias, 0)) for alias, n in row.devices.items()})
        assigned: dict[str, dict[str, int]] = {}
        for part in self.info.get("providers") or ():
            for server, amounts in part["held"].items() if not numa_providers.is_cell_provider(part) else ():
                assigned.setdefault(server, {})[part["name"]] = sum(amounts.values())
        return pci.assign_held_devices(self._pools, counted, assigned)

    def devices_of(self, row: ClaimRow) -> list[tuple[str, str, str]]:
        """Return the PCI devices in the allocation *row* that exist on the host, as (alias, uuid of the provider,
        resource class)."""
        remaining = Counter(row.devices)
        devices = []
        for alias, at in self._held_devices.get(row.server_id, ()):
            if remaining[alias] > 0 and at is not None and (name := self._pools[at].provider):
                remaining[alias] -= 1
                devices.append((alias, child_provider_id(self.root_id, name), self._pools[at].resource_class))
        return devices

    @property
    def generation(self) -> int:
        """The provider's generation, a number that changes with its inventories, traits or aggregates."""
        return self.row.generation

    @cached_property
    def reported_traits(self) -> frozenset[str]:
        """The traits that the agent reports, and COMPUTE_STATUS_DISABLED for a disabled host."""
        agent_traits = frozenset(self.info.get("traits") or ())
        return agent_traits | {traits.DISABLED} if self.row.disabled else agent_traits

    @cached_property
    def own_traits(self) -> frozenset[str]:
        """The traits that an operator has set."""
        return frozenset(self.row.own_traits)

    @property
    def traits(self) -> frozenset[str]:
        """The traits that the agent reports, and the traits that an operator has set."""
        return self.reported_traits | self.own_traits

    @cached_property
    def ratios(self) -> Ratios:
        """The allocation ratios for this host from its aggregates and the settings. They apply to resources for which
        no ratio is set on the host itself."""
        return ratios_of_aggregates([aggregate.metadata for aggregate in self.aggregates], self.usual)

    @cached_property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """The inventories by resource class, without classes whose total is 0. Each has Placement's fields, such as
        total and reserved."""
        factors = (*self.ratios, 1.0)  # 1.0: a dedicated CPU is never shared
        by_class = {}
        for name, column, usual, total, reserved in zip(CLASSES, RESOURCES, factors, self.row.totals, self.row.reserved,
                                                        strict=True):
            if total:
                own_ratio = self.row.own_ratio(column)
                by_class[name] = {"total": total, "reserved": reserved, "min_unit": 1,
                                  "max_unit": total, "step_size": 1,
                                  "allocation_ratio": usual if own_ratio is None else own_ratio}
        had = ((name, inventories.effective_inventory(row)) for name, row in self.classes.items())
        return by_class | {name: inventory._asdict() for name, inventory in had if inventory.total}

    @property
    def images_gb(self) -> int:
        """The disk space in GiB that cached images use on the host."""
        return int(self.info.get("image_cache_gb") or 0)

    @property
    def reported_classes(self) -> list[str]:
        """The resource classes that the host's agent reports."""
        return [*(name for name in CLASSES if name in self.inventories),
                *(name for name, row in self.classes.items() if row.told is not None)]

    @cached_property
    def own_inventories(self) -> dict[str, dict[str, Any]]:
        """The inventory fields that operators have set, by resource class. For classes that the agent reports, these
        are only ``reserved`` and ``allocation_ratio``."""
        by_class = {}
        for name, column in COLUMNS.items():
            own_values = {"reserved": self.row.own_reserved(column), "allocation_ratio": self.row.own_ratio(column)}
            by_class[name] = {key: value for key, value in own_values.items() if value is not None}
        by_class |= {name: inventories.operator_inventory(row) for name, row in self.classes.items()}
        return {name: own_values for name, own_values in by_class.items() if own_values}

    @property
    def usages(self) -> dict[str, int]:
        """The claimed amounts, by resource class."""
        return {**{name: used for name, used in zip(CLASSES, self.row.used, strict=True) if name in self.inventories},
                **{name: row.used for name, row in self.classes.items()}}

    def capacity(self, name: str) -> int:
        """Return the largest allowed sum of all claims on the resource class *name*, which is (total - reserved) *
        allocation_ratio. The host must have an inventory of the class."""
        if name in self.classes:
            return self.classes[name].limit
        return int(getattr(self.row.limits, COLUMNS[name]))

    def _amounts_of(self, column: str) -> tuple[int, int, int]:
        """Return (total, claimed amount, largest allowed sum of claims) of the host's resource *column*, such as
        ``vcpus``."""
        row = self.row
        return getattr(row.totals, column), getattr(row.used, column), getattr(row.limits, column)

    def has_room_for(self, name: str, amount: int) -> bool:
        """Return whether one consumer can claim *amount* more of the resource class *name*."""
        if column := COLUMNS.get(name):
            total, used, limit = self._amounts_of(column)
            return amount <= min(limit - used, total)
        row = self.classes.get(name)
        return row is not None and _suits_row(row, amount) and row.used + amount <= row.limit

    def claims_fit(self, name: str, amount: int) -> bool:
        """Return whether a claim still fits after the provider's inventories were replaced. The sum of the current
        claims on the resource class *name* must not exceed the capacity. *amount*: the claim of one consumer, already
        part of this sum; it must be allowed for one consumer."""
        if column := COLUMNS.get(name):
            total, used, limit = self._amounts_of(column)
            return amount <= total and used <= limit
        row = self.classes.get(name)
        return row is not None and _suits_row(row, amount) and row.used <= row.limit


@dataclass(frozen=True)
class ChildProvider(Provider):
    """A resource provider below the host *root*, such as a NUMA cell, a PCI device or a network card. *report*: the
    provider's description by the host's agent. *used*: the claimed amounts by resource class; empty for a NUMA cell.
    Aggregates and generation are those of the host."""

    root: Provider | None = None
    report: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """The provider's uuid."""
        return child_provider_id(self.root_id, self.report["name"])

    @property
    def name(self) -> str:
        """The name: the host's name, ``_``, and the name in the agent's report."""
        return f"{self.row.name}_{self.report['name']}"

    @property
    def parent_id(self) -> str | None:
        """The uuid of the parent provider: the host, or another provider below the host."""
        return child_provider_id(self.root_id, self.report["parent"]) if self.report["parent"] else self.root_id

    @cached_property
    def children(self) -> Sequence[ChildProvider]:
        """Always empty: ``children`` of the host lists the providers at every depth."""
        return ()

    @property
    def tree(self) -> Sequence[Provider]:
        """The host, followed by all providers below it."""
        return [] if self.root is None else self.root.tree

    @property
    def is_cell(self) -> bool:
        """Whether the provider is a NUMA cell."""
        return numa_providers.is_cell_provider(self.report)

    @cached_property
    def taken(self) -> Mapping[str, int]:
        """The claimed amounts by resource class. For a NUMA cell, these are the amounts that servers use according to
        the host's agent."""
        if not self.is_cell:
            return self.used
        total: Counter[str] = Counter()
        for amounts in self.report["held"].values():
            total.update(amounts)
        return total

    @cached_property
    def reported_traits(self) -> frozenset[str]:
        """The traits that the agent reports."""
        return frozenset(self.report["traits"])

    @cached_property
    def own_traits(self) -> frozenset[str]:
        """Always empty: operators set traits of child providers in the settings of the host's agent."""
        return frozenset()

    @cached_property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """The inventories by resource class. Each has Placement's fields, such as total and reserved."""
        return {name: Inventory(**inventory)._asdict()
                for name, inventory in sorted(self.report["inventories"].items())}

    @property
    def usages(self) -> dict[str, int]:
        """The claimed amounts, by resource class."""
        return {name: self.taken.get(name, 0) for name in self.inventories}

    def capacity(self, name: str) -> int:
        """Return the largest allowed sum of all claims on the resource class *name*. The provider must have an
        inventory of the class."""
        return Inventory(**self.inventories[name]).limit

    def has_room_for(self, name: str, amount: int) -> bool:
        """Return whether one consumer can claim *amount* more of the resource class *name*."""
        return name in self.report["inventories"] and amount <= min(
            self.inventories[name]["max_unit"], self.capacity(name) - self.taken.get(name, 0))


def _suits_row(row: InventoryRow, amount: int) -> bool:
    """Return whether one consumer may claim *amount* according to min_unit, max_unit and step_size of *row*."""
    return row.min_unit <= amount <= row.max_unit and amount % row.step_size == 0


def allocated_child_amounts(root: Provider, rows: Iterable[ClaimRow]) -> dict[str, dict[str, int]]:
    """Return the amounts that the allocations *rows* claim from providers below the host *root*: by uuid of the
    provider, then by resource class."""
    amounts_by_child: dict[str, dict[str, int]] = {}
    for row in rows:
        for _alias, id, kind in root.devices_of(row):
            amounts = amounts_by_child.setdefault(id, {})
            amounts[kind] = amounts.get(kind, 0) + 1
        for name, n in row.resources.items():
            kind, place = bandwidth.split_resource(name)
            if place:
                amounts_by_child.setdefault(child_provider_id(root.root_id, place), {})[kind] = n
        for id, amounts in root.cells_of(row).items():
            amounts_by_child.setdefault(id, {}).update(amounts)
    return amounts_by_child


def allocated_amounts(row: ClaimRow) -> dict[str, int]:
    """Return the amounts that the allocation *row* claims from the host itself, by resource class, without zeros."""
    amounts = {name: int(getattr(row, column)) for name, column in COLUMNS.items() if getattr(row, column)}
    amounts.update({name: n for name, n in row.resources.items() if not bandwidth.split_resource(name)[1]})
    return amounts
