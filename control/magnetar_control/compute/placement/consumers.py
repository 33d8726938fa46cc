# SPDX-License-Identifier: GPL-3.0-or-later
"""Allocations that clients replace through Placement's API, for all types of consumers.

When a client gives a server or migration allocations that differ from the flavor, ``magnetar audit`` finds and corrects
them. A consumer that is no server holds its allocations until their creator removes them. Devices are claimed through
the aliases that flavors name: a client can keep or release them, but claim no others. An agent chooses a server's share
of NUMA cells: a client must repeat this share, or release everything that the server holds of the host.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Amounts, ClaimRow
from magnetar_control.store.engine.database import advisory_lock
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from .placement import Placement
from .provider_tree import COLUMNS, ChildProvider, Provider

#: The type of consumers whose creator names none.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class ConsumerRequest:
    """The requested allocations of a consumer. *held*: amounts by uuid of the provider, then by resource class.
    *generation*: the consumer's generation that the client has read; ``None`` for a new consumer. The generation is
    checked only if *generational* is true."""

    held: Mapping[str, Mapping[str, int]]
    project_id: str = ""
    user_id: str = ""
    type: str = UNKNOWN
    generation: int | None = None
    generational: bool = False


class Consumers:
    """The operations of Placement's API that change allocations of consumers."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.cloud = placement, placement.cloud

    def replace(self, requested: Mapping[str, ConsumerRequest], locked: Collection[str] = (),
                between: Callable[[Connection], None] = lambda _: None,
                after_claims: Callable[[Connection], None] = lambda _: None) -> None:
        """Replace the allocations of consumers in one transaction. *requested*: by the consumer's ``normal_uuid``.

        *between*: a function that makes further changes in the transaction, after old amounts are released and before
        new ones are claimed. *after_claims*: a function that makes further changes after the claims. Both functions are
        called again if the transaction is repeated. *locked*: the uuids of the hosts that the two functions change;
        these hosts are locked first. With several consumers, the hosts of their allocations are locked first too.
        Raises ``InvalidRequest``, ``Conflict``, and the errors of the two functions.
        """
        self.placement.check_classes(name for consumer_request in requested.values()
                                     for amounts in consumer_request.held.values() for name in amounts)
        server_ids = {id for id, consumer_request in requested.items() if consumer_request.held
                      and servers.find_server_row(self.cloud.store, id) is not None}

        def once() -> None:
            with self.cloud.store.api.write() as connection:
                had = {id: _locked_allocations(connection, id) for id in sorted(requested)}
                for id, rows in had.items():
                    _check_generation(id, rows, requested[id])
                roots = self._roots(connection, requested.values(), had.values())
                below = {child.id: child for root in roots.values() for child in root.children}
                devices: dict[str, _Devices] = {}
                consumer_requests = {}
                for id, rows in had.items():
                    consumer_requests[id], devices[id] = _split_request(requested[id], rows, roots, below)
                owners = {id: _consumer_owner(id, rows, requested[id], id in server_ids) for id, rows in had.items()}
                if locked or len(had) > 1:
                    hosts.lock_host_rows(connection, {*locked, *(row.host_id for rows in had.values() for row in rows),
                                                      *(host for consumer_request in consumer_requests.values()
                                                        for host in consumer_request.held)})
                for id, rows in had.items():  # first, since another of these consumers may claim the released amount
                    _give_up_amounts(connection, id, rows, consumer_requests[id], devices[id])
                between(connection)
                for id, rows in had.items():
                    _claim_request(connection, id, rows, consumer_requests[id], devices[id], *owners[id])
                after_claims(connection)

        self.cloud.store.api.retried(once)

    def _roots(self, connection: Connection, consumer_requests: Iterable[ConsumerRequest],
               current_allocations: Iterable[Sequence[ClaimRow]]) -> dict[str, Provider]:
        """Return, by uuid, the hosts to which *consumer_requests* and *current_allocations* refer. If a request names
        providers below a host (such as NUMA cells), return all hosts."""
        ids = {id for consumer_request in consumer_requests for id in consumer_request.held} | {
            row.host_id for rows in current_allocations for row in rows}
        roots = self.placement.read_roots(connection, ids)
        if not ids <= {provider.id for root in roots for provider in root.tree}:
            roots = self.placement.read_roots(connection)
        return {root.id: root for root in roots}

    def release(self, id: str) -> None:
        """Delete all allocations of the consumer *id*. Raises ``NotFound``."""
        with self.cloud.store.api.write() as connection:
            if not allocations.release_consumer_claims(connection, id):
                raise NotFound(f"No allocations for consumer '{id[:80]}'.")


