# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts, and the hosts of servers and groups: what the scheduler reads from the API database.

A row here is the columns of ``tables.hosts`` and ``cell_disabled``.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, Select, bindparam, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from magnetar_control.store.claims import inventories
from magnetar_control.store.claims.allocations import RESOURCES, SHARED, USUAL, Group, Ratios, limits
from magnetar_control.store.engine.database import INSERT, now
from magnetar_control.store.engine.tables import (
    allocations,
    cells,
    hosts,
    server_group_members,
    server_groups,
    server_mappings,
)
from magnetar_core import bandwidth
from magnetar_core.hardware import numa_providers
from magnetar_core.hardware.pci import network_of

#: Columns that operators may set; limits follow from these.
SETTABLE = frozenset({"disabled", "disabled_reason", "forced_down", "endpoint", "own_traits", *(
    f"{name}_ratio" for name in SHARED), *(f"{name}{own}_reserved" for name in RESOURCES for own in ("", "_own"))})


def _rows(*where: ColumnElement[bool]) -> Select[Any]:
    return select(hosts, cells.c.disabled.label("cell_disabled")).join_from(
        hosts, cells, cells.c.id == hosts.c.cell_id).where(*where).order_by(hosts.c.name)


_EVERY = _rows()
#: The host of a name or id; made once, which takes longer than to ask it.
_NAMED = _rows((hosts.c.name == bindparam("host")) | (hosts.c.id == bindparam("host")))


def every(connection: Connection, cell_id: str | None = None, ids: Collection[str] | None = None) -> list[RowMapping]:
    """All hosts (of one cell, of these uuids), by name."""
    where = [] if cell_id is None else [hosts.c.cell_id == cell_id]
    where += [] if ids is None else [hosts.c.id.in_(list(ids))]
    return list(connection.execute(_rows(*where) if where else _EVERY).mappings())


def show(connection: Connection, name: str, *, lock: bool = False) -> RowMapping | None:
    """The host of that name or id; *lock* locks it until the transaction ends."""
    query = _NAMED.with_for_update(of=hosts) if lock else _NAMED
    return connection.execute(query, {"host": name}).mappings().one_or_none()


def lock(connection: Connection, ids: Collection[str]) -> None:
    """Lock hosts, by uuid, until the transaction ends; always in the same order, against deadlocks."""
    connection.execute(select(hosts.c.id).where(hosts.c.id.in_(list(ids))).order_by(hosts.c.id).with_for_update()).all()


def child_id(host_id: str, name: str) -> str:
    """The uuid of the resource provider of that name below a host: always the same, and noted nowhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{host_id}/{name}"))


def names_text(names: Iterable[str]) -> str:
    """Names as a column has them, such as ``own_traits``."""
    return orjson.dumps(sorted(names)).decode()


def register(connection: Connection, name: str, cell_id: str, endpoint: str) -> str:
    """Insert a host, or change its cell and endpoint; returns its id. ``inventory`` saves what it has."""
    # Numbers are consecutive: registrations wait here for each other.
    connection.execute(select(cells.c.id).order_by(cells.c.id).with_for_update()).all()
    number = select(func.coalesce(func.max(hosts.c.number), 0) + 1).scalar_subquery()
    query = INSERT[connection.dialect.name](hosts).values(
        id=str(uuid.uuid4()), name=name, number=number, cell_id=cell_id, endpoint=endpoint, created_at=now())
    connection.execute(query.on_conflict_do_update(
        index_elements=["name"], set_={"endpoint": endpoint, "cell_id": cell_id, "updated_at": now()}))
    return str(connection.execute(select(hosts.c.id).where(hosts.c.name == name)).scalar_one())


def inventory(connection: Connection, name: str, info: Mapping[str, Any], ratios: Ratios = USUAL,
              reserved: Mapping[str, int] | None = None) -> bool:
    """Save the agent's ``host`` resource and the limits that follow; returns whether totals or limits have changed.
    *ratios*: where the host has none of its own. *reserved*: what is kept from servers, as columns (``…_reserved``),
    when it is to change; what an operator has set for the host comes before it. An agent without libvirt knows a part
    only: the rest is what it told before; where it never told of its CPUs, memory or disk, nothing is saved."""
    row = connection.execute(_rows(hosts.c.name == name).with_for_update(of=hosts)).mappings().one()
    if info.get("connected") is False or _lacks(info):  # libvirt may go while the agent answers
        info = {**orjson.loads(row["info"]), **{key: value for key, value in info.items() if value is not None}}
        if _lacks(info):
            return False
    totals = {**{resource: int(info[resource]) for resource in SHARED}, "pcpus": int(info.get("pcpus") or 0),
              **(reserved or {})}
    totals |= {f"{resource}_reserved": own for resource in RESOURCES
               if (own := row[f"{resource}_own_reserved"]) is not None}
    _reserve_images(totals, info)
    may = limits({**row, **totals}, ratios)
    values = {**totals, **{f"{resource}_limit": n for resource, n in may._asdict().items()}}
    changed, text = any(row[key] != value for key, value in values.items()), orjson.dumps(info).decode()
    changed |= inventories.hear(connection, row["id"], {
        **(info.get("resources") or {}), **bandwidth.inventories(info.get("bandwidths") or {})})
    kinds = {kind for one in info.get("providers") or () for kind in one["inventories"]}.difference(
        numa_providers.CLASSES)
    for kind in sorted(kinds.difference(inventories.classes(connection))) if kinds else ():
        inventories.add_class(connection, kind)
    if changed or text != row["info"]:
        risen = changed or _shape(info) != _shape(orjson.loads(row["info"]))
        names = [name for name in info.get("pci_devices") or () if not network_of(name)]
        connection.execute(update(hosts).where(hosts.c.name == name).values(
            **values, info=text, generation=row["generation"] + risen, updated_at=now(),
            pci_aliases=f",{','.join(sorted(names))}," if names else ""))
    return changed


def _lacks(info: Mapping[str, Any]) -> bool:
    return any(info.get(resource) is None for resource in SHARED)


def _shape(info: Mapping[str, Any]) -> tuple[Any, ...]:
    """What an agent tells of traits, and of providers below its host, but for what is held there."""
    return info.get("traits"), [{**one, "held": None} for one in info.get("providers") or ()]


def _reserve_images(values: dict[str, Any], info: Mapping[str, Any]) -> None:
    """Reserve, besides what *values* reserve of the disk, what the host's images take (spec row IMC-05)."""
    if "disk_gb_reserved" in values:
        values["disk_gb_reserved"] += int(info.get("image_cache_gb") or 0)


