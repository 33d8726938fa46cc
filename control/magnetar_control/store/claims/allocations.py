# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims: the resources that servers and migrations hold on hosts. Concurrent claims never over-commit a host.

Every function takes the connection of a transaction of the API database (``database.write``) and is idempotent.
``hosts.*_used`` is the sum of the host's ``allocations``. A claim raises these columns with one conditional UPDATE,
whose row lock decides between concurrent claims. For each further resource class (``resources``) another UPDATE does
the same in ``inventories``. While a server moves, the uuid of its migration is the consumer of the claims on the
source.

PCI devices have no counters: a claim of more devices locks the host's row, and checks that they fit next to the devices
that servers hold (``device_claims``). A claim also decides which card provides the bandwidth of NICs
(``nic_bandwidth``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    CTE,
    BindParameter,
    Boolean,
    Connection,
    Executable,
    Table,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from magnetar_control.store.engine.database import INSERT, TWICE, utc_now
from magnetar_control.store.engine.rows import DocumentColumn, StoredRow
from magnetar_control.store.engine.tables import (
    HAS_DEVICES,
    allocations,
    hosts,
    server_group_members,
    server_groups,
    server_mappings,
)

from . import device_claims, inventories, nic_bandwidth
from .nic_bandwidth import BandwidthRequest, GrantedResources, RequestedResources


class Amounts(NamedTuple):
    """Amounts of a host's resources: shared CPUs, MiB of memory, GiB of disk, dedicated CPUs (Nova's resource class
    PCPU)."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    pcpus: int = 0


class Ratios(NamedTuple):
    """Allocation ratios of CPUs, memory and disk. The defaults are Nova's initial_*_allocation_ratio."""

    vcpus: float = 16.0
    memory_mb: float = 1.5
    disk_gb: float = 1.0


@dataclass(frozen=True)
class Group:
    """A server group and the number of its members on each host: ``hosts`` is {name of the host: number}, without the
    server that is being placed."""

    id: str
    policy: str
    max_per_host: int = 1
    hosts: Mapping[str, int] = field(default_factory=dict)


class ClaimRow(StoredRow):
    """A row of the table ``allocations``: the resources that a consumer (such as a server or a migration) claims on a
    host."""

    consumer_id: str
    host_id: str
    server_id: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    pcpus: int
    generation: int

    devices = DocumentColumn[Mapping[str, int]]()
    resources = DocumentColumn[Mapping[str, int]]()
    places = DocumentColumn[Mapping[str, str]]()
    #: The type, project_id and user_id of a consumer that is neither server nor migration.
    owner = DocumentColumn[Mapping[str, str] | None]()


class ServerClaim(ClaimRow):
    """A row of ``allocations`` for a server or one of its migrations, with the name and cell of the host."""

    host: str
    cell_id: str


RESOURCES = Amounts._fields
#: Resources that may be over-committed; a dedicated CPU belongs to one server.
SHARED = Ratios._fields
_MINE = and_(allocations.c.consumer_id == bindparam("consumer"), allocations.c.host_id == bindparam("host"))
#: ``preserve_rowcount`` makes SQLAlchemy keep psycopg's row count of an INSERT.
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
_OPEN = or_(bindparam("ignore_disabled", type_=Boolean), and_(~hosts.c.disabled, ~hosts.c.forced_down))
#: The conditional UPDATE of a host's counters: if there is room for one claim only, one of two concurrent claims fails.
RAISE = update(hosts).where(hosts.c.id == bindparam("host"), _OPEN, *(
    or_(bindparam(f"more_{name}", type_=hosts.c[name].type) <= 0,
        hosts.c[f"{name}_used"] + bindparam(f"more_{name}") <= hosts.c[f"{name}_limit"]) for name in RESOURCES)).values(
    {f"{name}_used": hosts.c[f"{name}_used"] + bindparam(f"more_{name}") for name in RESOURCES}
    | {"servers": hosts.c.servers + bindparam("more_servers")})
#: The INSERT of a server's mapping. A later claim in another cell changes the mapping.
MAPPINGS = {kind: (query := insert(server_mappings)).on_conflict_do_update(
    index_elements=["server_id"], set_={"cell_id": query.excluded.cell_id}) for kind, insert in INSERT.items()}
#: Nova's default ratios.
USUAL = Ratios()
#: The amounts of further resource classes that most servers request: none.
NONE: Mapping[str, int] = MappingProxyType({})
_RAISED = RAISE.returning(hosts.c.id).cte("raised")


def claimable_amounts(row: Mapping[Any, Any], ratios: Ratios = USUAL) -> Amounts:
    """Return the claimable amounts of a host: (total - reserved) x ratio, rounded down. *row*: columns of ``hosts``.
    *ratios*: used for resources without a ratio in *row*."""
    def limit(name: str) -> int:
        usual, host_ratio = getattr(ratios, name, 1.0), row[f"{name}_ratio"] if name in SHARED else None
        return max(0, int((row[name] - row[f"{name}_reserved"]) * (usual if host_ratio is None else host_ratio)))
    return Amounts(*map(limit, RESOURCES))


def claim_host_resources(connection: Connection, consumer_id: str, server_id: str, host_id: str, amounts: Amounts, *,
                         devices: Mapping[str, int] = NONE, resources: Mapping[str, int] = NONE, project_id: str = "",
                         cell_id: str | None = None, group: Group | None = None, ignore_disabled: bool = True,
                         owner: Mapping[str, str] | None = None, nics: Sequence[BandwidthRequest] | None = None,
                         isolate: bool = False) -> bool:
    """Set the resources that the consumer claims on a host: *amounts*, numbers of PCI *devices* by alias, and
    *resources* by resource class. Return ``False``, with nothing changed, when the host is deleted or has too few
    resources, or the *group*'s policy forbids it; without *ignore_disabled*, also when it is disabled or forced down.

    *cell_id*: also map the server to this cell. *owner*: type, project and user of a consumer that is not a server.
    *nics*: NICs with bandwidth requests; ``None``: keep the chosen network cards. *isolate*: Nova's ``group_policy``.
    """
    if group and not _allowed(connection, group, server_id, host_id):
        return False
    kind, me = connection.dialect.name, {"consumer": consumer_id, "host": host_id}
    # lock order: allocations before hosts
    claim_row = connection.execute(_HELD, me).one_or_none() if devices else None
    desired = RequestedResources(resources, devices, nics or (), isolate)
    if (granted := nic_bandwidth.resolve_claim_resources(connection, consumer_id, server_id, host_id, desired)) is None:
        return False
    mine = {**amounts._asdict(), **_texts(granted, nics is not None)}
    row = {"consumer_id": consumer_id, "host_id": host_id, "server_id": server_id, "created_at": utc_now(), **mine,
           "owner": None if owner is None else inventories.canonical_json(owner)}
    while claim_row is None and not connection.execute(_HOLD[kind], row).rowcount:
        claim_row = connection.execute(_HELD, me).one_or_none()
    if claim_row is None:
        more, servers, had = amounts, int(owner is None), NONE
    else:
        more, servers = Amounts(*(int(n) - int(previous) for n, previous in zip(amounts, claim_row, strict=False))), 0
        had = orjson.loads(claim_row.resources)
    if not _take(connection, host_id, more, servers, _differing(granted.resources, had), ignore_disabled):
        if claim_row is None:
            connection.execute(_DROP, me)
        return False
    if claim_row is not None and any(getattr(claim_row, name) != value for name, value in mine.items()):
        connection.execute(_CHANGE, me | {**mine, "updated_at": utc_now()})
    if cell_id is not None:
        connection.execute(MAPPINGS[kind], {"server_id": server_id, "cell_id": cell_id, "project_id": project_id,
                                            "created_at": utc_now()})
    return True


def set_claimed_resources(connection: Connection, consumer_id: str, host_id: str,
                          desired_resources: Callable[[], RequestedResources]) -> bool:
    """Change the resource classes and PCI devices that a server claims on the host; its CPUs, memory and disk do not
    change. *desired_resources*: a function that returns the new claim; it is called after the claim's row is locked, so
    that the last of several concurrent calls uses the newest data.

    Return ``False``, with nothing changed, when the host has too few resources left, or the server has no claim on the
    host.
    """
    me = {"consumer": consumer_id, "host": host_id}
    claim_row = connection.execute(_HELD, me).one_or_none()
    if claim_row is None:
        return False
    granted = nic_bandwidth.resolve_claim_resources(connection, consumer_id, consumer_id, host_id, desired_resources())
    if granted is None:
        return False
    if not _take(connection, host_id, Amounts(), 0, _differing(granted.resources, orjson.loads(claim_row.resources))):
        return False
    mine = _texts(granted)
    if any(getattr(claim_row, name) != text for name, text in mine.items()):
        connection.execute(_CHANGE, me | mine | {"updated_at": utc_now()})
    return True


def _texts(granted: GrantedResources, placed: bool = True) -> dict[str, str]:
    """Return the columns ``resources``, ``devices`` and ``places`` of ``allocations`` as {name of the column: JSON
    text}. *granted*: the values. *placed*: whether to include ``places`` (which network or card provides the bandwidth
    of each NIC)."""
    texts = {name: inventories.canonical_json(document) for name, document in granted._asdict().items()}
    return texts if placed else {name: text for name, text in texts.items() if name != "places"}


class Claim(NamedTuple):
    """The amounts and PCI devices that a server of *project_id* claims on a host, and the cell of the host."""

    server_id: str
    project_id: str
    host_id: str
    cell_id: str
    amounts: Amounts
    devices: Mapping[str, int] = NONE


def claim_for_servers(connection: Connection, claims: Sequence[Claim]) -> bool:
    """Make the *claims* of several servers, and map each server to its cell. The servers must have no claims yet, be in
    no group, and need no custom resource classes; their hosts must accept new servers. Return ``False`` when one server
    does not fit: the caller must then roll the transaction back."""
    kind, moment = connection.dialect.name, utc_now()
    inserted = connection.execute(_HOLD[kind], [{
        "consumer_id": claim.server_id, "host_id": claim.host_id, "server_id": claim.server_id, "created_at": moment,
        "devices": inventories.canonical_json(claim.devices), **claim.amounts._asdict()} for claim in claims])
    if inserted.rowcount != len(claims):
        return False
    of_host: dict[str, list[Amounts]] = {}
    for claim in claims:
        of_host.setdefault(claim.host_id, []).append(claim.amounts)
    for host, amounts in sorted(of_host.items()):  # always in the same order, as in ``release_consumer_claims``
        more = Amounts(*map(sum, zip(*amounts, strict=True)))
        if not _raise(connection, host, more, len(amounts), ignore_disabled=False):
            return False
    equipped: dict[str, dict[str, Mapping[str, int]]] = {}
    for claim in claims:
        if claim.devices:
            equipped.setdefault(claim.host_id, {})[claim.server_id] = claim.devices
    if not all(device_claims.claimed_devices_suffice(connection, *host_devices)
               for host_devices in sorted(equipped.items(), key=lambda it: it[0])):
        return False
    connection.execute(MAPPINGS[kind], [{"server_id": claim.server_id, "cell_id": claim.cell_id,
                                         "project_id": claim.project_id, "created_at": moment} for claim in claims])
    return True


def fetch_server_claims(connection: Connection, server_id: str) -> list[ServerClaim]:
    """Return the claims of a server and its migrations, oldest first. An operation that may be a retry calls this
    before it chooses a host, to use the host that it claimed before."""
    return ServerClaim.several(connection.execute(_OF_SERVER, {"server": server_id}))


def fetch_host_claims(connection: Connection, host_id: str) -> list[ClaimRow]:
    """Return the allocations on a host, ordered by consumer."""
    return ClaimRow.several(connection.execute(select(allocations).where(
        allocations.c.host_id == host_id).order_by(allocations.c.consumer_id)))


def fetch_device_claims(connection: Connection, host_ids: Collection[str] | None = None) -> dict[str, list[ClaimRow]]:
    """Return the allocations that include PCI devices, as a list for each host id. *host_ids*: read only these hosts;
    all by default."""
    query = select(allocations).where(literal_column(HAS_DEVICES)).order_by(allocations.c.consumer_id)
    if host_ids is not None:
        query = query.where(allocations.c.host_id.in_(list(host_ids)))
    claims_by_host: dict[str, list[ClaimRow]] = {}
    for row in ClaimRow.several(connection.execute(query)):
        claims_by_host.setdefault(row.host_id, []).append(row)
    return claims_by_host


def fetch_consumer_claims(connection: Connection, consumer_id: str, *, lock: bool = False) -> list[ClaimRow]:
    """Return the allocations of a consumer, ordered by host. *lock*: lock their rows until the transaction ends."""
    query = select(allocations).where(allocations.c.consumer_id == consumer_id).order_by(allocations.c.host_id)
    return ClaimRow.several(connection.execute(query.with_for_update() if lock else query))


def fetch_project_claims(connection: Connection, project_id: str) -> list[ClaimRow]:
    """Return the allocations of a project's servers and their migrations, and of its other consumers."""
    servers = connection.execute(select(allocations).join_from(
        allocations, server_mappings, server_mappings.c.server_id == allocations.c.server_id).where(
        server_mappings.c.project_id == project_id, allocations.c.owner.is_(None)))
    others = ClaimRow.several(connection.execute(select(allocations).where(allocations.c.owner.is_not(None))))
    return [*ClaimRow.several(servers),
            *(claim for claim in others if claim.owner and claim.owner["project_id"] == project_id)]


def update_consumer_rows(connection: Connection, consumer_id: str, generation: int,
                         owner: Mapping[str, str] | None = None) -> None:
    """Set the generation of a consumer in all its allocations. *owner*: for a consumer that is not a server, the new
    type, project and user; unchanged by default."""
    values = {"generation": generation} | ({} if owner is None else {"owner": inventories.canonical_json(owner)})
    connection.execute(update(allocations).where(allocations.c.consumer_id == consumer_id).values(values))


SERVER_TYPES = ("INSTANCE", "MIGRATION")  # types of consumers: servers, and their migrations


def is_server_claim(claim: ClaimRow) -> bool:
    """Return whether *claim* belongs to a server: its consumer is a server, or a migration of a server."""
    return claim.owner is None or claim.owner["type"] in SERVER_TYPES


def release_consumer_claims(connection: Connection, consumer_id: str, host_id: str | None = None) -> int:
    """Delete the claims of a consumer (only on *host_id*, when given); return how many there were."""
    query, values = _RELEASE, {"consumer": consumer_id}
    if host_id is not None:
        query, values = query.where(allocations.c.host_id == bindparam("host")), {**values, "host": host_id}
    ended = connection.execute(query, values).all()
    for host, *amounts, resources, owner in sorted(ended):  # always in the same order, against deadlocks
        _take(connection, host, Amounts(*(-int(n) for n in amounts)), -int(owner is None),
              {name: (0, -n) for name, n in sorted(orjson.loads(resources).items())})
    return len(ended)


def move_claims_to_migration(connection: Connection, server_id: str, migration_id: str, host_id: str) -> bool:
    """Assign the server's claims on the source *host_id* to the migration; return whether the migration has these
    claims now.

    Call this before claiming resources on the target for the server. A repeated call does nothing, even if the server
    already has new claims on the same host (a resize on its own host).
    """
    theirs = select(allocations.c.host_id).where(allocations.c.consumer_id == migration_id)
    if connection.execute(theirs).first():
        return True
    query = update(allocations).where(allocations.c.consumer_id == server_id, allocations.c.host_id == host_id)
    return bool(connection.execute(query.values(consumer_id=migration_id, updated_at=utc_now())).rowcount)


def revert_claims_to_server(connection: Connection, server_id: str, migration_id: str) -> bool:
    """Undo ``move_claims_to_migration``: delete the server's claims, and assign the migration's claims to the server.

    Return ``False``, with nothing changed, when the migration has no claims. After a successful move, call
    ``release_consumer_claims(connection, migration_id)`` instead.
    """
    theirs = select(allocations.c.host_id).where(allocations.c.consumer_id == migration_id).with_for_update()
    if not connection.execute(theirs).first():
        return False
    release_consumer_claims(connection, server_id)
    query = update(allocations).where(allocations.c.consumer_id == migration_id)
    connection.execute(query.values(consumer_id=server_id, updated_at=utc_now()))
    return True


def _differing(resources: Mapping[str, int], current_resources: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return how claimed resources change: {resource class: (new amount, increase)} for each class whose amount
    differs. The increase may be negative. *resources*: new amounts by resource class. *current_resources*: old amounts.
    """
    return {name: (resources.get(name, 0), n) for name in sorted(resources.keys() | current_resources.keys())
            if (n := resources.get(name, 0) - current_resources.get(name, 0))}


def _take(connection: Connection, host_id: str, more: Amounts, servers: int, other: Mapping[str, tuple[int, int]],
          ignore_disabled: bool = True) -> bool:
    """Increase the counters of a host (the total amounts that are claimed on it) for a claim. Return ``False``, with
    nothing changed, when too little is left.

    *more*: increases of the claimed amounts (may be negative). *servers*: increase of the number of servers. *other*:
    {custom resource class: (new amount of the consumer, increase)}. *ignore_disabled*: increase the counters even if
    the host is disabled or forced down.
    """
    if (servers or any(more)) and not _raise(connection, host_id, more, servers, ignore_disabled):
        return False
    done: list[tuple[str, int]] = []
    for name, (whole, n) in other.items():
        if not inventories.claim_inventory(connection, host_id, name, whole, n):
            for taken, amount in done:
                inventories.claim_inventory(connection, host_id, taken, 0, -amount)
            if servers or any(more):
                _raise(connection, host_id, Amounts(*(-n for n in more)), -servers)
            return False
        done.append((name, n))
    return True


def _raise(connection: Connection, host_id: str, more: Amounts, servers: int, ignore_disabled: bool = True) -> bool:
    return connection.execute(RAISE, raise_parameters(host_id, more, servers, ignore_disabled)).rowcount == 1


def raise_parameters(host_id: str, more: Amounts, servers: int, ignore_disabled: bool) -> dict[str, Any]:
    """Return the parameters of the SQL statement ``RAISE``, which raises the counters of a host (the total amounts that
    are claimed on it, and its number of servers). *more*: increases of the claimed amounts. *servers*: increase of the
    number of servers. *ignore_disabled*: raise the counters even if the host is disabled or forced down."""
    return {**{f"more_{name}": n for name, n in zip(RESOURCES, more, strict=True)},
            "host": host_id, "more_servers": servers, "ignore_disabled": ignore_disabled}


def _allowed(connection: Connection, group: Group, server_id: str, host_id: str) -> bool:
    """Return whether the group's policy allows the server on the host now. Locks the group's row, so that concurrent
    transactions that place members of the same group wait for each other."""
    if group.policy not in ("affinity", "anti-affinity"):
        return True
    connection.execute(select(server_groups.c.id).where(server_groups.c.id == group.id).with_for_update())
    query = select(allocations.c.host_id, func.count(allocations.c.server_id.distinct())).join_from(
        server_group_members, allocations, allocations.c.server_id == server_group_members.c.server_id).where(
        server_group_members.c.group_id == group.id, allocations.c.server_id != server_id)
    members_by_host: dict[str, int] = dict(connection.execute(query.group_by(allocations.c.host_id)).all())
    if group.policy == "affinity":
        return not members_by_host or host_id in members_by_host
    return members_by_host.get(host_id, 0) < group.max_per_host


def join_migration_claims(connection: Connection, server_id: str, migration_id: str, host_id: str) -> None:
    """Merge the migration's claims on the host into the server's claims there.

    The sum does not change, so this succeeds even if the host's limits were lowered meanwhile. Lowering the merged
    claim afterwards succeeds too. PCI devices that both claims contain count once.
    """
    query = select(allocations).where(allocations.c.host_id == host_id, allocations.c.consumer_id.in_(
        (server_id, migration_id))).order_by(allocations.c.consumer_id).with_for_update()
    claims_by_consumer = {row.consumer_id: row for row in connection.execute(query)}
    theirs, mine = claims_by_consumer.get(migration_id), claims_by_consumer.get(server_id)
    if theirs is None:
        return
    values = {"consumer_id": server_id, "updated_at": utc_now()}
    if mine is not None:
        parts = [[orjson.loads(getattr(row, name)) for row in (theirs, mine)]
                 for name in ("resources", "devices", "places")]
        (a, b), (c, d), (old, new) = parts
        values |= {name: getattr(theirs, name) + getattr(mine, name) for name in RESOURCES}
        values |= {name: inventories.canonical_json(document) for name, document in (
            ("resources", Counter(a) + Counter(b)), ("devices", Counter(c) | Counter(d)), ("places", old | new))}
        connection.execute(delete(allocations).where(
            allocations.c.consumer_id == server_id, allocations.c.host_id == host_id))
        connection.execute(RAISE, raise_parameters(host_id, Amounts(), -1, ignore_disabled=True))
    connection.execute(update(allocations).where(
        allocations.c.consumer_id == migration_id, allocations.c.host_id == host_id).values(values))


def set_claimed_disk(connection: Connection, server_id: str, host: str, disk_gb: int) -> bool:
    """Set the GiB of disk that a server claims on the host with this name; its other claims do not change.

    Return ``False``, with nothing changed, when the host has too little disk left. Do nothing and return ``True`` for a
    server without a claim (for example, an operator has just imported it): a periodic audit creates its claim.
    *connection*: a ``write`` transaction of the API database.
    """
    mine = select(allocations.c.host_id, allocations.c.disk_gb).join_from(
        allocations, hosts, hosts.c.id == allocations.c.host_id).where(
        allocations.c.consumer_id == server_id, hosts.c.name == host).with_for_update(of=allocations)
    claim_row = connection.execute(mine).one_or_none()
    if claim_row is None or claim_row.disk_gb == disk_gb:
        return True
    more = Amounts(disk_gb=disk_gb - claim_row.disk_gb)
    if not connection.execute(RAISE, raise_parameters(claim_row.host_id, more, 0, ignore_disabled=True)).rowcount:
        return False
    connection.execute(update(allocations).where(
        allocations.c.consumer_id == server_id, allocations.c.host_id == claim_row.host_id).values(
        disk_gb=disk_gb, generation=allocations.c.generation + 1, updated_at=utc_now()))
    return True


def _insert_values(table: Table, *names: str) -> dict[str, BindParameter[Any]]:
    """Return the values of an INSERT statement for *table*: bind parameters ``own_NAME`` for the columns *names*, and
    constants for other columns with a default, because SQLAlchemy does not add defaults to this statement. The prefix
    ``own_`` avoids conflicts with columns of ``hosts``."""
    defaults = {column.name: column.default.arg for column in table.c
                if isinstance(column.default, ScalarElementColumnDefault) and column.name not in names}
    return {**{name: bindparam(f"own_{name}", type_=table.c[name].type) for name in names},
            **{name: bindparam(None, value, type_=table.c[name].type) for name, value in defaults.items()}}


def _mapped() -> CTE:
    values = _insert_values(server_mappings, "server_id", "cell_id", "project_id", "created_at")
    query = MAPPINGS["postgresql"].from_select(
        list(values), select(*values.values()).select_from(_RAISED), include_defaults=False)
    mapping: CTE = query.cte("mapped")
    return mapping


def _claimed() -> Executable:
    values = _insert_values(allocations, "server_id", "created_at", *RESOURCES)
    query = INSERT["postgresql"](allocations).from_select(
        ["consumer_id", "host_id", *values], select(values["server_id"], _RAISED.c.id, *values.values()),
        include_defaults=False)
    made: Executable = query.add_cte(_mapped()).execution_options(preserve_rowcount=True)
    return made


_CLAIM = _claimed()
_HELD_ANYWHERE = select(allocations.c.host_id).where(
    allocations.c.consumer_id == bindparam("own_server_id"), allocations.c.host_id == bindparam("host"))


def claim_by_single_statement(connection: Connection, claim: Claim, *, ignore_disabled: bool = False) -> bool | None:
    """Insert the *claim*, and map its server to its cell, by one SQL statement instead of five. The host's row is
    locked only while this statement commits. *connection*: from ``Database.single`` (each statement is its own
    transaction), on PostgreSQL.

    The server must not be in a group, and must not need PCI devices or custom resource classes. Return whether the
    claim succeeded; ``None``, with nothing changed, when the server already has a claim on the host: then the caller
    must use ``claim_host_resources``.
    """
    columns = {"server_id": claim.server_id, "cell_id": claim.cell_id, "project_id": claim.project_id,
               "created_at": utc_now(), **claim.amounts._asdict()}
    values = {f"own_{name}": column_value for name, column_value in columns.items()} | raise_parameters(
        claim.host_id, claim.amounts, 1, ignore_disabled)
    try:
        if connection.execute(_CLAIM, values).rowcount:
            return True
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) != TWICE:
            raise
        return None
    # The server may hold all that was left: an earlier claim whose answer was lost.
    return None if connection.execute(_HELD_ANYWHERE, values).first() else False
