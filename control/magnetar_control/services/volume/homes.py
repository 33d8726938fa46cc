# SPDX-License-Identifier: GPL-3.0-or-later
"""The host of a volume. A volume in a pool that several hosts reach can change its host without a copy: the new host
takes over the content, then the database names the new host, and the old host forgets the volume when it is up.

Before a move, a removal of the volume from the new host is stored, which is not due yet. If the move fails, this
removal becomes due. If it succeeds, a removal from the old host becomes due instead. A host with a due removal cannot
become the volume's host, so no removal hits a volume that has come back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update

from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.hosts import host_removals
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows import Confirm, always_allowed

from .access import INCOMPLETE, VolumeAccess, common_build_hosts, common_move_hosts, fetch_volume_access
from .pools import UP, PoolOnHost, fetch_host_pools, find_pool_on_host
from .reach import ABROAD, Reach
from .removal_rows import EXPORT, RECORD, has_due_removal
from .tables import attachments, snapshots, volumes

#: Seconds for a host to take over a volume.
LIMIT = 120.0


class VolumeHomes:
    """The operations on the hosts of volumes: find the hosts that can have a volume, and give a volume another host. A
    volume's host is the compute host whose agent manages the volume."""

    def __init__(self, database: Database, reach: Reach) -> None:
        self.database, self.reach = database, reach

    def access(self, ids: Collection[str]) -> dict[str, VolumeAccess]:
        """Return how hosts reach the volumes *ids*: {uuid: access}. Unknown volumes, and volumes without a host, are
        omitted."""
        with self.database.read() as connection:
            return fetch_volume_access(connection, ids)

    def hosts(self, id: str) -> frozenset[str]:
        """Return the hosts that can be the volume's host: its present host, and all hosts that report that they reach
        its shared pool. Raises ``NotFound``, and ``Conflict`` when the volume has no host yet."""
        return self.access_of_all([id])[id].hosts

    def access_of_all(self, ids: Collection[str]) -> dict[str, VolumeAccess]:
        """Return how hosts reach the volumes *ids*: {uuid: access}. Raises ``NotFound`` for an unknown volume, and
        ``Conflict`` for a volume without a host."""
        access = self.access(ids)
        for id in ids:
            if id not in access:
                with self.database.read() as connection:
                    _volume(connection, id)
                raise Conflict(f"Volume {id} has got a host just now. Repeat the request.")
        return access

    def next_hosts(self, id: str, *, is_up: bool) -> tuple[str | None, frozenset[str]]:
        """Return (server, hosts): the server that has the volume (``None``: no server), and the hosts that can replace
        the volume's host. Return (``None``, empty set) if no replacement is necessary, because the volume's present
        host is up and reaches the volume. *is_up*: whether the present host is up.

        While a server has the volume, only the server's host can become the volume's host, and only if that host opens
        the volume directly.
        """
        volume = self.access_of_all([id])[id]
        if is_up and not volume.lost:
            return None, frozenset()
        hosts = volume.hosts - {volume.host}
        with self.database.read() as connection:
            users = connection.execute(select(attachments.c.server_id, attachments.c.host).where(
                attachments.c.volume_id == id)).all()
        if not users:
            return None, hosts
        return users[0].server_id, hosts & {users[0].host} if volume.direct else frozenset()

    def hosts_for_build(self, volumes: Iterable[Mapping[str, Any]], source: str | None = None,
                        is_up: Callable[[str], bool] = lambda _host: True) -> frozenset[str] | None:
        """Return the hosts where a server with the attachments *volumes* can be built again (see
        ``access.common_build_hosts`` for the parameters); ``None`` for any host. Raises ``NotFound`` for an unknown
        volume, and ``Conflict`` for a volume without a host."""
        attachments = list(volumes)
        access = self.access_of_all([attachment["volume_id"] for attachment in attachments])
        return common_build_hosts(attachments, access, source, is_up)

    def hosts_for_moves(self, volumes_by_server: Mapping[str, Sequence[Mapping[str, Any]]]
                        ) -> dict[str, frozenset[str] | None]:
        """Return the possible targets for moving each server with its volumes: {server: hosts, or ``None`` for any
        host} (see ``access.common_move_hosts``). *volumes_by_server*: {server: its attachments}."""
        access = self._access_of_servers(volumes_by_server)
        return {server: common_move_hosts(volumes, access) for server, volumes in volumes_by_server.items()}

    def hosts_for_builds(self, volumes_by_server: Mapping[str, Sequence[Mapping[str, Any]]],
                         sources: Mapping[str, str]) -> dict[str, frozenset[str] | None]:
        """Return the hosts where each server could be built again if its host failed: {server: hosts, or ``None`` for
        any host}. *volumes_by_server*: {server: its attachments}. *sources*: {server: its present host}."""
        access = self._access_of_servers(volumes_by_server)
        return {server: common_build_hosts(volumes, access, sources[server])
                for server, volumes in volumes_by_server.items()}

    def _access_of_servers(self, volumes_by_server: Mapping[str, Sequence[Mapping[str, Any]]]
                           ) -> dict[str, VolumeAccess]:
        return self.access({volume["volume_id"] for volumes in volumes_by_server.values() for volume in volumes})

    def move(self, id: str, host: str, server_id: str | None = None, confirm: Confirm = always_allowed,
             holder: str | None = None) -> None:
        """Make *host* the volume's host, without copying content: both hosts reach its shared pool. May be repeated.
        *server_id*: the only server that may have the volume attached. *confirm*: called before each commit; may raise.
        *holder*: the id of the worker that executes the volume's task, if any. Raises ``Conflict`` if the volume cannot
        move, and the errors of the agent."""
        with self.database.write() as connection:
            row = _volume(connection, id, lock=True)
            if row["host"] == host:
                return
            confirm()
            pool = _target(connection, row, host)
            _check_free(connection, row, server_id, holder)
            host_removals.insert_removal_row(connection, host, RECORD, id)
        try:
            self._adopt(row, pool)
            with self.database.write() as connection:
                current = _volume(connection, id, lock=True)
                if current["host"] == host:  # another process was faster
                    return
                confirm()
                if current["host"] != row["host"]:
                    raise Conflict(f"Volume {id} got another host in the meantime. Repeat the request.")
                _check_free(connection, current, server_id, holder)
                _set_host(connection, row, pool)
        except ABROAD:  # the host may have taken over the volume
            raise
        except MagnetarError:
            self._give_up(id, host)
            raise

    def _give_up(self, id: str, host: str) -> None:
        """Queue the removal of the volume from the agent on *host*, unless *host* has become the volume's host. The
        content in the pool remains."""
        with self.database.write() as connection:
            row = _row(connection, id, lock=True)
            if row is None or row["host"] != host:
                host_removals.insert_removal_row(connection, host, RECORD, id, due=True)

    def move_back(self, id: str, host: str, confirm: Confirm = always_allowed) -> bool:
        """Make *host*, an earlier host, the volume's host again, if the agent there has not removed the volume yet.
        Return whether *host* is the volume's host now. Call this only while the server with the volume is still on
        *host*, so that the agent there does not remove the volume at the same time."""
        with self.database.write() as connection:
            row = _volume(connection, id, lock=True)
            if row["host"] == host:
                return True
            pool = next((pool for pool in _shared_pool(connection, row) if pool.host == host), None)
            if pool is None or not has_due_removal(connection, host, id, (RECORD,)):
                return False
            confirm()
            _set_host(connection, row, pool)
            return True

    def _adopt(self, row: RowMapping, pool: PoolOnHost) -> None:
        want: Document = {"name": f"volume-{row['id']}", "size": row["size"], "pool": pool.name, "adopt": True,
                          "multiattach": row["multiattach"], **self.reach.encryption_fields(row, "get another host")}
        with self.reach.client(pool.host) as client:
            client.ensure("volume", row["id"], want, timeout=LIMIT)


