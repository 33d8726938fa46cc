# SPDX-License-Identifier: GPL-3.0-or-later
"""Resource providers: hosts, and what is below them.

Parts of a host that its agent tells of (``providers`` of ``kinds.Host``), such as PCI devices, are providers below it.
What is claimed of them are the ``devices`` of the allocations, and which of them these are ``core.hardware.pci.spread``
says: there is no other record of it. So is the bandwidth of each of its physical networks, and of cards there
(``core.bandwidth``), which is claimed as custom classes are. So are its NUMA cells (``core.hardware.numa_providers``):
agents choose what servers have of them, and what they tell of that is all that is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson

from magnetar_control.scheduler.aggregate_filters import ratios
from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import RESOURCES, Ratios
from magnetar_control.store.claims.inventories import Inventory
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.hosts import child_id
from magnetar_core import bandwidth
from magnetar_core.hardware import flavor_specs, numa_providers, pci, standard, traits

#: The standard resource classes, in the order of ``allocations.RESOURCES``.
CLASSES = (*flavor_specs.RESOURCES, "PCPU")
#: Those that nobody makes or removes.
STANDARD = tuple(dict.fromkeys((*CLASSES, *standard.RESOURCE_CLASSES)))
#: Columns of ``hosts`` by standard resource class.
COLUMNS = dict(zip(CLASSES, RESOURCES, strict=True))


@dataclass(frozen=True)
class Provider:
    """A host. *aggregates*: those that it is in. *usual*: the allocation ratios of the settings. *classes*: its rows of
    ``inventories``, by resource class; *bandwidths*: those of physical networks. *equipped*: the allocations there that
    have devices."""

    row: Mapping[Any, Any]
    aggregates: Sequence[Aggregate]
    usual: Ratios
    classes: Mapping[str, Any]
    equipped: Sequence[Any] = ()
    bandwidths: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What its agent tells."""
        found: Mapping[str, Any] = orjson.loads(self.row["info"])
        return found

    @property
    def id(self) -> str:
        """Its uuid, which is the host's."""
        return str(self.row["id"])

    @property
    def name(self) -> str:
        """The host's."""
        return str(self.row["name"])

    @property
    def parent_id(self) -> str | None:
        """The uuid of the provider above it."""
        return None

    @property
    def root_id(self) -> str:
        """The uuid of its host."""
        return str(self.row["id"])

    @cached_property
    def children(self) -> Sequence[ChildProvider]:
        """The providers below it, however far, as its agent tells them."""
        used: dict[str, Counter[str]] = {}
        for held in self._spread.values():
            for _alias, at in held:
                if at is not None:
                    used.setdefault(self._pools[at].provider, Counter())[self._pools[at].resource_class] += 1
        return [ChildProvider(self.row, self.aggregates, self.usual, {}, (), {}, self, one, used.get(one["name"], {}))
                for one in self.info.get("providers") or ()] + self._networks

    @cached_property
    def _cells(self) -> Sequence[Mapping[str, Any]]:
        """Its NUMA cells, as its agent tells them."""
        return [one for one in self.info.get("providers") or () if numa_providers.is_cell(one)]

    def cells_of(self, row: Any) -> dict[str, dict[str, int]]:
        """What the server of an allocation has of NUMA cells, by resource class, by uuid of the provider."""
        if row.owner is not None:
            return {}
        return {child_id(self.root_id, one["name"]): dict(one["held"][row.server_id]) for one in self._cells
                if row.server_id in one["held"]}

    @property
    def _networks(self) -> list[ChildProvider]:
        """The bandwidth of each physical network, and of each card on one (``core.bandwidth``)."""
        found: dict[str, dict[str, Any]] = {}
        for name, row in self.bandwidths.items():
            kind, place = bandwidth.split(name)
            found.setdefault(place, {})[kind] = row
        divided = {bandwidth.network_of(place) for place in found if bandwidth.card_of(place)}
        return [ChildProvider(self.row, self.aggregates, self.usual, {}, (), {}, self, {
            "name": place, "parent": "", "place": place, "traits": bandwidth.traits(place, place in divided),
            "inventories": {kind: inventories.effective(row)._asdict() for kind, row in rows.items()}},
            {kind: row.used for kind, row in rows.items()}) for place, rows in sorted(found.items())]

    @property
    def tree(self) -> Sequence[Provider]:
        """Its host, and all below that."""
        return [self, *self.children]

    @cached_property
    def tree_ids(self) -> frozenset[str]:
        """Their uuids."""
        return frozenset(one.id for one in self.tree)

    @cached_property
    def _pools(self) -> Sequence[pci.DevicePool]:
        return pci.pools(self.info)

    @cached_property
    def _spread(self) -> Mapping[str, Sequence[pci.Held]]:
        """The devices that servers hold here. What a server and its migration hold counts once."""
        if not self.equipped:
            return {}
        counted: dict[str, dict[str, int]] = {}
        for row in self.equipped:
            had = counted.setdefault(row.server_id, {})
            had.update({alias: max(n, had.get(alias, 0)) for alias, n in orjson.loads(row.devices).items()})
        known: dict[str, dict[str, int]] = {}
        for one in self.info.get("providers") or ():
            for server, amounts in one["held"].items() if not numa_providers.is_cell(one) else ():
                known.setdefault(server, {})[one["name"]] = sum(amounts.values())
        return pci.spread(self._pools, counted, known)

    def devices_of(self, row: Any) -> list[tuple[str, str, str]]:
        """Of the devices of an allocation those that are there: alias, uuid of the provider, and resource class."""
        left = Counter(orjson.loads(row.devices))
        found = []
        for alias, at in self._spread.get(row.server_id, ()):
            if left[alias] > 0 and at is not None and (name := self._pools[at].provider):
                left[alias] -= 1
                found.append((alias, child_id(self.root_id, name), self._pools[at].resource_class))
        return found

    @property
    def generation(self) -> int:
        """A number that is another one when inventories, traits or aggregates are."""
        return int(self.row["generation"])

    @cached_property
    def told_traits(self) -> frozenset[str]:
        """What the agent tells; a disabled host has COMPUTE_STATUS_DISABLED too (spec row PRE-03)."""
        told = frozenset(self.info.get("traits") or ())
        return told | {traits.DISABLED} if self.row["disabled"] else told

    @cached_property
    def own_traits(self) -> frozenset[str]:
        """What an operator has set."""
        return frozenset(orjson.loads(self.row["own_traits"]))

    @property
    def traits(self) -> frozenset[str]:
        """All that it has."""
        return self.told_traits | self.own_traits

    @cached_property
    def ratios(self) -> Ratios:
        """The allocation ratios where the host has none of its own."""
        return ratios([one.metadata for one in self.aggregates], self.usual)

    @cached_property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """By resource class. Of what the host has nothing there is no inventory."""
        factors = (*self.ratios, 1.0)  # a CPU for one guest is one
        found = {}
        for name, column, usual in zip(CLASSES, RESOURCES, factors, strict=True):
            if total := self.row[column]:
                own = self.row.get(f"{column}_ratio")
                found[name] = {"total": total, "reserved": self.row[f"{column}_reserved"], "min_unit": 1,
                               "max_unit": total, "step_size": 1, "allocation_ratio": usual if own is None else own}
        had = ((name, inventories.effective(row)) for name, row in self.classes.items())
        return found | {name: one._asdict() for name, one in had if one.total}

    @property
    def images_gb(self) -> int:
        """GiB of the disk that are reserved for the content of images."""
        return int(self.info.get("image_cache_gb") or 0)

    @property
    def told_classes(self) -> list[str]:
        """The resource classes that its agent tells."""
        return [*(name for name in CLASSES if name in self.inventories),
                *(name for name, row in self.classes.items() if row.told is not None)]

    @cached_property
    def own_inventories(self) -> dict[str, dict[str, Any]]:
        """What operators have set, by resource class: of those that its agent tells, reserved and allocation_ratio."""
        found = {}
        for name, column in COLUMNS.items():
            own = {"reserved": self.row[f"{column}_own_reserved"], "allocation_ratio": self.row.get(f"{column}_ratio")}
            found[name] = {key: value for key, value in own.items() if value is not None}
        found |= {name: orjson.loads(row.own) for name, row in self.classes.items() if row.own}
        return {name: own for name, own in found.items() if own}

    @property
    def usages(self) -> dict[str, int]:
        """What is claimed, by resource class."""
        return {name: self.row[f"{column}_used"] for name, column in COLUMNS.items()
                if name in self.inventories} | {name: row.used for name, row in self.classes.items()}

    def capacity(self, name: str) -> int:
        """How much of a class all consumers together may get, of a class that it has an inventory of."""
        if name in self.classes:
            return int(self.classes[name].limit)
        return int(self.row[f"{COLUMNS[name]}_limit"])

    def gives(self, name: str, amount: int) -> bool:
        """Whether one consumer may still get that much of a class."""
        if column := COLUMNS.get(name):
            return bool(amount <= min(self.row[f"{column}_limit"] - self.row[f"{column}_used"], self.row[column]))
        row = self.classes.get(name)
        return row is not None and _suits(row, amount) and bool(row.used + amount <= row.limit)

    def bears(self, name: str, amount: int) -> bool:
        """Whether all that is claimed of a class fits, and one consumer may have *amount* of it."""
        if column := COLUMNS.get(name):
            return bool(amount <= self.row[column] and self.row[f"{column}_used"] <= self.row[f"{column}_limit"])
        row = self.classes.get(name)
        return row is not None and _suits(row, amount) and bool(row.used <= row.limit)


