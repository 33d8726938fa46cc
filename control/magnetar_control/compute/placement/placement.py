# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as Placement sees them: resource providers with inventories, usages, traits, aggregates and allocations.

Read from the same rows that the scheduler and the claims use. Five queries for all providers, however many there are.
What changes them is in ``providers`` and ``consumers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, select

from magnetar_control.compute.cloud import Cloud
from magnetar_control.store.claims import allocations, inventories
from magnetar_control.store.claims import traits as custom_traits
from magnetar_control.store.claims.allocations import Ratios
from magnetar_control.store.engine.tables import servers as server_table
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.servers import servers
from magnetar_core import bandwidth
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.hardware import traits

from .provider_tree import STANDARD, ChildProvider, Provider, amounts_of, below


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

    def providers(self) -> list[Provider]:
        """All, hosts by name, each with those below it."""
        return [one for root in self.roots() for one in root.tree]

    def roots(self, ids: Collection[str] | None = None) -> list[Provider]:
        """The hosts, or those of these uuids, by name."""
        with self.cloud.store.api.read() as connection:
            return self.read_roots(connection, ids)

    def read_roots(self, connection: Connection, ids: Collection[str] | None = None) -> list[Provider]:
        """As ``roots``, in a transaction."""
        rows, groups = hosts.every(connection, ids=ids), aggregates.every(connection)
        classes, equipped = inventories.of_hosts(connection, ids), allocations.equipped(connection, ids)
        return [self._provider(row, groups, classes, equipped) for row in rows]

    def provider(self, id: str) -> Provider:
        """One. Raises ``NotFound``."""
        with self.cloud.store.api.read() as connection:
            return self.read_provider(connection, id)

    def read_provider(self, connection: Connection, id: str, *, lock: bool = False) -> Provider:
        """As ``provider``, in a transaction; *lock* locks its host until that ends, for a change: what is below a host
        is refused with ``InvalidRequest`` then."""
        row = hosts.show(connection, id, lock=lock)
        if row is not None and row["id"] == id:
            return self._provider(row, aggregates.every(connection), inventories.of_hosts(connection, [id]),
                                  allocations.equipped(connection, [id]))
        found = next((one for root in self.read_roots(connection) for one in root.children if one.id == id), None)
        if found is None:
            raise NotFound(f"No resource provider with uuid {id[:80]} found.")
        if lock:
            raise InvalidRequest(f"{found.name} is a part of host {found.row['name']}, and cannot be changed here: its "
                                 "inventories and traits are what its agent finds (NUMA cells) and its settings say "
                                 "(pci_device_spec, enabled_mdev_types, resource_provider_bandwidths, "
                                 "cpu_dedicated_set, reserved_huge_pages), and its aggregates are the host's.")
        return found

    def _provider(self, row: Mapping[Any, Any], groups: Iterable[Aggregate], classes: Mapping[str, Mapping[str, Any]],
                  equipped: Mapping[str, Sequence[Any]]) -> Provider:
        groups = [one for one in groups if row["name"] in one.hosts]
        told = classes.get(row["id"], {})
        networks = {name: one for name, one in told.items() if bandwidth.split(name)[1]}
        plain = {name: one for name, one in told.items() if name not in networks}
        return Provider(row, groups, self.usual, plain, equipped.get(row["id"], ()), networks)

    def classes(self) -> list[str]:
        """All resource classes, the standard ones first."""
        with self.cloud.store.api.read() as connection:
            return [*dict.fromkeys((*STANDARD, *inventories.classes(connection)))]

    def check_classes(self, names: Iterable[str]) -> None:
        """Raises ``InvalidRequest`` for resource classes that there are not."""
        odd = sorted({*names} - {*STANDARD})
        if odd and (missing := [name for name in odd if name not in (known := self.classes())]):
            raise InvalidRequest(f"Invalid resource class in resources parameter: {missing[0][:80]}; there are "
                                 f"{', '.join(known)}.")

    def traits(self, among: Iterable[Provider] | None = None) -> tuple[frozenset[str], frozenset[str]]:
        """All that there are, and those that some host has. *among*: all providers, where they have been read."""
        had = frozenset(name for one in (self.providers() if among is None else among) for name in one.traits)
        with self.cloud.store.api.read() as connection:
            return had | traits.STANDARD | custom_traits.every(connection), had

    def check_traits(self, names: Collection[str], roots: Iterable[Provider]) -> None:
        """Raises ``InvalidRequest`` for traits that there are not. *roots*: all hosts. Asks the database nothing,
        unless there are others than standard ones and those of providers."""
        unknown = {*names} - traits.STANDARD
        if unknown:
            unknown = unknown.difference(*(one.traits for root in roots for one in root.tree))
        if unknown:
            with self.cloud.store.api.read() as connection:
                unknown -= custom_traits.every(connection)
        if unknown:
            raise InvalidRequest(f"No such trait(s): {', '.join(sorted(unknown))[:255]}. GET /traits lists those that "
                                 "there are.")

    def held_of(self, id: str) -> tuple[Provider, dict[str, tuple[dict[str, int], int]]]:
        """A provider, and what its consumers hold of it, with their generation, by their uuid. Raises ``NotFound``."""
        found = self.provider(id)
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_host(connection, found.root_id)
        if not isinstance(found, ChildProvider) or found.root is None:
            of_host = ((row, amounts_of(row)) for row in rows)
            return found, {row.consumer_id: (mine, row.generation) for row, mine in of_host if mine}
        held = ((row, below(found.root, [row]).get(id)) for row in rows)
        return found, {row.consumer_id: (mine, row.generation) for row, mine in held if mine}

    def consumer(self, id: str) -> tuple[Consumer | None, Mapping[str, Provider]]:
        """Who holds something under that uuid, ``None`` for nobody, and the providers, by uuid."""
        with self.cloud.store.api.read() as connection:
            rows = allocations.of_consumer(connection, id)
        if not rows:
            return None, {}
        on = {row.host_id for row in rows}
        providers = {one.id: one for root in self.roots(on) for one in root.tree}
        held = {row.host_id: amounts for row in rows if (amounts := amounts_of(row))}
        for row in rows:
            held |= below(providers[row.host_id], [row]) if row.host_id in providers else {}
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
        roots = {one.id: one for one in self.roots({row.host_id for row in held})} if held else {}
        consumers: dict[str, set[str]] = {}
        sums: dict[str, dict[str, int]] = {}
        for row in held:
            mine = row.server_id in (of_user or ()) if row.owner is None else orjson.loads(row.owner)[
                "user_id"] == user_id
            if of_user is None or mine:
                kind = _type(row)
                consumers.setdefault(kind, set()).add(row.consumer_id)
                total = sums.setdefault(kind, {})
                devices = below(roots[row.host_id], [row]) if row.host_id in roots else {}
                for name, n in (one for amounts in (amounts_of(row), *devices.values()) for one in amounts.items()):
                    total[name] = total.get(name, 0) + n
        return {kind: (len(ids), sums[kind]) for kind, ids in consumers.items()}


def _type(row: Any) -> str:
    """The type of an allocation's consumer."""
    if row.owner is not None:
        return str(orjson.loads(row.owner)["type"])
    return "INSTANCE" if row.consumer_id == row.server_id else "MIGRATION"
