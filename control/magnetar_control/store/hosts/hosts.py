# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts, and which hosts the servers and members of groups are on: what the scheduler reads from the API database.

``host_row`` has a class of rows for each selection of columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, Select, bindparam, func, null, select, update
from sqlalchemy.sql.elements import ColumnElement

from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import RESOURCES, SHARED, USUAL, Group, Ratios, claimable_amounts
from magnetar_control.store.engine.database import INSERT, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import (
    allocations,
    cells,
    hosts,
    server_group_members,
    server_groups,
    server_mappings,
)
from magnetar_control.store.servers.server_groups import ServerGroupRow
from magnetar_core import bandwidth
from magnetar_core.hardware import numa_providers
from magnetar_core.hardware.pci import network_of_devices

from .host_row import HostRow, HostSummary, ResourceSums, ServiceHost

Selected = TypeVar("Selected", bound=SelectedRow)
ServiceRow = TypeVar("ServiceRow", bound=ServiceHost)
#: Columns that operators may set; the columns of limits are computed from them.
SETTABLE = frozenset({"disabled", "disabled_reason", "forced_down", "endpoint", "own_traits", *(
    f"{name}_ratio" for name in SHARED), *(f"{name}{infix}_reserved" for name in RESOURCES for infix in ("", "_own"))})


_SUMS = select(func.count().label("hosts"), *(
    func.coalesce(func.sum(hosts.c[name]), 0).label(name) for name in ResourceSums._fields[1:])).where(
    hosts.c.disabled.is_(False))
_DISABLED = select(hosts.c.name).where(hosts.c.disabled.is_(True))
_MOVES = select(func.count()).select_from(allocations).where(
    allocations.c.consumer_id != allocations.c.server_id, allocations.c.owner.is_(None),
    allocations.c.host_id.not_in(select(hosts.c.id).where(hosts.c.disabled.is_(True))))


def _rows(*where: ColumnElement[bool], **others: ColumnElement[Any]) -> Select[Any]:
    return HostRow.selection(hosts, cell_disabled=cells.c.disabled, **others).join_from(
        hosts, cells, cells.c.id == hosts.c.cell_id).where(*where).order_by(hosts.c.name)


_EVERY, _WITHOUT_REPORTS = _rows(), _rows(info=null())
_SUMMARIES = select(*(cells.c.disabled if name == "cell_disabled" else hosts.c[name]
                      for name in HostSummary._fields)).join_from(hosts, cells, cells.c.id == hosts.c.cell_id)
#: The query for a host by name or id. Built once: building it takes longer than executing it.
_NAMED = _rows((hosts.c.name == bindparam("host")) | (hosts.c.id == bindparam("host")))


def fetch_host_rows(connection: Connection, cell_id: str | None = None,
                    ids: Collection[str] | None = None) -> list[HostRow]:
    """Return all hosts, ordered by name. *cell_id*: only hosts of this cell. *ids*: only hosts with these uuids."""
    where = [] if cell_id is None else [hosts.c.cell_id == cell_id]
    where += [] if ids is None else [hosts.c.id.in_(list(ids))]
    return HostRow.several(connection.execute(_rows(*where) if where else _EVERY))


def fetch_hosts_without_reports(connection: Connection) -> list[HostRow]:
    """Return all hosts, ordered by name, with ``None`` in place of the agents' reports, because these make up most of a
    row."""
    return HostRow.several(connection.execute(_WITHOUT_REPORTS))


def fetch_host_summaries(connection: Connection) -> list[HostSummary]:
    """Return a ``HostSummary`` of each host: the columns that show whether its row must be read again."""
    return list(map(HostSummary._make, connection.execute(_SUMMARIES)))


def fetch_every_host(connection: Connection, row_class: type[Selected]) -> list[Selected]:
    """Return all hosts, ordered by number (their integer id in Nova's API), with the columns of *row_class*."""
    return row_class.several(connection.execute(_selection(row_class.columns)))


@cache
def _selection(columns: tuple[str, ...]) -> Select[Any]:
    return select(*hosts.c[columns]).order_by(hosts.c.number)


def fetch_host_page(connection: Connection, row_class: type[ServiceRow], *, limit: int | None = None,
                    after: int | None = None, column: str | None = None,
                    values: Collection[Any] = ()) -> list[ServiceRow]:
    """Return at most *limit* hosts, ordered by number (their integer id in Nova's API), with the columns of
    *row_class*. *after*: return only hosts with a greater number. *column*, *values*: return only hosts that have one
    of *values* in *column*."""
    parameters = {"after": after, "values": list(values)}
    query = _page(row_class.columns, after is not None, column).limit(limit)
    return row_class.several(connection.execute(query, parameters))