def _locked_allocations(connection: Connection, id: str) -> Sequence[ClaimRow]:
    """Return a consumer's allocations, locked until the transaction ends. A new consumer has no rows that could be
    locked, so the lock is on the consumer's id: when two clients create the same consumer at the same time, the second
    waits and then reads the rows of the first."""
    if rows := allocations.fetch_consumer_claims(connection, id, lock=True):
        return rows
    advisory_lock(connection, "consumer", id)
    return allocations.fetch_consumer_claims(connection, id, lock=True)


#: Numbers of PCI devices by host's uuid, then by alias.
_Devices = Mapping[str, Mapping[str, int]]


def _split_request(consumer_request: ConsumerRequest, rows: Sequence[ClaimRow], roots: Mapping[str, Provider],
                   below: Mapping[str, ChildProvider]) -> tuple[ConsumerRequest, _Devices]:
    """Return two items. The first is *consumer_request* with amounts of hosts only: bandwidth of a network card becomes
    an amount of the card's host. The second has the numbers of PCI devices that the consumer keeps, by uuid of the
    host, then by alias. *rows*: the consumer's current allocations. *roots*, *below*: the hosts, and the providers
    below the hosts, by uuid. Raises ``InvalidRequest`` when the request has devices that the consumer does not hold, or
    changes the amounts of NUMA cells that the consumer holds."""
    places = {id: str(below[id].report["place"]) for id in consumer_request.held  # providers of bandwidth
              if id in below and "place" in below[id].report}
    _check_cells(consumer_request, rows, roots, below)
    remaining = {id: Counter(amounts) for id, amounts in consumer_request.held.items()
                 if id in below and id not in places and not below[id].is_cell}
    devices_by_host = {}
    for row in rows:
        devices = Counter[str](row.devices)
        for alias, id, kind in roots[row.host_id].devices_of(row) if row.host_id in roots else ():
            if remaining.get(id, Counter())[kind] > 0:
                remaining[id][kind] -= 1
            else:
                devices[alias] -= 1
        devices_by_host[row.host_id] = dict(+devices)
    if more := next((below[id] for id, amounts in remaining.items() if amounts.total()), None):
        raise InvalidRequest(f"{more.name} is a device of host {more.row.name}: servers claim devices by their "
                             "flavor (pci_passthrough:alias, resources:VGPU). Here they can be kept or given up only.")
    amounts_by_provider: dict[str, Mapping[str, int]] = {
        **{below[id].root_id: {} for id in consumer_request.held if id in below},
        **{id: amounts for id, amounts in consumer_request.held.items() if id not in below}}
    for id, place in places.items():
        root = below[id].root_id
        amounts_by_provider[root] = {**amounts_by_provider[root],
                                     **{f"{kind}:{place}": n for kind, n in consumer_request.held[id].items()}}
    return replace(consumer_request, held=amounts_by_provider), devices_by_host


def _check_cells(consumer_request: ConsumerRequest, rows: Sequence[ClaimRow], roots: Mapping[str, Provider],
                 below: Mapping[str, ChildProvider]) -> None:
    """Raise ``InvalidRequest`` when *consumer_request* differs from the amounts of NUMA cells that the consumer holds
    now. Hosts that the request does not mention are not checked. *rows*: the consumer's current allocations. *roots*,
    *below*: the hosts, and the providers below them, by uuid."""
    now: dict[str, dict[str, int]] = {}
    for row in rows:
        now |= roots[row.host_id].cells_of(row) if row.host_id in roots else {}
    host_ids = {below[id].root_id if id in below else id for id in consumer_request.held}
    for id in sorted(now.keys() | consumer_request.held.keys()):
        cell = below.get(id)
        if cell is None or not cell.is_cell or cell.root_id not in host_ids or (
                consumer_request.held.get(id, {}) == now.get(id, {})):
            continue
        has = " and ".join(f"{n} {name}" for name, n in now.get(id, {}).items()) or "nothing"
        raise InvalidRequest(f"{cell.name} is a NUMA cell of host {cell.row.name}, of which the consumer has {has}: "
                             "its agent chooses that for servers that ask for it (hw:numa_nodes, hw:cpu_policy, "
                             "hw:mem_page_size). Say the same here, or leave out all of that host.")