def pci_aliases(connection: Connection) -> set[str]:
    """The aliases of PCI devices that some host knows, whether it has such devices or not."""
    found = connection.execute(select(hosts.c.pci_aliases).where(hosts.c.pci_aliases != "").distinct()).scalars()
    return {name for text in found for name in text.strip(",").split(",")}


def classes_below(connection: Connection) -> set[str]:
    """The resource classes of providers below hosts."""
    return {name for text in connection.execute(select(hosts.c.info)).scalars()
            for one in orjson.loads(text).get("providers") or () for name in one["inventories"]}


def set_host(connection: Connection, /, name: str, ratios: Ratios = USUAL, **values: Any) -> bool:
    """Set columns of ``SETTABLE``, and the limits that follow; ``False`` when there is no such host."""
    if wrong := set(values) - SETTABLE:
        raise ValueError(f"a host has no {', '.join(sorted(wrong))} to set; there are {', '.join(sorted(SETTABLE))}")
    row = connection.execute(_rows(hosts.c.name == name).with_for_update(of=hosts)).mappings().one_or_none()
    if row is None:
        return False
    _reserve_images(values, orjson.loads(row["info"]))
    if any(key.endswith(("_ratio", "_reserved")) for key in values):
        may = limits({**row, **values}, ratios)
        values |= {f"{resource}_limit": n for resource, n in may._asdict().items()}
    connection.execute(update(hosts).where(hosts.c.name == name).values(
        **values, generation=hosts.c.generation + 1, updated_at=now()))
    return True


def of_servers(connection: Connection, project_id: str, server_ids: Iterable[str]) -> dict[str, list[str]]:
    """Names of the hosts on which servers of a project hold claims, by server; servers without a host are absent, and
    so are those of other projects."""
    query = select(allocations.c.server_id, hosts.c.name).distinct().join_from(
        allocations, hosts, hosts.c.id == allocations.c.host_id).where(
            allocations.c.server_id.in_(list(server_ids)), allocations.c.server_id.in_(
                select(server_mappings.c.server_id).where(server_mappings.c.project_id == project_id)))
    found: dict[str, list[str]] = {}
    for server, host in connection.execute(query.order_by(hosts.c.name)):
        found.setdefault(server, []).append(host)
    return found


def group_of(connection: Connection, server_id: str, id: str | None = None) -> Group | None:
    """The server group *id*, or the one that a server is in, with the hosts of its members other than the server;
    ``None`` when there is none."""
    which = server_groups.c.id == id if id is not None else server_groups.c.id.in_(
        select(server_group_members.c.group_id).where(server_group_members.c.server_id == server_id))
    row = connection.execute(select(server_groups).where(which)).mappings().first()
    if row is None:
        return None
    query = select(hosts.c.name, func.count(allocations.c.server_id.distinct())).join_from(
        server_group_members, allocations, allocations.c.server_id == server_group_members.c.server_id).join(
        hosts, hosts.c.id == allocations.c.host_id).where(
        server_group_members.c.group_id == row["id"], allocations.c.server_id != server_id).group_by(hosts.c.name)
    most = orjson.loads(row["rules"]).get("max_server_per_host", 1)
    return Group(row["id"], row["policy"], int(most), dict(connection.execute(query).all()))