def _row(connection: Connection, id: str, *, lock: bool = False) -> RowMapping | None:
    if lock:
        connection.execute(update(volumes).where(volumes.c.id == id).values(updated_at=volumes.c.updated_at))
    return connection.execute(select(volumes).where(volumes.c.id == id)).mappings().first()


def _volume(connection: Connection, id: str, *, lock: bool = False) -> RowMapping:
    """Return the row of the volume *id*. *lock*: lock the row until the transaction ends. Raises ``NotFound``, and
    ``Conflict`` when the volume has no host yet."""
    row = _row(connection, id, lock=lock)
    if row is None:
        raise NotFound(f"Volume {id} could not be found.")
    if not row["host"]:
        raise Conflict(f"Volume {id} is on no host yet.")
    return row


def _shared_pool(connection: Connection, row: RowMapping) -> list[PoolOnHost]:
    """Return the shared pool of the volume *row*: one ``PoolOnHost`` for each host that can reach it. Return an empty
    list if the pool is not shared."""
    id = row["pool_id"]
    if id is None and row["status"] not in INCOMPLETE:
        pool = find_pool_on_host(connection, row["host"], row["pool"] or row["volume_type"])
        id = pool.id if pool else None
    return [] if id is None else [pool for pool in fetch_host_pools(connection, id) if pool.shared]


