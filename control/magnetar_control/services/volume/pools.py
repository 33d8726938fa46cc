# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools: the storage that agents report, and the hosts that reach each pool. Hosts that report the same identity reach
the same pool, even if they have it under different names or paths."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, exists, func, insert, select, update

from magnetar_control.store.engine.database import insert_if_absent, utc_now

from .tables import pool_hosts, pools, volumes

#: Namespace of the uuids of pools, so that hosts that report a new pool at the same time give it one uuid.
POOLS = uuid.UUID("2b0c0a52-7a3e-5f0e-8b52-6a1d8f4c9b17")
UP, DOWN = "up", "down"


@dataclass(frozen=True)
class PoolOnHost:
    """A storage pool as one host reaches it. *id*: the pool's uuid. *identity*: identifies the storage, and is the same
    on all hosts that reach it. *kind*: its type, such as lvm. *shared*: whether several hosts can reach the pool.
    *name*: the pool's name in the settings of the host's agent. *state*, *reason*: whether the host reaches the pool
    now, and if not, why."""

    id: str
    identity: str
    kind: str
    shared: bool
    total_gb: int | None
    free_gb: int | None
    host: str
    name: str
    state: str
    reason: str


_ON_HOSTS = select(pools.c.id, pools.c.identity, pools.c.kind, pools.c.shared, pools.c.total_gb, pools.c.free_gb,
                   pool_hosts.c.host, pool_hosts.c.name, pool_hosts.c.state, pool_hosts.c.reason).join_from(
    pool_hosts, pools, pools.c.id == pool_hosts.c.pool_id).order_by(pool_hosts.c.host, pool_hosts.c.name)


def pool_id_of(identity: str) -> str:
    """Return the pool's uuid, which is derived from its *identity*, a text that is the same on all hosts that reach the
    pool."""
    return str(uuid.uuid5(POOLS, identity))


def without_free_space(reports: Any) -> Any:
    """Return the pool *reports* of a host without the free space, so that two reports can be compared. Invalid reports
    are returned unchanged."""
    if not isinstance(reports, list) or not all(isinstance(report, dict) for report in reports):
        return reports
    return [{**report, "free_gb": None} for report in reports]


def save_host_pools(connection: Connection, host: str, reports: Sequence[Mapping[str, Any]]) -> None:
    """Save the pools that *host* reaches. *reports*: the field ``pools`` of its agent's report. A pool that is down is
    reported without its identity, and is taken for the pool that had this name before. Delete pools that no host
    reaches any more, unless they have volumes."""
    names = [str(report["name"]) for report in reports]
    gone = list(connection.execute(delete(pool_hosts).where(
        pool_hosts.c.host == host, pool_hosts.c.name.not_in(names)).returning(pool_hosts.c.pool_id)).scalars())
    known = {row.name: row.pool_id for row in connection.execute(select(pool_hosts).where(pool_hosts.c.host == host))}
    for report in sorted(reports, key=lambda report: str(report.get("identity"))):  # one order, so no deadlocks
        name, id = str(report["name"]), known.get(str(report["name"]))
        if report.get("identity"):
            id = _save_pool(connection, report)
        values = {"pool_id": id, "state": str(report["state"]), "reason": str(report.get("reason") or "")}
        if name in known:
            connection.execute(update(pool_hosts).where(pool_hosts.c.host == host, pool_hosts.c.name == name).values(
                **values))
            gone += [known[name]] if known[name] != id else []
        elif id is not None:
            connection.execute(insert(pool_hosts).values(host=host, name=name, **values))
    _remove_unused(connection, gone)


def _save_pool(connection: Connection, report: Mapping[str, Any]) -> str:
    """Insert or update the row of a pool from the *report* of a host. Return the pool's uuid."""
    identity = str(report["identity"])
    id = pool_id_of(identity)
    values = {"kind": str(report["kind"]), "shared": bool(report["shared"]), "total_gb": report.get("total_gb"),
              "free_gb": report.get("free_gb")}
    row = connection.execute(select(pools).where(pools.c.id == id)).mappings().first()
    if row is None:
        insert_if_absent(connection, pools, id=id, identity=identity, created_at=utc_now(), **values)
    elif any(row[column] != value for column, value in values.items()):  # hosts that share it report the same
        connection.execute(update(pools).where(pools.c.id == id).values(updated_at=utc_now(), **values))
    return id


def _remove_unused(connection: Connection, ids: Sequence[str]) -> None:
    if ids:
        connection.execute(delete(pools).where(
            pools.c.id.in_(ids), ~exists().where(pool_hosts.c.pool_id == pools.c.id),
            ~exists().where(volumes.c.pool_id == pools.c.id)))


def fetch_host_pools(connection: Connection, pool_id: str | None = None) -> list[PoolOnHost]:
    """Return the pools of all hosts, sorted by host and name. *pool_id*: return only this pool, as each host reaches
    it."""
    query = _ON_HOSTS if pool_id is None else _ON_HOSTS.where(pools.c.id == pool_id)
    return [PoolOnHost(**row) for row in connection.execute(query).mappings()]


def fetch_pools_on_hosts(connection: Connection, ids: Collection[str]) -> list[PoolOnHost]:
    """Return the pools with the uuids *ids*, one ``PoolOnHost`` for each host that reaches a pool."""
    if not ids:
        return []
    return [PoolOnHost(**row) for row in connection.execute(_ON_HOSTS.where(pools.c.id.in_(sorted(ids)))).mappings()]


def find_pool_on_host(connection: Connection, host: str, name: str) -> PoolOnHost | None:
    """Return the pool called *name* on *host*; ``None`` if the host's agent has reported no such pool."""
    row = connection.execute(_ON_HOSTS.where(pool_hosts.c.host == host, pool_hosts.c.name == name)).mappings().first()
    return None if row is None else PoolOnHost(**row)


def fetch_pool_usage(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return how much of each pool the volumes use: {pool uuid: (number of volumes, their total GiB)}. Pools without
    volumes are omitted."""
    return {row.pool_id: (row.number, int(row.size)) for row in connection.execute(select(
        volumes.c.pool_id, func.count().label("number"), func.sum(volumes.c.size).label("size")).where(
            volumes.c.pool_id.is_not(None)).group_by(volumes.c.pool_id))}
