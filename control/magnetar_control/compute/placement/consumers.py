# SPDX-License-Identifier: GPL-3.0-or-later
"""Allocations that are changed by hand: what a consumer holds of providers is replaced, whoever it is.

A server's, or its migration's, that differ from its flavor then are what ``magnetar audit`` finds and puts right. What
is no server holds its allocations until who made them removes them. Devices, which are claimed by the aliases that
flavors name, can be kept or given up here, and no more taken. What a server has of NUMA cells its agent chooses: here
it is as it is, or goes together with all that is held of the host.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Row

from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.engine.database import advisory_lock
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from .placement import Placement
from .provider_tree import COLUMNS, ChildProvider, Provider

#: The type of consumers of which nothing was said.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Wish:
    """What a consumer is to hold: amounts by resource class, by provider's uuid. *generation*: of the consumer as the
    caller has seen it, ``None`` for a new one; it counts only where *generational*."""

    held: Mapping[str, Mapping[str, int]]
    project_id: str = ""
    user_id: str = ""
    type: str = UNKNOWN
    generation: int | None = None
    generational: bool = False


class Consumers:
    """Changes of what consumers hold of the providers of *placement*."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.cloud = placement, placement.cloud

    def replace(self, wanted: Mapping[str, Wish], locked: Collection[str] = (),
                between: Callable[[Connection], None] = lambda _: None,
                after: Callable[[Connection], None] = lambda _: None) -> None:
        """Have each consumer, by uuid (``normal_uuid``), hold what is wanted, all of them or none. *between*: what is
        done in the same transaction when what goes has gone, and nothing new is claimed yet; *after*: when all is
        claimed. Both may be called again. *locked*: the hosts, by uuid, that these change. They are locked, with those
        that several consumers are to hold something of, before anything of them is. Raises ``InvalidRequest``,
        ``Conflict``, and what these do."""
        self.placement.check_classes(name for wish in wanted.values() for held in wish.held.values() for name in held)
        known = {id for id, wish in wanted.items() if wish.held and servers.find(self.cloud.store, id) is not None}

        def once() -> None:
            with self.cloud.store.api.write() as connection:
                had = {id: _had(connection, id) for id in sorted(wanted)}
                for id, rows in had.items():
                    _check_generation(id, rows, wanted[id])
                roots = self._roots(connection, wanted.values(), had.values())
                below = {one.id: one for root in roots.values() for one in root.children}
                devices: dict[str, _Devices] = {}
                wishes = {}
                for id, rows in had.items():
                    wishes[id], devices[id] = _split(wanted[id], rows, roots, below)
                whose = {id: _whose(id, rows, wanted[id], id in known) for id, rows in had.items()}
                if locked or len(had) > 1:
                    hosts.lock(connection, {*locked, *(row.host_id for rows in had.values() for row in rows),
                                            *(host for wish in wishes.values() for host in wish.held)})
                for id, rows in had.items():  # first, since it may be what another of them is to hold
                    _give_up(connection, id, rows, wishes[id], devices[id])
                between(connection)
                for id, rows in had.items():
                    _claim(connection, id, rows, wishes[id], devices[id], *whose[id])
                after(connection)

        self.cloud.store.api.retried(once)

    def _roots(self, connection: Connection, wishes: Iterable[Wish],
               had: Iterable[Sequence[Row[Any]]]) -> dict[str, Provider]:
        """The hosts that are spoken of, by uuid; all of them where it is of providers below others."""
        ids = {id for wish in wishes for id in wish.held} | {row.host_id for rows in had for row in rows}
        found = self.placement.read_roots(connection, ids)
        if not ids <= {one.id for root in found for one in root.tree}:
            found = self.placement.read_roots(connection)
        return {one.id: one for one in found}

    def release(self, id: str) -> None:
        """Have a consumer hold nothing. Raises ``NotFound``."""
        with self.cloud.store.api.write() as connection:
            if not allocations.release(connection, id):
                raise NotFound(f"No allocations for consumer '{id[:80]}'.")


def _had(connection: Connection, id: str) -> Sequence[Row[Any]]:
    """What a consumer holds, which is locked until the transaction ends. Of a new one there is no row: its id is locked
    then, so that of two that make it at once the later one sees what the other has made."""
    if rows := allocations.of_consumer(connection, id, lock=True):
        return rows
    advisory_lock(connection, "consumer", id)
    return allocations.of_consumer(connection, id, lock=True)


#: PCI devices by host and alias.
_Devices = Mapping[str, Mapping[str, int]]


def _split(wish: Wish, rows: Sequence[Row[Any]], roots: Mapping[str, Provider],
           below: Mapping[str, ChildProvider]) -> tuple[Wish, _Devices]:
    """What a consumer, of these allocations, is to hold of hosts, and which of its devices it keeps. *below*: the
    providers below the hosts, by uuid. Raises ``InvalidRequest`` where it is to hold more of these than it does."""
    places = {id: str(below[id].told["place"]) for id in wish.held  # of bandwidth
              if id in below and "place" in below[id].told}
    _check_cells(wish, rows, roots, below)
    left = {id: Counter(amounts) for id, amounts in wish.held.items() if id in below and id not in places
            and not below[id].is_cell}
    kept = {}
    for row in rows:
        devices = Counter[str](orjson.loads(row.devices))
        for alias, id, kind in roots[row.host_id].devices_of(row) if row.host_id in roots else ():
            if left.get(id, Counter())[kind] > 0:
                left[id][kind] -= 1
            else:
                devices[alias] -= 1
        kept[row.host_id] = dict(+devices)
    if more := next((below[id] for id, amounts in left.items() if amounts.total()), None):
        raise InvalidRequest(f"{more.name} is a device of host {more.row['name']}: servers claim devices by their "
                             "flavor (pci_passthrough:alias, resources:VGPU). Here they can be kept or given up only.")
    held: dict[str, Mapping[str, int]] = {
        **{below[id].root_id: {} for id in wish.held if id in below},
        **{id: one for id, one in wish.held.items() if id not in below}}
    for id, place in places.items():
        root = below[id].root_id
        held[root] = {**held[root], **{f"{kind}:{place}": n for kind, n in wish.held[id].items()}}
    return replace(wish, held=held), kept