@cache
def _page(columns: tuple[str, ...], continued: bool, column: str | None) -> Select[Any]:
    query = _selection(columns)
    if continued:
        query = query.where(hosts.c.number > bindparam("after"))
    return query if column is None else query.where(hosts.c[column].in_(bindparam("values", expanding=True)))


def sum_host_resources(connection: Connection) -> ResourceSums:
    """Return the number of hosts that are not disabled, and the sums of their resources."""
    return ResourceSums._make(connection.execute(_SUMS).one())


def fetch_disabled_hosts(connection: Connection) -> set[str]:
    """Return the names of the disabled hosts."""
    return set(connection.execute(_DISABLED).scalars())


def count_move_claims(connection: Connection) -> int:
    """Return how many servers that are being moved claim resources on a second host that is not disabled. Both hosts
    count such a server in their column ``servers``, so the sum of this column counts the server twice."""
    return int(connection.execute(_MOVES).scalar_one())


def fetch_host_row(connection: Connection, name: str, *, lock: bool = False) -> HostRow | None:
    """Return the host with this name or id; ``None`` when there is none. *lock*: lock its row until the transaction
    ends."""
    query = _NAMED.with_for_update(of=hosts) if lock else _NAMED
    return HostRow.optional(connection.execute(query, {"host": name}).one_or_none())


def lock_host_rows(connection: Connection, ids: Collection[str]) -> None:
    """Lock the rows of the hosts with these uuids until the transaction ends, always in the same order to avoid
    deadlocks."""
    connection.execute(select(hosts.c.id).where(hosts.c.id.in_(list(ids))).order_by(hosts.c.id).with_for_update()).all()


