# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as Placement sees them: resource providers with inventories, usages, traits, aggregates and allocations.

Read from the same rows that the scheduler and the claims use. Two queries for all providers, however many there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.scheduler.aggregate_filters import ratios
from magnetar_control.store import aggregates, allocations, hosts, servers
from magnetar_control.store.aggregates import Aggregate
from magnetar_control.store.allocations import RESOURCES, Ratios
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.tables import servers as server_table
from magnetar_core.errors import NotFound
from magnetar_core.hardware import flavor_specs, traits

from .cloud import Cloud

#: Resource classes, in the order of ``allocations.RESOURCES``.
CLASSES = (*flavor_specs.RESOURCES, "PCPU")


@dataclass(frozen=True)
class Provider:
    """A host. *aggregates*: those that it is in. *usual*: the allocation ratios of the settings."""

    row: Mapping[Any, Any]
    aggregates: Sequence[Aggregate]
    usual: Ratios

    @property
    def id(self) -> str:
        """Its uuid, which is the host's."""
        return str(self.row["id"])

    @property
    def name(self) -> str:
        """The host's."""
        return str(self.row["name"])

    @cached_property
    def traits(self) -> frozenset[str]:
        """What the agent told; a disabled host has COMPUTE_STATUS_DISABLED too (spec row PRE-03)."""
        told = frozenset(orjson.loads(self.row["info"]).get("traits") or ())
        return told | {traits.DISABLED} if self.row["disabled"] else told

    @cached_property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """By resource class. Of what the host has nothing there is no inventory."""
        factors = (*ratios([one.metadata for one in self.aggregates], self.usual), 1.0)  # a CPU for one guest is one
        found = {}
        for name, column, usual in zip(CLASSES, RESOURCES, factors, strict=True):
            if total := self.row[column]:
                own = self.row.get(f"{column}_ratio")
                found[name] = {"total": total, "reserved": self.row[f"{column}_reserved"], "min_unit": 1,
                               "max_unit": total, "step_size": 1, "allocation_ratio": usual if own is None else own}
        return found

    @property
    def usages(self) -> dict[str, int]:
        """What is claimed, by resource class."""
        return {name: self.row[f"{column}_used"] for name, column in zip(CLASSES, RESOURCES, strict=True)
                if name in self.inventories}

    def capacity(self, name: str) -> int:
        """How much of a class all consumers together may get, of a class that it has an inventory of."""
        return int(self.row[f"{dict(zip(CLASSES, RESOURCES, strict=True))[name]}_limit"])

    def room(self, name: str) -> int:
        """How much of a class one consumer may still get."""
        column = dict(zip(CLASSES, RESOURCES, strict=True)).get(name)
        if column is None:
            return 0
        return int(min(self.row[f"{column}_limit"] - self.row[f"{column}_used"], self.row[column]))

    @cached_property
    def generation(self) -> int:
        """A number that is another one when inventories, traits or aggregates are."""
        seen = (self.inventories, sorted(self.traits), sorted(one.uuid for one in self.aggregates))
        return zlib.crc32(orjson.dumps(seen, option=orjson.OPT_SORT_KEYS)) & 0x7FFFFFFF


@dataclass(frozen=True)
class Consumer:
    """A server, or the migration of one, with what it holds: resources by provider's uuid."""

    id: str
    type: str
    project_id: str
    user_id: str
    held: Mapping[str, Mapping[str, int]]


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
        return [one for row in rows if wanted(one := self._provider(row, groups))]

    def provider(self, id: str) -> Provider:
        """One. Raises ``NotFound``."""
        with self.cloud.store.api.read() as connection:
            row = hosts.show(connection, id)
            groups = aggregates.every(connection) if row is not None else []
        if row is None or row["id"] != id:
            raise NotFound(f"No resource provider with uuid {id[:80]} found.")
        return self._provider(row, groups)

    def _provider(self, row: Mapping[Any, Any], groups: Iterable[Aggregate]) -> Provider:
        return Provider(row, [one for one in groups if row["name"] in one.hosts], self.usual)

    def traits(self) -> tuple[frozenset[str], frozenset[str]]:
        """All that there are, and those that some host has."""
        had = frozenset(name for one in self.providers() for name in one.traits)
        return had | traits.STANDARD, had

    def held_of(self, id: str) -> tuple[Provider, dict[str, dict[str, int]]]:
        """A provider, and what its consumers hold of it, by their uuid. Raises ``NotFound``."""
        found = self.provider(id)
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_host(connection, id)
        return found, {row.consumer_id: _resources(row) for row in rows}

    def consumer(self, id: str) -> tuple[Consumer | None, Mapping[str, Provider]]:
        """Who holds something under that uuid, ``None`` for nobody, and the providers, by uuid."""
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_consumer(connection, id)
        if not rows:
            return None, {}
        held = {row.host_id: _resources(row) for row in rows}
        server = rows[0].server_id
        found = servers.find(self.cloud.store, server)
        project, user = (found[1].project_id, found[1].user_id) if found else ("", "")
        providers = {one.id: one for one in self.providers(lambda one: one.id in held)}
        return Consumer(id, "INSTANCE" if server == id else "MIGRATION", project, user, held), providers

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
            if of_user is None or row.server_id in of_user:
                kind = "INSTANCE" if row.consumer_id == row.server_id else "MIGRATION"
                consumers.setdefault(kind, set()).add(row.consumer_id)
                total = sums.setdefault(kind, {})
                for name, n in _resources(row).items():
                    total[name] = total.get(name, 0) + n
        return {kind: (len(ids), sums[kind]) for kind, ids in consumers.items()}


def _resources(row: Any) -> dict[str, int]:
    """What an allocation holds, by resource class, without what it holds nothing of."""
    return {name: getattr(row, column) for name, column in zip(CLASSES, RESOURCES, strict=True)
            if getattr(row, column)}