def _check_cells(wish: Wish, rows: Sequence[Row[Any]], roots: Mapping[str, Provider],
                 below: Mapping[str, ChildProvider]) -> None:
    """Raises ``InvalidRequest`` where a consumer is to hold something else of NUMA cells than it does, on hosts of
    which it is to hold something."""
    now: dict[str, dict[str, int]] = {}
    for row in rows:
        now |= roots[row.host_id].cells_of(row) if row.host_id in roots else {}
    kept = {below[id].root_id if id in below else id for id in wish.held}
    for id in sorted(now.keys() | wish.held.keys()):
        one = below.get(id)
        if one is None or not one.is_cell or one.root_id not in kept or wish.held.get(id, {}) == now.get(id, {}):
            continue
        has = " and ".join(f"{n} {name}" for name, n in now.get(id, {}).items()) or "nothing"
        raise InvalidRequest(f"{one.name} is a NUMA cell of host {one.row['name']}, of which the consumer has {has}: "
                             "its agent chooses that for servers that ask for it (hw:numa_nodes, hw:cpu_policy, "
                             "hw:mem_page_size). Say the same here, or leave out all of that host.")


def _give_up(connection: Connection, id: str, rows: Sequence[Row[Any]], wish: Wish, devices: _Devices) -> None:
    """What a consumer holds and is not to hold goes."""
    for row in rows:
        held = wish.held.get(row.host_id)
        if held is None:
            allocations.release(connection, id, row.host_id)
            continue
        amounts = Amounts(**{column: min(int(getattr(row, column)), held.get(name, 0))
                             for name, column in COLUMNS.items()})
        other = {name: less for name, had in orjson.loads(row.resources).items()
                 if (less := min(had, held.get(name, 0)))}
        allocations.claim(connection, id, row.server_id, row.host_id, amounts, devices=devices[row.host_id],
                          resources=other)


def _claim(connection: Connection, id: str, rows: Sequence[Row[Any]], wish: Wish, devices: _Devices, server: str,
           owner: Mapping[str, str] | None) -> None:
    """Raises ``InvalidRequest``, ``Conflict``."""
    for host, held in sorted(wish.held.items()):
        place = hosts.show(connection, host)
        if place is None or place["id"] != host:
            raise InvalidRequest(f"Allocation for resource provider {host[:80]!r} that does not exist.")
        amounts = Amounts(**{column: held.get(name, 0) for name, column in COLUMNS.items()})
        other = {name: amount for name, amount in held.items() if name not in COLUMNS}
        fits = all(amount <= place[column] for column, amount in amounts._asdict().items())
        if not fits or not allocations.claim(connection, id, server, host, amounts, devices=devices.get(host, {}),
                                             resources=other, owner=owner):
            raise no_room(place["name"], held)
    allocations.set_consumer(connection, id, (_generation(rows) or 0) + 1, owner)


def no_room(host: str, held: Mapping[str, int]) -> Conflict:
    """What is said where a consumer is to hold these amounts of a host, by resource class, which do not fit."""
    said = ", ".join(f"{amount} {name}" for name, amount in held.items())
    return Conflict(f"Unable to allocate inventory: {host} has not {said[:255]} left for one consumer.")


def normal_uuid(id: str) -> str:
    """Return a consumer's uuid in lower case with dashes: one consumer has one uuid, however it is written. Raises
    ``InvalidRequest`` for what is no uuid."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise InvalidRequest(f"Malformed consumer_uuid: {id[:80]}; it must be a uuid.") from None


def _generation(rows: Sequence[Row[Any]]) -> int | None:
    """That of the consumer of these rows; ``None`` for a new one."""
    return max((row.generation for row in rows), default=None)


def _check_generation(id: str, rows: Sequence[Row[Any]], wish: Wish) -> None:
    """Raises ``Conflict`` where the caller has seen another generation of the consumer."""
    now = _generation(rows)
    if wish.generational and wish.generation != now:
        raise Conflict(f"consumer generation conflict - expected {'null' if now is None else now} but got "
                       f"{'null' if wish.generation is None else wish.generation} for consumer {id}. Read its "
                       "allocations again, and ask again.", generation=now)


def _whose(id: str, rows: Sequence[Row[Any]], wish: Wish, is_server: bool) -> tuple[str, dict[str, str] | None]:
    """The server of a consumer, and the owner of one that is none. Raises ``InvalidRequest`` for a type that it has
    not."""
    first = rows[0] if rows else None
    if is_server if first is None else first.owner is None:
        server = id if first is None else first.server_id
        real = allocations.SERVER_TYPES[server != id]
        if wish.type not in (real, UNKNOWN):
            raise InvalidRequest(f"Consumer {id} is of type {real}, and not {wish.type[:80]}.")
        return server, None
    return id, {"type": wish.type, "project_id": wish.project_id, "user_id": wish.user_id}
