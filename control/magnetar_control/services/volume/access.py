# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that can open volumes, and the hosts that a server's volumes allow.

QEMU opens an unencrypted volume of a shared pool directly on each host that reaches the pool. All other volumes are
served by their own host, so any host can attach them while the volume's host answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, exists, func, or_, select, tuple_

from .pools import UP, PoolOnHost, fetch_pools_on_hosts
from .tables import pool_hosts, pools, volumes

#: Statuses of volumes whose content may be incomplete.
INCOMPLETE = ("creating", "downloading", "error")


class VolumeAccess(NamedTuple):
    """The hosts that can reach a volume. *host*: the volume's host (its agent manages the volume). *hosts*: *host*, and
    all hosts that now reach the volume's shared pool. *shared*: whether several hosts can reach the pool. *lost*:
    whether *host* has reported that it does not reach the pool now."""

    host: str
    hosts: frozenset[str]
    shared: bool
    encrypted: bool
    lost: bool = False

    @property
    def direct(self) -> bool:
        """Return whether a server's host opens the volume itself, in the shared pool. If not, the volume's host opens
        the volume, and serves it to the server's host."""
        return self.shared and not self.encrypted

    def needs_fence(self, source: str) -> bool:
        """Return whether a guest that still runs on the host *source* could write to the volume after the volume was
        moved to another host, so that *source* must be fenced."""
        return self.direct or (self.shared and self.host == source)


def fetch_volume_access(connection: Connection, ids: Collection[str]) -> dict[str, VolumeAccess]:
    """Return how hosts reach the volumes *ids*: {uuid: access}. Unknown volumes, and volumes without a host, are
    omitted."""
    columns = (volumes.c.id, volumes.c.host, volumes.c.pool_id, volumes.c.pool, volumes.c.volume_type,
               volumes.c.status, volumes.c.encryption_key_id)
    rows = connection.execute(select(*columns).where(
        volumes.c.id.in_(list(ids)), volumes.c.host.is_not(None))).mappings().all() if ids else []
    pool_ids = _pool_ids(connection, rows)
    reached: dict[str, list[PoolOnHost]] = {}
    for pool in fetch_pools_on_hosts(connection, {id for id in pool_ids.values() if id}):
        if pool.shared:
            reached.setdefault(pool.id, []).append(pool)
    access: dict[str, VolumeAccess] = {}
    for row in rows:
        reaching = reached.get(pool_ids[row["id"]] or "", [])
        access[row["id"]] = VolumeAccess(
            row["host"], frozenset([row["host"], *(pool.host for pool in reaching if pool.state == UP)]),
            bool(reaching), row["encryption_key_id"] is not None,
            any(pool.host == row["host"] and pool.state != UP for pool in reaching))
    return access


def _pool_ids(connection: Connection, rows: Iterable[Mapping[Any, Any]]) -> dict[str, str | None]:
    """Return {uuid of the volume: uuid of its pool, or ``None`` if not known} for the volume *rows*. A volume can lack
    a stored pool uuid, because it was created before its host reported the pool: then return the uuid of the pool that
    the host now reports under the same name."""
    ids: dict[str, str | None] = {row["id"]: row["pool_id"] for row in rows}
    names = {row["id"]: (row["host"], row["pool"] or row["volume_type"]) for row in rows
             if row["pool_id"] is None and row["status"] not in INCOMPLETE}
    if names:
        found = {(row.host, row.name): row.pool_id for row in connection.execute(select(pool_hosts).where(
            tuple_(pool_hosts.c.host, pool_hosts.c.name).in_(sorted(set(names.values())))))}
        ids.update((id, found.get(name)) for id, name in names.items())
    return ids


def fetch_served_volumes(connection: Connection, host: str) -> frozenset[str]:
    """Return the uuids of the volumes of *host* that other hosts cannot open themselves (``VolumeAccess.direct``), and
    can reach only through *host*."""
    named = select(pool_hosts.c.pool_id).where(
        pool_hosts.c.host == volumes.c.host,
        pool_hosts.c.name == func.coalesce(volumes.c.pool, volumes.c.volume_type)).correlate(volumes)
    reported = case((volumes.c.status.in_(INCOMPLETE), None), else_=named.scalar_subquery())
    shared = exists().where(pools.c.id == func.coalesce(volumes.c.pool_id, reported), pools.c.shared).correlate(
        volumes)
    return frozenset(connection.execute(select(volumes.c.id).where(
        volumes.c.host == host, or_(volumes.c.encryption_key_id.is_not(None), ~shared))).scalars())


def common_build_hosts(attachments: Iterable[Mapping[str, Any]], access: Mapping[str, VolumeAccess],
                       source: str | None = None,
                       is_up: Callable[[str], bool] = lambda _host: True) -> frozenset[str] | None:
    """Return the hosts where a server with the volumes of *attachments* can be built again (for example, evacuated);
    ``None`` for any host. *access*: {volume id: how hosts reach it}. *source*: the host that the server leaves.
    *is_up*: whether a host is up.

    A returned host must reach the root volume, the volumes that the server's host opens directly, and the volumes on
    *source*. It must also reach volumes whose own host is down, if several hosts can reach them. All other volumes are
    reached through their own hosts. A missing volume is ignored; if it is the root volume, the result is empty.
    """
    hosts: frozenset[str] | None = None
    for attachment in attachments:
        volume = access.get(attachment["volume_id"])
        is_root = attachment.get("boot_index") == 0
        if volume is None:  # it is gone
            hosts = frozenset() if is_root else hosts
            continue
        must_reach = is_root or volume.host == source or volume.direct
        if must_reach or (not is_up(volume.host) and len(volume.hosts) > 1):
            hosts = volume.hosts if hosts is None else hosts & volume.hosts
    return hosts


def common_move_hosts(attachments: Iterable[Mapping[str, Any]],
                      access: Mapping[str, VolumeAccess]) -> frozenset[str] | None:
    """Return the possible targets for moving a server with the volumes of *attachments* while its own host is up;
    ``None``: any host. A target must reach all volumes that the server's host opens directly. *access*: {volume id: how
    hosts reach it}."""
    hosts: frozenset[str] | None = None
    for attachment in attachments:
        volume = access.get(attachment["volume_id"])
        if volume is not None and volume.direct:
            hosts = volume.hosts if hosts is None else hosts & volume.hosts
    return hosts