@dataclass(frozen=True)
class ChildProvider(Provider):
    """A part of the host *root*, as its agent *told* of it. *used*: what is claimed of it, by resource class, but of a
    NUMA cell. It is in the aggregates of its host, and has its generation."""

    root: Provider | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def id(self) -> str:
        """Its uuid."""
        return child_id(self.root_id, self.told["name"])

    @property
    def name(self) -> str:
        """The host's, and what the agent calls it."""
        return f"{self.row['name']}_{self.told['name']}"

    @property
    def parent_id(self) -> str | None:
        """The uuid of the provider above it."""
        return child_id(self.root_id, self.told["parent"]) if self.told["parent"] else self.root_id

    @cached_property
    def children(self) -> Sequence[ChildProvider]:
        """Those of a tree are the host's."""
        return ()

    @property
    def tree(self) -> Sequence[Provider]:
        """Its host, and all below that."""
        return [] if self.root is None else self.root.tree

    @property
    def is_cell(self) -> bool:
        """Whether it is a NUMA cell."""
        return numa_providers.is_cell(self.told)

    @cached_property
    def taken(self) -> Mapping[str, int]:
        """What is claimed of it, by resource class; of a NUMA cell what servers have, as its host tells."""
        if not self.is_cell:
            return self.used
        found: Counter[str] = Counter()
        for amounts in self.told["held"].values():
            found.update(amounts)
        return found

    @cached_property
    def told_traits(self) -> frozenset[str]:
        """What the agent tells."""
        return frozenset(self.told["traits"])

    @cached_property
    def own_traits(self) -> frozenset[str]:
        """None: operators set them in the agent's settings."""
        return frozenset()

    @cached_property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """By resource class."""
        return {name: Inventory(**one)._asdict() for name, one in sorted(self.told["inventories"].items())}

    @property
    def usages(self) -> dict[str, int]:
        """What is claimed, by resource class."""
        return {name: self.taken.get(name, 0) for name in self.inventories}

    def capacity(self, name: str) -> int:
        """How much of a class all consumers together may get, of a class that it has an inventory of."""
        return Inventory(**self.inventories[name]).limit

    def gives(self, name: str, amount: int) -> bool:
        """Whether one consumer may still get that much of a class."""
        return name in self.told["inventories"] and amount <= min(
            self.inventories[name]["max_unit"], self.capacity(name) - self.taken.get(name, 0))


def _suits(row: Any, amount: int) -> bool:
    """Whether one consumer may have that much of the class of a row of ``inventories``."""
    return bool(row.min_unit <= amount <= row.max_unit and amount % row.step_size == 0)


def below(root: Provider, rows: Iterable[Any]) -> dict[str, dict[str, int]]:
    """What allocations of the host *root* hold of the providers below it: amounts by resource class, by uuid."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for _alias, id, kind in root.devices_of(row):
            amounts = found.setdefault(id, {})
            amounts[kind] = amounts.get(kind, 0) + 1
        for name, n in orjson.loads(row.resources).items():
            kind, place = bandwidth.split(name)
            if place:
                found.setdefault(child_id(root.root_id, place), {})[kind] = n
        for id, amounts in root.cells_of(row).items():
            found.setdefault(id, {}).update(amounts)
    return found


def amounts_of(row: Any) -> dict[str, int]:
    """What an allocation holds, by resource class, without what it holds nothing of."""
    found = {name: int(getattr(row, column)) for name, column in COLUMNS.items() if getattr(row, column)}
    found.update({name: n for name, n in orjson.loads(row.resources).items() if not bandwidth.split(name)[1]})
    return found
