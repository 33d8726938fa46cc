# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims: what servers and migrations hold of hosts. Concurrent claims never over-commit a host.

Every function takes the connection of a transaction of the API database (``database.write``) and is idempotent.
``hosts.*_used`` is the sum of ``allocations`` of that host; one conditional UPDATE raises it, and its row lock decides
a race. Of each further resource class (``resources``) one more UPDATE does the same in ``inventories``. While a server
moves, the uuid of its migration is the consumer of the claims on the source (spec row C2.9).

PCI devices have no counters: whoever claims more locks the host's row, and looks whether its devices are enough beside
those that servers hold of them (``device_claims``). Of which card NICs have their bandwidth a claim decides, too
(``nic_bandwidth``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Boolean, Connection, Row, RowMapping, and_, bindparam, delete, func, or_, select, update

from magnetar_control.store.engine.database import INSERT, now
from magnetar_control.store.engine.tables import (
    allocations,
    hosts,
    server_group_members,
    server_groups,
    server_mappings,
)
from magnetar_control.store.engine.tables import inventories as inventory_table

from . import device_claims, inventories, nic_bandwidth
from .nic_bandwidth import Asking, SettledResources, WantedResources


class Amounts(NamedTuple):
    """An amount of each resource: shared CPUs, MiB, GiB, dedicated CPUs (Nova's class PCPU)."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    pcpus: int = 0


class Ratios(NamedTuple):
    """Allocation ratios; Nova's initial_*_allocation_ratio (spec row ALL-02)."""

    vcpus: float = 16.0
    memory_mb: float = 1.5
    disk_gb: float = 1.0


@dataclass(frozen=True)
class Group:
    """A server group, for claims and the scheduler. ``hosts``: number of other members by host name."""

    id: str
    policy: str
    max_per_host: int = 1
    hosts: Mapping[str, int] = field(default_factory=dict)


class Difference(NamedTuple):
    """A host whose counters differ from its allocations: ``(vcpus, memory_mb, disk_gb, pcpus, servers)`` each, or the
    amount of a ``resource_class``."""

    host: str
    counted: tuple[int, ...]
    held: tuple[int, ...]
    resource_class: str = ""

    @property
    def text(self) -> str:
        """What is wrong."""
        what = f" of {self.resource_class}" if self.resource_class else ""
        return f"host {self.host} counts {self.counted}{what}, its claims are {self.held}"


RESOURCES = Amounts._fields
#: Those of which more may be promised than there is; a dedicated CPU is one server's.
SHARED = Ratios._fields
_MINE = and_(allocations.c.consumer_id == bindparam("consumer"), allocations.c.host_id == bindparam("host"))
#: The option makes SQLAlchemy keep psycopg's row count of an INSERT.
_HOLD = {kind: insert(allocations).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
         for kind, insert in INSERT.items()}
_HELD = select(*(allocations.c[name] for name in RESOURCES), *allocations.c["resources", "devices", "places"]).where(
    _MINE).with_for_update()
_DROP = delete(allocations).where(_MINE)
_CHANGE = update(allocations).where(_MINE).values(generation=allocations.c.generation + 1)
_RELEASE = delete(allocations).where(allocations.c.consumer_id == bindparam("consumer")).returning(
    allocations.c.host_id, *(allocations.c[name] for name in RESOURCES), allocations.c.resources, allocations.c.owner)
_OF_SERVER = select(allocations, hosts.c.name.label("host"), hosts.c.cell_id).join_from(
    allocations, hosts, hosts.c.id == allocations.c.host_id).where(
    allocations.c.server_id == bindparam("server")).order_by(allocations.c.created_at, allocations.c.consumer_id)
_OPEN = or_(bindparam("anyway", type_=Boolean), and_(~hosts.c.disabled, ~hosts.c.forced_down))
#: One conditional UPDATE of a host's counters, which no two that race can make true when there is room for one.
RAISE = update(hosts).where(hosts.c.id == bindparam("host"), _OPEN, *(
    or_(bindparam(f"more_{name}", type_=hosts.c[name].type) <= 0,
        hosts.c[f"{name}_used"] + bindparam(f"more_{name}") <= hosts.c[f"{name}_limit"]) for name in RESOURCES)).values(
    {f"{name}_used": hosts.c[f"{name}_used"] + bindparam(f"more_{name}") for name in RESOURCES}
    | {"servers": hosts.c.servers + bindparam("more_servers")})
#: The last claim says which cell the server is in.
MAPPINGS = {kind: (query := insert(server_mappings)).on_conflict_do_update(
    index_elements=["server_id"], set_={"cell_id": query.excluded.cell_id}) for kind, insert in INSERT.items()}
#: Nova's defaults.
USUAL = Ratios()
#: What plain servers claim of further resource classes.
NONE: Mapping[str, int] = MappingProxyType({})


def limits(row: Mapping[Any, Any], ratios: Ratios = USUAL) -> Amounts:
    """What may be claimed of a host: (total - reserved) x ratio, rounded down. *ratios*: where the host has none of its
    own."""
    def limit(name: str) -> int:
        usual, own = getattr(ratios, name, 1.0), row[f"{name}_ratio"] if name in SHARED else None
        return max(0, int((row[name] - row[f"{name}_reserved"]) * (usual if own is None else own)))
    return Amounts(*map(limit, RESOURCES))


def claim(connection: Connection, consumer_id: str, server_id: str, host_id: str, amounts: Amounts, *,
          devices: Mapping[str, int] = NONE, resources: Mapping[str, int] = NONE, project_id: str = "",
          cell_id: str | None = None, group: Group | None = None, anyway: bool = True,
          owner: Mapping[str, str] | None = None, nics: Sequence[Asking] | None = None, isolate: bool = False) -> bool:
    """Set what the consumer holds of the host to *amounts*, PCI *devices* by alias, and *resources* of classes in
    ``inventories``; with *cell_id*, map the server to that cell too. *owner*: of a consumer that is no server, which
    does not count as one. *nics*, *isolate*: of ``nic_bandwidth.WantedResources``; their places are found, and stay as
    they are where that is left out.

    ``False``, and nothing changed, when the host has not enough left, or is gone, or the group's policy (affinity,
    anti-affinity) forbids it by now; unless *anyway*, also when it is disabled or forced down. What the consumer holds
    there already is changed: a resize."""
    if group and not _allowed(connection, group, server_id, host_id):
        return False
    kind, me = connection.dialect.name, {"consumer": consumer_id, "host": host_id}
    held = connection.execute(_HELD, me).one_or_none() if devices else None  # whoever locks both locks the host later
    wanted = WantedResources(resources, devices, nics or (), isolate)
    if (settled := nic_bandwidth.settle(connection, consumer_id, server_id, host_id, wanted)) is None:
        return False
    mine = {**amounts._asdict(), **_texts(settled, nics is not None)}
    row = {"consumer_id": consumer_id, "host_id": host_id, "server_id": server_id, "created_at": now(), **mine,
           "owner": None if owner is None else inventories.text(owner)}
    while held is None and not connection.execute(_HOLD[kind], row).rowcount:
        held = connection.execute(_HELD, me).one_or_none()
    if held is None:
        more, servers, had = amounts, int(owner is None), NONE
    else:
        more, servers = Amounts(*(int(n) - int(was) for n, was in zip(amounts, held, strict=False))), 0
        had = orjson.loads(held.resources)
    if not _take(connection, host_id, more, servers, _differing(settled.resources, had), anyway):
        if held is None:
            connection.execute(_DROP, me)
        return False
    if held is not None and any(getattr(held, name) != value for name, value in mine.items()):
        connection.execute(_CHANGE, me | {**mine, "updated_at": now()})
    if cell_id is not None:
        connection.execute(MAPPINGS[kind], {"server_id": server_id, "cell_id": cell_id, "project_id": project_id,
                                            "created_at": now()})
    return True


def set_resources(connection: Connection, consumer_id: str, host_id: str,
                  wanted: Callable[[], WantedResources]) -> bool:
    """Set what the server holds of the host's ``inventories`` and PCI devices. *wanted* says it when the row is locked:
    of several the last one knows most. ``False``, and nothing changed, where too little is left, or nothing is held."""
    me = {"consumer": consumer_id, "host": host_id}
    held = connection.execute(_HELD, me).one_or_none()
    if held is None:
        return False
    settled = nic_bandwidth.settle(connection, consumer_id, consumer_id, host_id, wanted())
    if settled is None:
        return False
    if not _take(connection, host_id, Amounts(), 0, _differing(settled.resources, orjson.loads(held.resources))):
        return False
    mine = _texts(settled)
    if any(getattr(held, name) != one for name, one in mine.items()):
        connection.execute(_CHANGE, me | mine | {"updated_at": now()})
    return True


def _texts(settled: SettledResources, placed: bool = True) -> dict[str, str]:
    """Columns of what is settled; where NICs have their bandwidth, if they were *placed*."""
    found = {name: inventories.text(one) for name, one in settled._asdict().items()}
    return found if placed else {name: one for name, one in found.items() if name != "places"}


class Claim(NamedTuple):
    """The claim of a server of *project_id* on a host of a cell."""

    server_id: str
    project_id: str
    host_id: str
    cell_id: str
    amounts: Amounts
    devices: Mapping[str, int] = NONE


def claim_all(connection: Connection, claims: Sequence[Claim]) -> bool:
    """As ``claim`` with a cell, for several servers that hold nothing yet, are in no group and need no further resource
    classes, on hosts that take new servers. ``False`` when one of them does not fit: roll the transaction back then."""
    kind, moment = connection.dialect.name, now()
    held = connection.execute(_HOLD[kind], [{
        "consumer_id": one.server_id, "host_id": one.host_id, "server_id": one.server_id, "created_at": moment,
        "devices": inventories.text(one.devices), **one.amounts._asdict()} for one in claims])
    if held.rowcount != len(claims):
        return False
    of_host: dict[str, list[Amounts]] = {}
    for one in claims:
        of_host.setdefault(one.host_id, []).append(one.amounts)
    for host, amounts in sorted(of_host.items()):  # always in the same order, as in ``release``
        more = Amounts(*map(sum, zip(*amounts, strict=True)))
        if not _raise(connection, host, more, len(amounts), anyway=False):
            return False
    equipped: dict[str, dict[str, Mapping[str, int]]] = {}
    for one in claims:
        if one.devices:
            equipped.setdefault(one.host_id, {})[one.server_id] = one.devices
    if not all(device_claims.sufficed(connection, *one) for one in sorted(equipped.items(), key=lambda it: it[0])):
        return False
    connection.execute(MAPPINGS[kind], [{"server_id": one.server_id, "cell_id": one.cell_id,
                                         "project_id": one.project_id, "created_at": moment} for one in claims])
    return True


def held(connection: Connection, server_id: str) -> list[RowMapping]:
    """The claims of a server and its migrations, oldest first: the columns of ``allocations``, ``host`` (name) and
    ``cell_id``. A flow that is tried again looks here before it chooses a host."""
    return list(connection.execute(_OF_SERVER, {"server": server_id}).mappings())


def of_host(connection: Connection, host_id: str) -> Sequence[Row[Any]]:
    """The allocations on a host, by consumer."""
    return connection.execute(select(allocations).where(
        allocations.c.host_id == host_id).order_by(allocations.c.consumer_id)).all()


def equipped(connection: Connection, host_ids: Collection[str] | None = None) -> dict[str, list[Row[Any]]]:
    """The allocations that have PCI devices, by host: of some hosts, or of all."""
    query = select(allocations).where(allocations.c.devices != "{}").order_by(allocations.c.consumer_id)
    if host_ids is not None:
        query = query.where(allocations.c.host_id.in_(list(host_ids)))
    found: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(query):
        found.setdefault(row.host_id, []).append(row)
    return found


def of_consumer(connection: Connection, consumer_id: str, *, lock: bool = False) -> Sequence[Row[Any]]:
    """The allocations of a consumer, by host; *lock* locks them until the transaction ends."""
    query = select(allocations).where(allocations.c.consumer_id == consumer_id).order_by(allocations.c.host_id)
    return connection.execute(query.with_for_update() if lock else query).all()


def of_project(connection: Connection, project_id: str) -> Sequence[Row[Any]]:
    """The allocations of a project's servers and their migrations, and of its consumers that are neither."""
    servers = connection.execute(select(allocations).join_from(
        allocations, server_mappings, server_mappings.c.server_id == allocations.c.server_id).where(
        server_mappings.c.project_id == project_id, allocations.c.owner.is_(None))).all()
    others = connection.execute(select(allocations).where(allocations.c.owner.is_not(None))).all()
    return [*servers, *(one for one in others if orjson.loads(one.owner)["project_id"] == project_id)]


def set_consumer(connection: Connection, consumer_id: str, generation: int,
                 owner: Mapping[str, str] | None = None) -> None:
    """Set the generation of a consumer, on all its rows, and whose one is that is no server."""
    values = {"generation": generation} | ({} if owner is None else {"owner": inventories.text(owner)})
    connection.execute(update(allocations).where(allocations.c.consumer_id == consumer_id).values(values))


SERVER_TYPES = ("INSTANCE", "MIGRATION")  # of consumers: servers, and their migrations


def is_of_server(claim: Row[Any]) -> bool:
    """Return whether an allocation's consumer is of a server's type."""
    return claim.owner is None or orjson.loads(claim.owner)["type"] in SERVER_TYPES


def release(connection: Connection, consumer_id: str, host_id: str | None = None) -> int:
    """Delete the claims of a consumer (only on *host_id*, when given); returns how many there were."""
    query, values = _RELEASE, {"consumer": consumer_id}
    if host_id is not None:
        query, values = query.where(allocations.c.host_id == bindparam("host")), {**values, "host": host_id}
    ended = connection.execute(query, values).all()
    for host, *amounts, resources, owner in sorted(ended):  # always in the same order, against deadlocks
        _take(connection, host, Amounts(*(-int(n) for n in amounts)), -int(owner is None),
              {name: (0, -n) for name, n in sorted(orjson.loads(resources).items())})
    return len(ended)


def move(connection: Connection, server_id: str, migration_id: str, host_id: str) -> bool:
    """Make the migration the consumer of the server's claims on the source *host_id*; returns whether it is.

    To be called before the target is claimed for the server. A repeated call does nothing, so that a resize on the same
    host is safe too.
    """
    theirs = select(allocations.c.host_id).where(allocations.c.consumer_id == migration_id)
    if connection.execute(theirs).first():
        return True
    query = update(allocations).where(allocations.c.consumer_id == server_id, allocations.c.host_id == host_id)
    return bool(connection.execute(query.values(consumer_id=migration_id, updated_at=now())).rowcount)


def revert(connection: Connection, server_id: str, migration_id: str) -> bool:
    """Undo ``move``: delete the server's claims and make it the consumer of the migration's claims.

    ``False``, and nothing changed, when the migration has no claims. After a move that succeeded, call
    ``release(connection, migration_id)`` instead.
    """
    theirs = select(allocations.c.host_id).where(allocations.c.consumer_id == migration_id).with_for_update()
    if not connection.execute(theirs).first():
        return False
    release(connection, server_id)
    query = update(allocations).where(allocations.c.consumer_id == migration_id)
    connection.execute(query.values(consumer_id=server_id, updated_at=now()))
    return True


def audit(connection: Connection, repair: bool = False) -> list[Difference]:
    """Hosts whose counters are not the sum of their allocations; *repair* sets them to it.

    For a ``write`` transaction: PostgreSQL locks the hosts' rows while it counts.
    """
    counters = [hosts.c[f"{name}_used"] for name in RESOURCES] + [hosts.c.servers]
    rows = connection.execute(select(hosts.c.id, hosts.c.name, *counters).order_by(hosts.c.id).with_for_update()).all()
    sums = [func.sum(allocations.c[name]) for name in RESOURCES]
    query = select(allocations.c.host_id, *sums, func.count().filter(allocations.c.owner.is_(None))).group_by(
        allocations.c.host_id)
    found = _audit_classes(connection, {row.id: row.name for row in rows}, repair)
    held = {host: tuple(int(n) for n in amounts) for host, *amounts in connection.execute(query)}
    for id, name, *counted in rows:
        difference = Difference(name, tuple(counted), held.get(id, (0,) * (len(RESOURCES) + 1)))
        if difference.counted != difference.held:
            found.append(difference)
            if repair:
                names = [*(f"{name}_used" for name in RESOURCES), "servers"]
                connection.execute(update(hosts).where(hosts.c.id == id).values(
                    dict(zip(names, difference.held, strict=True))))
    return found


def _audit_classes(connection: Connection, names: Mapping[str, str], repair: bool) -> list[Difference]:
    """As ``audit``, for the classes in ``inventories``."""
    rows = connection.execute(select(inventory_table).order_by(
        inventory_table.c.host_id, inventory_table.c.resource_class).with_for_update()).all()
    held: dict[tuple[str, str], int] = {}
    for host, text in connection.execute(select(allocations.c.host_id, allocations.c.resources).where(
            allocations.c.resources != "{}")):
        for name, n in orjson.loads(text).items():
            held[host, name] = held.get((host, name), 0) + n
    found = []
    for row in rows:
        if row.used != (really := held.get((row.host_id, row.resource_class), 0)):
            found.append(Difference(names[row.host_id], (row.used,), (really,), row.resource_class))
            if repair:
                connection.execute(update(inventory_table).where(
                    inventory_table.c.host_id == row.host_id,
                    inventory_table.c.resource_class == row.resource_class).values(used=really))
    return found


def _differing(resources: Mapping[str, int], had: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Of each class of which another amount is wanted than before: the amount, and how much more that is, by name."""
    return {name: (resources.get(name, 0), n) for name in sorted(resources.keys() | had.keys())
            if (n := resources.get(name, 0) - had.get(name, 0))}


def _take(connection: Connection, host_id: str, more: Amounts, servers: int, other: Mapping[str, tuple[int, int]],
          anyway: bool = True) -> bool:
    """Raise the host's counters, and those of *other* classes, each by its second number for a consumer that has the
    first then. ``False``, and nothing changed, where one has not enough left."""
    if (servers or any(more)) and not _raise(connection, host_id, more, servers, anyway):
        return False
    done: list[tuple[str, int]] = []
    for name, (whole, n) in other.items():
        if not inventories.take(connection, host_id, name, whole, n):
            for taken, amount in done:
                inventories.take(connection, host_id, taken, 0, -amount)
            if servers or any(more):
                _raise(connection, host_id, Amounts(*(-n for n in more)), -servers)
            return False
        done.append((name, n))
    return True


def _raise(connection: Connection, host_id: str, more: Amounts, servers: int, anyway: bool = True) -> bool:
    return connection.execute(RAISE, raised_by(host_id, more, servers, anyway)).rowcount == 1


def raised_by(host_id: str, more: Amounts, servers: int, anyway: bool) -> dict[str, Any]:
    """What ``RAISE`` takes."""
    return {**{f"more_{name}": n for name, n in zip(RESOURCES, more, strict=True)},
            "host": host_id, "more_servers": servers, "anyway": anyway}


def _allowed(connection: Connection, group: Group, server_id: str, host_id: str) -> bool:
    """Whether the group's policy allows the server on the host now. Claims of one group are serialised."""
    if group.policy not in ("affinity", "anti-affinity"):
        return True
    connection.execute(select(server_groups.c.id).where(server_groups.c.id == group.id).with_for_update())
    query = select(allocations.c.host_id, func.count(allocations.c.server_id.distinct())).join_from(
        server_group_members, allocations, allocations.c.server_id == server_group_members.c.server_id).where(
        server_group_members.c.group_id == group.id, allocations.c.server_id != server_id)
    there: dict[str, int] = dict(connection.execute(query.group_by(allocations.c.host_id)).all())
    if group.policy == "affinity":
        return not there or host_id in there
    return there.get(host_id, 0) < group.max_per_host
