# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts in Placement's terms: resource providers with inventories, usages, traits, aggregates and allocations.

They are read from the same rows that the scheduler and the claims use, with five queries for any number of providers.
``providers`` and ``consumers`` change them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from magnetar_control.compute.cloud import Cloud
from magnetar_control.store.claims import allocations, inventories
from magnetar_control.store.claims import traits as custom_traits
from magnetar_control.store.claims.allocations import ClaimRow, Ratios
from magnetar_control.store.claims.inventories import InventoryRow
from magnetar_control.store.engine.tables import servers as server_table
from magnetar_control.store.hosts import aggregates, hosts
from magnetar_control.store.hosts.aggregates import Aggregate
from magnetar_control.store.hosts.host_row import HostRow, ServiceHost
from magnetar_control.store.scatter_gather import rows_of_cells
from magnetar_control.store.servers import servers
from magnetar_core import bandwidth
from magnetar_core.errors import InvalidRequest, NotFound
from magnetar_core.hardware import traits

from .provider_tree import STANDARD, ChildProvider, Provider, allocated_amounts, allocated_child_amounts

#: The length of the longest name of a host.
LONGEST = 255
#: The most hosts that a query names; for more it reads all.
MOST_NAMED = 500


@dataclass(frozen=True)
class Consumer:
    """A consumer of Placement's API: a server, a migration, or another consumer. *held*: its allocations, by uuid of
    the provider, then by resource class."""

    id: str
    type: str
    project_id: str
    user_id: str
    held: Mapping[str, Mapping[str, int]]
    generation: int


class ListedProvider(NamedTuple):
    """A resource provider in a list: a few attributes of ``Provider``, with the same names."""

    id: str
    name: str
    generation: int
    parent_id: str | None
    root_id: str


class HostParts(NamedTuple):
    """The cached child providers of one host. *providers*: (uuid, name, uuid of the parent) for each child provider.
    *state*: the time of the host's last change, and the resource classes for the bandwidth of the host's physical
    networks. The cached providers are outdated if a newly read state differs from *state*."""

    state: tuple[Any, ...]
    providers: Sequence[tuple[str, str, str | None]]


