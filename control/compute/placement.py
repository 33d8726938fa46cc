# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as Placement sees them: resource providers with inventories, usages, traits, aggregates and allocations.

Read from the same rows that the scheduler and the claims use. Four queries for all providers, however many there are.
What changes them is in ``providers`` and ``consumers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from sqlalchemy import Connection, select

from magnetar_control.scheduler.aggregate_filters import ratios
from magnetar_control.store import aggregates, allocations, hosts, inventories, servers
from magnetar_control.store import traits as custom_traits
from magnetar_control.store.aggregates import Aggregate
from magnetar_control.store.allocations import RESOURCES, Ratios
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.tables import servers as server_table
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.hardware import flavor_specs, traits

from .cloud import Cloud

#: The standard resource classes, in the order of ``allocations.RESOURCES``.
CLASSES = (*flavor_specs.RESOURCES, "PCPU")
#: Columns of ``hosts`` by standard resource class.
COLUMNS = dict(zip(CLASSES, RESOURCES, strict=True))


@dataclass(frozen=True)
class Provider:
    """A host. *aggregates*: those that it is in. *usual*: the allocation ratios of the settings. *classes*: its rows of
    ``inventories``, by resource class."""

    row: Mapping[Any, Any]
    aggregates: Sequence[Aggregate]
    usual: Ratios
    classes: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its uuid, which is the host's."""
        return str(self.row["id"])

    @property
    def name(self) -> str:
        """The host's."""
        return str(self.row["name"])

    @property
    def generation(self) -> int:
        """A number that is another one when inventories, traits or aggregates are."""
        return int(self.row["generation"])

    @cached_property
    def told_traits(self) -> frozenset[str]:
        """What the agent tells; a disabled host has COMPUTE_STATUS_DISABLED too (spec row PRE-03)."""
        told = frozenset(orjson.loads(self.row["info"]).get("traits") or ())
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
        return row is not None and bool(row.min_unit <= amount <= row.max_unit and amount % row.step_size == 0
                                        and row.used + amount <= row.limit)


@dataclass(frozen=True)
class Consumer:
    """A server, the migration of one, or something else that holds what is here: resources by provider's uuid."""

    id: str
    type: str
    project_id: str
    user_id: str
    held: Mapping[str, Mapping[str, int]]
    generation: int


class Placement:
    """The cloud's providers."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, settings = cloud, cloud.settings
        self.usual = Ratios(settings.cpu_allocation_ratio, settings.ram_allocation_ratio,
                            settings.disk_allocation_ratio)

    def providers(self, wanted: Callable[[Provider], bool] = lambda _one: True) -> list[Provider]:
        """Those that are *wanted*, by name."""
        with self.cloud.store.api.read() as connection:
            rows, groups = hosts.every(connection), aggregates.every(connection)
            classes = inventories.of_hosts(connection)
        return [one for row in rows if wanted(one := self._provider(row, groups, classes))]

    def provider(self, id: str) -> Provider:
        """One. Raises ``NotFound``."""
        with self.cloud.store.api.read() as connection:
            return self.read_provider(connection, id)

    def read_provider(self, connection: Connection, id: str, *, lock: bool = False) -> Provider:
        """As ``provider``, in a transaction; *lock* locks its host until that ends."""
        row = hosts.show(connection, id, lock=lock)
        if row is None or row["id"] != id:
            raise NotFound(f"No resource provider with uuid {id[:80]} found.")
        return self._provider(row, aggregates.every(connection), inventories.of_hosts(connection, [id]))

    def _provider(self, row: Mapping[Any, Any], groups: Iterable[Aggregate],
                  classes: Mapping[str, Mapping[str, Any]]) -> Provider:
        groups = [one for one in groups if row["name"] in one.hosts]
        return Provider(row, groups, self.usual, classes.get(row["id"], {}))

    def classes(self) -> list[str]:
        """All resource classes, the standard ones first."""
        with self.cloud.store.api.read() as connection:
            return [*CLASSES, *inventories.classes(connection)]

    def check_classes(self, names: Iterable[str]) -> None:
        """Raises ``InvalidRequest`` for resource classes that there are not."""
        odd = sorted({*names} - {*CLASSES})
        if odd and (missing := [name for name in odd if name not in (known := self.classes())]):
            raise InvalidRequest(f"Invalid resource class in resources parameter: {missing[0][:80]}; there are "
                                 f"{', '.join(known)}.")

    def traits(self, among: Iterable[Provider] | None = None) -> tuple[frozenset[str], frozenset[str]]:
        """All that there are, and those that some host has. *among*: all providers, where they have been read."""
        had = frozenset(name for one in (self.providers() if among is None else among) for name in one.traits)
        with self.cloud.store.api.read() as connection:
            return had | traits.STANDARD | custom_traits.every(connection), had

    def held_of(self, id: str) -> tuple[Provider, dict[str, tuple[dict[str, int], int]]]:
        """A provider, and what its consumers hold of it, with their generation, by their uuid. Raises ``NotFound``."""
        found = self.provider(id)
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_host(connection, id)
        return found, {row.consumer_id: (_resources(row), row.generation) for row in rows}

    def consumer(self, id: str) -> tuple[Consumer | None, Mapping[str, Provider]]:
        """Who holds something under that uuid, ``None`` for nobody, and the providers, by uuid."""
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_consumer(connection, id)
        if not rows:
            return None, {}
        held = {row.host_id: _resources(row) for row in rows}
        providers = {one.id: one for one in self.providers(lambda one: one.id in held)}
        generation = max(row.generation for row in rows)
        if rows[0].owner is not None:
            owner = orjson.loads(rows[0].owner)
            return Consumer(id, owner["type"], owner["project_id"], owner["user_id"], held, generation), providers
        found = servers.find(self.cloud.store, rows[0].server_id)
        project, user = (found[1].project_id, found[1].user_id) if found else ("", "")
        return Consumer(id, _type(rows[0]), project, user, held, generation), providers

    def usage(self, project_id: str, user_id: str | None = None) -> dict[str, tuple[int, dict[str, int]]]:
        """By type of consumer: how many a project, or a user in it, has, and what they hold of all hosts."""
        of_user = None
        if user_id is not None:
            rows = rows_of_cells(self.cloud.store, select(server_table.c.id).where(
                server_table.c.project_id == project_id, server_table.c.user_id == user_id,
                server_table.c.deleted_at.is_(None)))
            of_user = {row.id for cell in rows for row in cell or ()}
        with self.cloud.store.api.read() as connection:
            held = allocations.of_project(connection, project_id)
        consumers: dict[str, set[str]] = {}
        sums: dict[str, dict[str, int]] = {}
        for row in held:
            mine = row.server_id in (of_user or ()) if row.owner is None else orjson.loads(row.owner)[
                "user_id"] == user_id
            if of_user is None or mine:
                kind = _type(row)
                consumers.setdefault(kind, set()).add(row.consumer_id)
                total = sums.setdefault(kind, {})
                for name, n in _resources(row).items():
                    total[name] = total.get(name, 0) + n
        return {kind: (len(ids), sums[kind]) for kind, ids in consumers.items()}


def _type(row: Any) -> str:
    """The type of an allocation's consumer."""
    if row.owner is not None:
        return str(orjson.loads(row.owner)["type"])
    return "INSTANCE" if row.consumer_id == row.server_id else "MIGRATION"


def _resources(row: Any) -> dict[str, int]:
    """What an allocation holds, by resource class, without what it holds nothing of."""
    found = {name: int(getattr(row, column)) for name, column in COLUMNS.items() if getattr(row, column)}
    found.update(orjson.loads(row.resources))
    return found