def _target(connection: Connection, row: RowMapping, host: str) -> PoolOnHost:
    """Return the pool of the volume *row* as *host* reaches it. Raises ``Conflict`` if *host* cannot become the
    volume's host."""
    id = row["id"]
    pool = next((pool for pool in _shared_pool(connection, row) if pool.host == host and pool.state == UP), None)
    if pool is None:
        raise Conflict(f"Volume {id} lies on host {row['host']}, and host {host} does not reach its pool. Choose a "
                       "host that does (openstack volume backend pool list --long), or bring its host up.")
    if has_due_removal(connection, host, id):
        raise Conflict(f"Host {host} had volume {id} before, and has not given it up yet. Wait until the host is up, "
                       "then repeat the request.")
    return pool


def _check_free(connection: Connection, row: RowMapping, server_id: str | None, holder: str | None) -> None:
    """Raise ``Conflict`` if the volume *row* cannot get another host now: a server other than *server_id* has it, a
    worker other than *holder* executes a task of the volume, or a snapshot is being created."""
    id = row["id"]
    servers = set(connection.execute(select(attachments.c.server_id).where(attachments.c.volume_id == id)).scalars())
    if others := sorted(str(server) for server in servers - ({server_id} if server_id else set())):
        raise Conflict(f"Volume {id} is attached to {', '.join(others)} too, through host {row['host']}. Detach it "
                       "there first, or bring the host up.")
    if row["task"] is not None and (holder is None or row["holder"] != holder):
        raise Conflict(f"Volume {id} is {row['status']} now, so it cannot get another host. Repeat the request later.")
    if connection.execute(select(snapshots.c.id).where(snapshots.c.volume_id == id, snapshots.c.task == "create")
                          .limit(1)).first():
        raise Conflict(f"A snapshot of volume {id} is being made, so the volume cannot get another host. Repeat the "
                       "request later.")


def _set_host(connection: Connection, row: RowMapping, pool: PoolOnHost) -> None:
    """Save the host of *pool* as the new host of the volume *row*. Queue the removal of the volume from all other hosts
    whose agents may still have it."""
    id = row["id"]
    connection.execute(update(volumes).where(volumes.c.id == id).values(
        host=pool.host, pool=pool.name, pool_id=pool.id, updated_at=utc_now()))
    host_removals.remove_removal_row(connection, pool.host, RECORD, id)
    host_removals.mark_removals_due(connection, RECORD, id)
    servers = connection.execute(select(attachments.c.server_id).where(
        attachments.c.volume_id == id, attachments.c.server_id.is_not(None))).scalars().all()
    for server in servers:
        host_removals.remove_removal_row(connection, pool.host, EXPORT, f"{server}:{id}")
        host_removals.insert_removal_row(connection, row["host"], EXPORT, f"{server}:{id}", due=True)
    host_removals.insert_removal_row(connection, row["host"], RECORD, id, due=True)