class Placement:
    """The queries of Placement's API: resource providers, their usage, and allocations on them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._parts: Mapping[str, HostParts] = {}

    @property
    def usual(self) -> Ratios:
        """The allocation ratios from the settings, for hosts on which no other ratios are set."""
        settings = self.cloud.settings
        return Ratios(settings.cpu_allocation_ratio, settings.ram_allocation_ratio, settings.disk_allocation_ratio)

    def listed_providers(self) -> list[ListedProvider]:
        """Return all providers with the attributes that lists show, in the order of ``providers``. Only the reports of
        hosts that have changed since the last call are read."""
        with self.cloud.store.api.read() as connection:
            rows = hosts.fetch_host_summaries(connection)
            classes = inventories.fetch_inventory_rows(connection)
            states = {row.id: (row.updated_at, *_networks(classes.get(row.id, {}))) for row in rows}
            parts = {id: known for id, known in self._parts.items() if known.state == states.get(id)}
            if changed := states.keys() - parts.keys():
                roots = self.read_roots(connection, changed if len(changed) <= MOST_NAMED else None)
                parts |= {root.id: HostParts(states[root.id], [
                    (child.id, child.name, child.parent_id) for child in root.children])
                    for root in roots if root.id in changed}
        self._parts = parts
        return [ListedProvider(id, name, row.generation, parent, row.id) for row in sorted(rows)
                for id, name, parent in (
                    (row.id, row.name, None), *(parts[row.id].providers if row.id in parts else ()))]

    def providers(self) -> list[Provider]:
        """Return all providers: hosts sorted by name, each followed by the providers below it."""
        return [provider for root in self.roots() for provider in root.tree]

    def roots(self, ids: Collection[str] | None = None) -> list[Provider]:
        """Return all hosts, or the hosts with the uuids *ids*, sorted by name."""
        with self.cloud.store.api.read() as connection:
            return self.read_roots(connection, ids)

    def roots_of_tree(self, id: str) -> list[Provider]:
        """Return a list of hosts whose trees may contain the provider with the uuid *id*: only the host with this uuid,
        if there is one; otherwise all hosts, because *id* may be the uuid of a provider below any of them."""
        return self.roots({id}) or self.roots()

    def roots_of_name(self, name: str) -> list[Provider]:
        """Return the hosts that are called *name*, or that could have a provider called *name* below them. The name of
        a provider below a host begins with the host's name and ``_``."""
        names = [name, *(name[:at] for at, letter in enumerate(name[:LONGEST + 1]) if letter == "_")]
        with self.cloud.store.api.read() as connection:
            rows = hosts.fetch_host_page(connection, ServiceHost, column="name", values=names)
            return self.read_roots(connection, [row.id for row in rows]) if rows else []

    def read_roots(self, connection: Connection, ids: Collection[str] | None = None) -> list[Provider]:
        """Return all hosts, or the hosts with the uuids *ids*, sorted by name. They are read in the transaction
        *connection*."""
        return self._with_rows(connection, hosts.fetch_host_rows(connection, ids=ids), ids)

    def roots_without_reports(self) -> list[Provider]:
        """Return all hosts, sorted by name, without the reports of their agents. This is faster than reading the
        reports, but without them the hosts have no child providers and no traits, so that only inventories and
        aggregates can be tested."""
        with self.cloud.store.api.read() as connection:
            return self._with_rows(connection, hosts.fetch_hosts_without_reports(connection))

    def _with_rows(self, connection: Connection, rows: Sequence[HostRow],
                   ids: Collection[str] | None = None) -> list[Provider]:
        """Return the hosts *rows* as providers. *ids*: the uuids of these hosts; ``None`` if *rows* has all hosts."""
        groups = aggregates.fetch_aggregate_rows(connection)
        classes, equipped = inventories.fetch_inventory_rows(connection,
                                                             ids), allocations.fetch_device_claims(connection, ids)
        groups_by_host: dict[str, list[Aggregate]] = {}
        for aggregate in groups:
            for host in aggregate.hosts:
                groups_by_host.setdefault(host, []).append(aggregate)
        return [self._provider(row, groups_by_host.get(row.name, ()), classes, equipped) for row in rows]

    def provider(self, id: str) -> Provider:
        """Return the provider with the uuid *id*. Raises ``NotFound``."""
        with self.cloud.store.api.read() as connection:
            return self.read_provider(connection, id)

    def read_provider(self, connection: Connection, id: str, *, lock: bool = False) -> Provider:
        """Return the provider with the uuid *id*, read in the transaction *connection*. *lock*: lock its host until the
        transaction ends; only hosts can then be read, and a provider below a host raises ``InvalidRequest``. Raises
        ``NotFound``."""
        row = hosts.fetch_host_row(connection, id, lock=lock)
        if row is not None and row.id == id:
            groups = aggregates.fetch_aggregate_rows(connection)
            return self._provider(row, [aggregate for aggregate in groups if row.name in aggregate.hosts],
                                  inventories.fetch_inventory_rows(connection, [id]),
                                  allocations.fetch_device_claims(connection, [id]))
        provider = next((child for root in self.read_roots(connection) for child in root.children if child.id == id),
                        None)
        if provider is None:
            raise NotFound(f"No resource provider with uuid {id[:80]} found.")
        if lock:
            raise InvalidRequest(
                f"{provider.name} is a part of host {provider.row.name}, and cannot be changed here: its "
                                 "inventories and traits are what its agent finds (NUMA cells) and its settings say "
                                 "(pci_device_spec, enabled_mdev_types, resource_provider_bandwidths, "
                                 "cpu_dedicated_set, reserved_huge_pages), and its aggregates are the host's.")
        return provider

    def _provider(self, row: HostRow, groups: Sequence[Aggregate], classes: Mapping[str, Mapping[str, InventoryRow]],
                  equipped: Mapping[str, Sequence[Any]]) -> Provider:
        host_classes = classes.get(row.id, {})
        networks = {name: host_classes[name] for name in _networks(host_classes)}
        plain = {name: inventory for name, inventory in host_classes.items() if name not in networks}
        return Provider(row, groups, self.usual, plain, equipped.get(row.id, ()), networks)

    def classes(self) -> list[str]:
        """Return all resource classes, the standard ones first."""
        with self.cloud.store.api.read() as connection:
            return [*dict.fromkeys((*STANDARD, *inventories.fetch_resource_classes(connection)))]

    def check_classes(self, names: Iterable[str]) -> None:
        """Raise ``InvalidRequest`` if one of *names* is not an existing resource class."""
        odd = sorted({*names} - {*STANDARD})
        if odd and (missing := [name for name in odd if name not in (class_names := self.classes())]):
            raise InvalidRequest(f"Invalid resource class in resources parameter: {missing[0][:80]}; there are "
                                 f"{', '.join(class_names)}.")

    def traits(self, among: Iterable[Provider] | None = None) -> tuple[frozenset[str], frozenset[str]]:
        """Return two sets: all traits that exist, and the traits that at least one provider has. *among*: all
        providers, if the caller has already read them."""
        had = frozenset(name for provider in (self.providers() if among is None else among) for name in provider.traits)
        with self.cloud.store.api.read() as connection:
            return had | traits.STANDARD | custom_traits.fetch_trait_names(connection), had

    def check_traits(self, names: Collection[str], roots: Iterable[Provider]) -> None:
        """Raise ``InvalidRequest`` if one of *names* is not an existing trait. *roots*: all hosts. Sends a query only
        for names that are neither standard traits nor traits of these hosts' providers."""
        unknown = {*names} - traits.STANDARD
        if unknown:
            unknown = unknown.difference(*(provider.traits for root in roots for provider in root.tree))
        if unknown:
            with self.cloud.store.api.read() as connection:
                unknown -= custom_traits.fetch_trait_names(connection)
        if unknown:
            raise InvalidRequest(f"No such trait(s): {', '.join(sorted(unknown))[:255]}. GET /traits lists those that "
                                 "there are.")

    def held_of(self, id: str) -> tuple[Provider, dict[str, tuple[dict[str, int], int]]]:
        """Return the provider *id*, and the allocations on it as a mapping from the consumer's uuid to (amounts by
        resource class, the consumer's generation). Raises ``NotFound``."""
        provider = self.provider(id)
        with self.cloud.store.api.read() as connection:
            rows = allocations.fetch_host_claims(connection, provider.root_id)
        if not isinstance(provider, ChildProvider) or provider.root is None:
            of_host = ((row, allocated_amounts(row)) for row in rows)
            return provider, {row.consumer_id: (mine, row.generation) for row, mine in of_host if mine}
        of_child = ((row, allocated_child_amounts(provider.root, [row]).get(id)) for row in rows)
        return provider, {row.consumer_id: (mine, row.generation) for row, mine in of_child if mine}

    def consumer(self, id: str) -> tuple[Consumer | None, Mapping[str, Provider]]:
        """Return the consumer *id*, and a mapping by uuid of all providers of the hosts on which the consumer has
        allocations. If it has no allocations, return ``None`` and an empty mapping."""
        with self.cloud.store.api.read() as connection:
            rows = allocations.fetch_consumer_claims(connection, id)
        if not rows:
            return None, {}
        on = {row.host_id for row in rows}
        providers = {provider.id: provider for root in self.roots(on) for provider in root.tree}
        held_amounts = {row.host_id: amounts for row in rows if (amounts := allocated_amounts(row))}
        for row in rows:
            held_amounts |= allocated_child_amounts(providers[row.host_id], [row]) if row.host_id in providers else {}
        generation = max(row.generation for row in rows)
        if (owner := rows[0].owner) is not None:
            return Consumer(id, owner["type"], owner["project_id"], owner["user_id"], held_amounts,
                            generation), providers
        located_server = servers.find_server_row(self.cloud.store, rows[0].server_id)
        project, user = (located_server[1].project_id, located_server[1].user_id) if located_server else ("", "")
        return Consumer(id, _consumer_type(rows[0]), project, user, held_amounts, generation), providers

    def usage(self, project_id: str, user_id: str | None = None) -> dict[str, tuple[int, dict[str, int]]]:
        """Return the allocations of a project, or of a user in it, on all hosts. The result maps each consumer type to
        (number of consumers, sum of amounts by resource class)."""
        of_user = None
        if user_id is not None:
            rows = rows_of_cells(self.cloud.store, select(server_table.c.id).where(
                server_table.c.project_id == project_id, server_table.c.user_id == user_id,
                server_table.c.deleted_at.is_(None)))
            of_user = {row.id for cell in rows for row in cell or ()}
        with self.cloud.store.api.read() as connection:
            allocation_rows = allocations.fetch_project_claims(connection, project_id)
        roots = {root.id: root for root in self.roots({row.host_id
                                                       for row in allocation_rows})} if allocation_rows else {}
        consumers: dict[str, set[str]] = {}
        sums: dict[str, dict[str, int]] = {}
        for row in allocation_rows:
            mine = row.server_id in (of_user or ()) if row.owner is None else row.owner["user_id"] == user_id
            if of_user is None or mine:
                kind = _consumer_type(row)
                consumers.setdefault(kind, set()).add(row.consumer_id)
                total = sums.setdefault(kind, {})
                devices = allocated_child_amounts(roots[row.host_id], [row]) if row.host_id in roots else {}
                for name, n in (name_amount for amounts in (allocated_amounts(row), *devices.values())
                                for name_amount in amounts.items()):
                    total[name] = total.get(name, 0) + n
        return {kind: (len(ids), sums[kind]) for kind, ids in consumers.items()}


def _networks(classes: Iterable[str]) -> list[str]:
    """Return the resource classes in *classes* that are bandwidth of a physical network."""
    return [name for name in classes if bandwidth.split_resource(name)[1]]


def _consumer_type(row: ClaimRow) -> str:
    """Return the type of the consumer of the allocation *row*: INSTANCE, MIGRATION, or the type that the client has set
    for another consumer."""
    if row.owner is not None:
        return row.owner["type"]
    return "INSTANCE" if row.consumer_id == row.server_id else "MIGRATION"