def child_provider_id(host_id: str, name: str) -> str:
    """Return the uuid of the child resource provider *name* of a host. The uuid is not stored, but computed from
    *host_id* and *name*."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{host_id}/{name}"))


def names_text(names: Iterable[str]) -> str:
    """Return the JSON list of *names* that columns such as ``own_traits`` store."""
    return orjson.dumps(sorted(names)).decode()


def upsert_host_row(connection: Connection, name: str, cell_id: str, endpoint: str) -> str:
    """Insert a host, or change its cell and the endpoint (URL) of its agent; return its id. Call
    ``save_host_inventory`` afterwards to save its resources."""
    # Numbers are consecutive, so concurrent registrations wait here.
    connection.execute(select(cells.c.id).order_by(cells.c.id).with_for_update()).all()
    number = select(func.coalesce(func.max(hosts.c.number), 0) + 1).scalar_subquery()
    query = INSERT[connection.dialect.name](hosts).values(
        id=str(uuid.uuid4()), name=name, number=number, cell_id=cell_id, endpoint=endpoint, created_at=utc_now())
    connection.execute(query.on_conflict_do_update(
        index_elements=["name"], set_={"endpoint": endpoint, "cell_id": cell_id, "updated_at": utc_now()}))
    return str(connection.execute(select(hosts.c.id).where(hosts.c.name == name)).scalar_one())


def save_host_inventory(connection: Connection, name: str, info: Mapping[str, Any], ratios: Ratios = USUAL,
                        reserved: Mapping[str, int] | None = None) -> bool:
    """Save the agent's report about a host, and the resulting limits of claims. Return whether total amounts or limits
    have changed.

    *info*: the report (the ``host`` resource of the agent's API). *ratios*: used where the host has no allocation ratio
    set by an operator. *reserved*: new reserved amounts by column (``vcpus_reserved``, …); a value set by an operator
    has precedence. If libvirt is down, values that *info* lacks are taken from the last report; if the last report
    lacks them too, nothing is saved.
    """
    row = HostRow(connection.execute(_rows(hosts.c.name == name).with_for_update(of=hosts)).one())
    if info.get("connected") is False or _lacks(info):  # libvirt may stop while the agent answers
        info = {**row.info, **{key: value for key, value in info.items() if value is not None}}
        if _lacks(info):
            return False
    totals = {**{resource: int(info[resource]) for resource in SHARED}, "pcpus": int(info.get("pcpus") or 0),
              **(reserved or {})}
    totals |= {f"{resource}_reserved": own_reserved for resource in RESOURCES
               if (own_reserved := row.own_reserved(resource)) is not None}
    _reserve_images(totals, info)
    had = row.column_values()
    may = claimable_amounts({**had, **totals}, ratios)
    values = {**totals, **{f"{resource}_limit": n for resource, n in may._asdict().items()}}
    changed, info_text = any(had[key] != value for key, value in values.items()), orjson.dumps(info).decode()
    changed |= inventories.save_agent_inventories(connection, row.id, {
        **(info.get("resources") or {}), **bandwidth.bandwidth_inventories(info.get("bandwidths") or {})})
    kinds = {kind for provider in info.get("providers") or () for kind in provider["inventories"]}.difference(
        numa_providers.CLASSES)
    for kind in sorted(kinds.difference(inventories.fetch_resource_classes(connection))) if kinds else ():
        inventories.insert_resource_class(connection, kind)
    if changed or info_text != had["info"]:
        risen = changed or _shape(info) != _shape(row.info)
        names = [name for name in info.get("pci_devices") or () if not network_of_devices(name)]
        connection.execute(update(hosts).where(hosts.c.name == name).values(
            **values, info=info_text, disk_gb_free=info.get("disk_gb_free"), generation=row.generation + risen,
            updated_at=utc_now(),
            pci_aliases=f",{','.join(sorted(names))}," if names else ""))
    return changed


def _lacks(info: Mapping[str, Any]) -> bool:
    return any(info.get(resource) is None for resource in SHARED)


def _shape(info: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of an agent's report whose changes must raise the generation of the host's resource provider:
    its traits, and its child providers without their used amounts."""
    return info.get("traits"), [{**provider, "held": None} for provider in info.get("providers") or ()]


def _reserve_images(values: dict[str, Any], info: Mapping[str, Any]) -> None:
    """Add the size of the host's image cache to ``disk_gb_reserved`` in *values*; do nothing if *values* lacks this
    column. *values*: the new columns of the host. *info*: the agent's report."""
    if "disk_gb_reserved" in values:
        values["disk_gb_reserved"] += int(info.get("image_cache_gb") or 0)


def fetch_pci_aliases(connection: Connection) -> set[str]:
    """Return the aliases of PCI devices that agents report, including aliases without a device."""
    alias_texts = connection.execute(select(hosts.c.pci_aliases).where(hosts.c.pci_aliases != "").distinct()).scalars()
    return {name for text in alias_texts for name in text.strip(",").split(",")}


def fetch_child_classes(connection: Connection) -> set[str]:
    """Return the names of all resource classes of hosts' child resource providers, as agents report them."""
    return {name for text in connection.execute(select(hosts.c.info)).scalars()
            for provider in orjson.loads(text).get("providers") or () for name in provider["inventories"]}


def update_host_row(connection: Connection, /, name: str, ratios: Ratios = USUAL, **values: Any) -> bool:
    """Set columns of the host *name*, and the resulting limits of claims. *values*: columns that operators may set
    (``SETTABLE``). *ratios*: used where the host has no allocation ratio set by an operator. Return ``False`` when
    there is no such host."""
    if wrong := set(values) - SETTABLE:
        raise ValueError(f"a host has no {', '.join(sorted(wrong))} to set; there are {', '.join(sorted(SETTABLE))}")
    row = HostRow.optional(connection.execute(_rows(hosts.c.name == name).with_for_update(of=hosts)).one_or_none())
    if row is None:
        return False
    _reserve_images(values, row.info)
    if any(key.endswith(("_ratio", "_reserved")) for key in values):
        may = claimable_amounts({**row.column_values(), **values}, ratios)
        values |= {f"{resource}_limit": n for resource, n in may._asdict().items()}
    connection.execute(update(hosts).where(hosts.c.name == name).values(
        **values, generation=hosts.c.generation + 1, updated_at=utc_now()))
    return True


def fetch_hosts_of_servers(connection: Connection, project_id: str, server_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the hosts on which servers of a project claim resources, by server uuid. Servers without a
    host and servers of other projects are absent."""
    query = select(allocations.c.server_id, hosts.c.name).distinct().join_from(
        allocations, hosts, hosts.c.id == allocations.c.host_id).where(
            allocations.c.server_id.in_(list(server_ids)), allocations.c.server_id.in_(
                select(server_mappings.c.server_id).where(server_mappings.c.project_id == project_id)))
    hosts_by_server: dict[str, list[str]] = {}
    for server, host in connection.execute(query.order_by(hosts.c.name)):
        hosts_by_server.setdefault(server, []).append(host)
    return hosts_by_server


def fetch_scheduling_group(connection: Connection, server_id: str, id: str | None = None) -> Group | None:
    """Return the server group *id* (default: the server's group) with the number of its members on each host, not
    counting the server itself; ``None`` when there is no such group."""
    which = server_groups.c.id == id if id is not None else server_groups.c.id.in_(
        select(server_group_members.c.group_id).where(server_group_members.c.server_id == server_id))
    row = ServerGroupRow.optional(connection.execute(select(server_groups).where(which)).first())
    if row is None:
        return None
    query = select(hosts.c.name, func.count(allocations.c.server_id.distinct())).join_from(
        server_group_members, allocations, allocations.c.server_id == server_group_members.c.server_id).join(
        hosts, hosts.c.id == allocations.c.host_id).where(
        server_group_members.c.group_id == row.id, allocations.c.server_id != server_id).group_by(hosts.c.name)
    most = row.rules.get("max_server_per_host", 1)
    return Group(row.id, row.policy, int(most), dict(connection.execute(query).all()))