def _give_up_amounts(connection: Connection, id: str, rows: Sequence[ClaimRow], consumer_request: ConsumerRequest,
                     devices: _Devices) -> None:
    """Release the amounts in *rows*, the current allocations of consumer *id*, that exceed the new allocations: the
    amounts in *consumer_request*, and *devices* (numbers of PCI devices by uuid of the host and alias)."""
    for row in rows:
        requested_amounts = consumer_request.held.get(row.host_id)
        if requested_amounts is None:
            allocations.release_consumer_claims(connection, id, row.host_id)
            continue
        amounts = Amounts(**{column: min(int(getattr(row, column)), requested_amounts.get(name, 0))
                             for name, column in COLUMNS.items()})
        other = {name: less for name, had in row.resources.items()
                 if (less := min(had, requested_amounts.get(name, 0)))}
        allocations.claim_host_resources(connection, id, row.server_id, row.host_id, amounts,
                                         devices=devices[row.host_id], resources=other)


def _claim_request(connection: Connection, id: str, rows: Sequence[ClaimRow], consumer_request: ConsumerRequest,
                   devices: _Devices, server: str,
                   owner: Mapping[str, str] | None) -> None:
    """Claim the amounts in *consumer_request* and the *devices* (numbers of PCI devices by uuid of the host and alias)
    for consumer *id*, and increment the consumer's generation. *rows*: the previous allocations. *server*: the uuid of
    the consumer's server. *owner*: project, user and type of a consumer that is not a server; otherwise ``None``.
    Raises ``InvalidRequest``, ``Conflict``."""
    for host, requested_amounts in sorted(consumer_request.held.items()):
        place = hosts.fetch_host_row(connection, host)
        if place is None or place.id != host:
            raise InvalidRequest(f"Allocation for resource provider {host[:80]!r} that does not exist.")
        amounts = Amounts(**{column: requested_amounts.get(name, 0) for name, column in COLUMNS.items()})
        other = {name: amount for name, amount in requested_amounts.items() if name not in COLUMNS}
        fits = all(amount <= has for amount, has in zip(amounts, place.totals, strict=True))
        if not fits or not allocations.claim_host_resources(connection, id, server, host, amounts,
                                                            devices=devices.get(host, {}),
                                                            resources=other, owner=owner):
            raise no_room(place.name, requested_amounts)
    allocations.update_consumer_rows(connection, id, (_generation(rows) or 0) + 1, owner)


def no_room(host: str, amounts: Mapping[str, int]) -> Conflict:
    """Return the error that *host* has too little of the requested *amounts*, by resource class."""
    listing = ", ".join(f"{amount} {name}" for name, amount in amounts.items())
    return Conflict(f"Unable to allocate inventory: {host} has not {listing[:255]} left for one consumer.")


def normal_uuid(id: str) -> str:
    """Return a consumer's uuid in lower case with dashes, so that all ways to write the uuid refer to the same
    consumer. Raises ``InvalidRequest`` when *id* is no uuid."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise InvalidRequest(f"Malformed consumer_uuid: {id[:80]}; it must be a uuid.") from None


def _generation(rows: Sequence[ClaimRow]) -> int | None:
    """Return the generation of the consumer with the allocations *rows*; ``None`` if it has no allocations."""
    return max((row.generation for row in rows), default=None)


def _check_generation(id: str, rows: Sequence[ClaimRow], consumer_request: ConsumerRequest) -> None:
    """Raise ``Conflict`` when the generation that the client has sent in *consumer_request* is not the current one of
    consumer *id*. *rows*: the consumer's current allocations."""
    now = _generation(rows)
    if consumer_request.generational and consumer_request.generation != now:
        raise Conflict(f"consumer generation conflict - expected {'null' if now is None else now} but got "
                       f"{'null' if consumer_request.generation is None else consumer_request.generation} for consumer "
                       f"{id}. Read its allocations again, and ask again.", generation=now)


def _consumer_owner(id: str, rows: Sequence[ClaimRow], consumer_request: ConsumerRequest,
                    is_server: bool) -> tuple[str, dict[str, str] | None]:
    """Return (uuid of the server, ``None``) if the consumer is a server or a migration, otherwise (*id*, mapping with
    the consumer's type, project and user). *rows*: the consumer's current allocations. Raises ``InvalidRequest`` when
    *consumer_request* has a wrong type for a server or migration."""
    first = rows[0] if rows else None
    if is_server if first is None else first.owner is None:
        server = id if first is None else first.server_id
        real = allocations.SERVER_TYPES[server != id]
        if consumer_request.type not in (real, UNKNOWN):
            raise InvalidRequest(f"Consumer {id} is of type {real}, and not {consumer_request.type[:80]}.")
        return server, None
    return id, {"type": consumer_request.type, "project_id": consumer_request.project_id,
                "user_id": consumer_request.user_id}
