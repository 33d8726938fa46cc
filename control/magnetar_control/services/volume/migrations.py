# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to migrate a volume to another pool or host, or to give it another type. They are checked and queued here;
``migration_worker`` does the work."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Conflict, InvalidRequest
from magnetar_core.matching import matches_extra_spec

from .attachments import lock_volume
from .migration_rows import MIGRATE, STARTING, is_between_hosts, note_copy
from .pool_choice import choose_pool, list_pool_options, refusals_of_pool
from .pools import UP, fetch_host_pools, find_pool_on_host
from .reach import Reach
from .removal_rows import has_due_removal
from .rows import check_admin, check_volume_writer, get_visible_row, queue_volume_task, set_columns, wrong_status
from .tables import attachments, snapshots, volumes
from .type_specs import BACKEND_NAME, POOL
from .types import TypeStore, VolumeType
from .worker import VOLUMES_CHANGED

NEVER, ON_DEMAND = "never", "on-demand"
#: Statuses of volumes that can migrate.
MOVABLE = ("available", "in-use")


@dataclass(frozen=True)
class PoolTarget:
    """A storage pool on a host, as the target of a migration. *id*, *kind* and *free_gb* are ``None`` for a host that
    has not reported its pools."""

    host: str
    pool: str
    id: str | None
    kind: str | None
    free_gb: int | None


class MigrationStore:
    """The operations that migrate volumes and change their type. *reach*: access to hosts and their agents. *types*:
    the volume types. *zone*: the availability zone of volumes."""

    def __init__(self, database: Database, reach: Reach, types: TypeStore, zone: str) -> None:
        self.database, self.reach, self.types, self.zone = database, reach, types, zone

    def migrate(self, context: Context, id: str, host: str, *, lock: bool = False) -> None:
        """Queue the migration of a volume to another pool or host, for administrators. *host*: the target as
        HOST@BACKEND#POOL. *lock*: set an available volume to the status maintenance, so that it cannot be used
        meanwhile. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
        check_admin(context, "volume_extension:volume_admin_actions:migrate_volume")
        with self.database.read() as connection:
            volume = get_visible_row(connection, volumes, context, id)
        target = self.find_target(host, _pool_name(volume))
        self._check_type(volume, target)
        with self.database.write() as connection:
            lock_volume(connection, id)
            row = get_visible_row(connection, volumes, context, id)
            status = "maintenance" if lock and row["status"] == "available" else row["status"]
            self._begin(connection, row, target, status)

    def retype(self, context: Context, id: str, name_or_id: str, policy: str = NEVER) -> None:
        """Change the type of a volume to *name_or_id*. If this type needs another pool, queue a migration of the
        volume; with *policy* ``"never"``, raise ``InvalidRequest`` instead. Raises ``NotFound``, ``Conflict``."""
        check_volume_writer(context)
        chosen = self.types.find(context, name_or_id)
        with self.database.write() as connection:
            lock_volume(connection, id)
            row = get_visible_row(connection, volumes, context, id)
            self._check_retype(row, chosen)
            if self._keeps_pool(row, chosen):
                set_columns(connection, volumes, id, volume_type=chosen.name, pool=_pool_name(row))
                return
            if policy != ON_DEMAND:
                raise InvalidRequest("Invalid volume: Retype requires migration but is not allowed. Ask for "
                                     "migration_policy on-demand.")
        target = self._target_of_type(row, chosen)
        with self.database.write() as connection:
            lock_volume(connection, id)
            row = get_visible_row(connection, volumes, context, id)
            self._check_retype(row, chosen)
            self._begin(connection, row, target, "retyping", chosen.name)

    def find_target(self, text: str, default_pool: str) -> PoolTarget:
        """Return the pool that *text* names: HOST@BACKEND#POOL. *text* may also be HOST or HOST@BACKEND, which means
        the pool *default_pool* there. Raises ``InvalidRequest`` if this pool does not exist or cannot be used now."""
        host, _at, place = text.partition("@")
        backend, _hash, pool = place.partition("#")
        target = self._target(host, pool or default_pool) if backend in ("", BACKEND_NAME) else None
        if target is None:
            raise InvalidRequest(f"Invalid host: No available service named '{text[:80]}'. The pools are listed by: "
                                 "openstack volume backend pool list.")
        return target

    def _target(self, host: str, pool: str) -> PoolTarget | None:
        """Return the pool named *pool* on *host*; ``None`` if the host is not up, or does not reach such a pool."""
        if not any(known["name"] == host and known["up"] for known in self.reach.hosts()):
            return None
        reported = [found for found in self.reach.pools() if found.host == host]
        if not reported:
            return PoolTarget(host, pool, None, None, None) if pool in self.types.pools else None
        found = next((found for found in reported if found.name == pool and found.state == UP), None)
        return None if found is None else PoolTarget(host, pool, found.id, found.kind, found.free_gb)

    def _target_of_type(self, row: RowMapping, chosen: VolumeType) -> PoolTarget:
        """Choose the pool for the volume *row* when it gets the type *chosen*. If ``chosen.chooses`` is true: the
        suitable pool with the most free space. Otherwise: the pool of the type on the volume's present host, or,
        without enough space there, on the host with the most free space. While a server has the volume, only pools on
        the present host are possible. Raises ``InvalidRequest`` if there is no such pool."""
        if chosen.chooses:
            option = choose_pool(self.reach, chosen, row["size"], lambda host: host == row["host"]
                                 or row["status"] == "available")
            if option and (target := self._target(option.host, option.name)):
                return target
        hosts = [row["host"], *([self.reach.roomiest(chosen.pool)] if row["status"] == "available" else [])]
        targets = [target for host in hosts if host and (target := self._target(host, chosen.pool))]
        roomy = [target for target in targets if target.free_gb is None or target.free_gb >= row["size"]]
        if not roomy:
            raise InvalidRequest(f"No valid backend was found. No pool of the volume type {chosen.name} can take the "
                                 f"volume, which has {row['size']} GiB{'' if targets else ', from where it is'}.")
        return roomy[0]

    def _keeps_pool(self, row: RowMapping, chosen: VolumeType) -> bool:
        """Return whether the volume *row* can stay in its pool when it gets the type *chosen*."""
        if not chosen.chooses:
            return chosen.pool == _pool_name(row)
        return _pool_name(row) in chosen.pools and not self.refusals(chosen, str(row["host"]), _pool_name(row), 0)

    def refusals(self, chosen: VolumeType, host: str, pool: str, size: int) -> list[str]:
        """Return the reasons why a volume of *size* GiB with the type *chosen* cannot be in *pool* on *host*; empty if
        it can."""
        option = next((option for option in list_pool_options(self.reach, [pool]) if option.host == host), None)
        return ["its host has not reported it"] if option is None else refusals_of_pool(chosen, option, size)

    def _check_type(self, row: RowMapping, target: PoolTarget) -> None:
        """Raise ``InvalidRequest`` unless the type of the volume *row* allows the pool *target*."""
        kind = self.types.of(row["volume_type"])
        if kind.chooses and (reasons := self.refusals(kind, target.host, target.pool, 0)):
            raise InvalidRequest(f"Invalid host: the pool {target.pool} of host {target.host} is not as the volume "
                                 f"type {kind.name} asks: {', '.join(reasons)}. Change the type instead: openstack "
                                 "volume set --type TYPE --retype-policy on-demand.")
        spec = kind.pool if kind.is_fixed else kind.extra_specs.get(POOL)
        if spec is not None and not (target.pool == spec or matches_extra_spec(target.pool, spec)):
            raise InvalidRequest(f"Invalid host: the volume type {kind.name} asks for the pool {spec}, and not for "
                                 f"{target.pool}. Change the type instead: openstack volume set --type TYPE "
                                 "--retype-policy on-demand.")

    def _check_retype(self, row: RowMapping, chosen: VolumeType) -> None:
        """Raise ``InvalidRequest`` unless the volume *row* can get the type *chosen*. The volume must be available or
        in use, and must not be migrating or have this type already. The new type must not change multiattach or
        encryption. The volume must fulfil the type's extra specs."""
        id = row["id"]
        if row["status"] not in MOVABLE or row["migration"] or chosen.name == row["volume_type"]:
            raise InvalidRequest("Invalid volume: Retype needs volume to be in available or in-use state, not be "
                                 "part of an active migration, and requested type has to be different than the one "
                                 f"from the volume. Volume {id} is {row['status']}, and has the type "
                                 f"{row['volume_type']}.")
        if chosen.multiattach != row["multiattach"]:
            raise InvalidRequest("Invalid input received: Invalid volume_type passed: a retype cannot change whether "
                                 "several servers may have the volume. Make a new volume of that type from this one.")
        if (chosen.encryption is None) != (row["encryption_key_id"] is None):
            raise InvalidRequest("Invalid input received: Invalid volume_type passed: a retype cannot change whether "
                                 "the volume is encrypted. Make a new volume of that type, and copy what is needed.")
        chosen.check_volume(row["size"], self.zone)

    def _begin(self, connection: Connection, row: RowMapping, target: PoolTarget, status: str,
               volume_type: str | None = None) -> None:
        """Check that the volume *row* can migrate to *target*, and queue the migration. *status*: the volume's status
        during the migration. *volume_type*: the name of its new type; ``None``: it keeps its type."""
        _check_movable(connection, row)
        target = _reachable_target(connection, row, target)
        _check_pools(connection, row, target)
        migration = {"source": {"host": row["host"], "pool": _pool_name(row)}, "host": target.host,
                     "pool": target.pool, "pool_id": target.id, "volume_type": volume_type, "cancelled": False}
        queue_volume_task(connection, volumes, row, MIGRATE, MOVABLE, status=status, previous_status=row["status"],
                          migration=migration, migration_status=STARTING)
        if is_between_hosts(migration):
            note_copy(connection, row["id"], migration)
        self.database.notify(connection, VOLUMES_CHANGED)


def _pool_name(row: RowMapping) -> str:
    return str(row["pool"] or row["volume_type"])


def _reachable_target(connection: Connection, row: RowMapping, target: PoolTarget) -> PoolTarget:
    """Return the pool that the volume *row* will migrate to. If no server has the volume, return *target*. While a
    server has the volume, the content stays on the volume's host: return the pool of *target* as this host reaches it.
    Raises ``InvalidRequest`` if this host does not reach the pool, or if the server is on another host."""
    users = connection.execute(select(attachments).where(attachments.c.volume_id == row["id"])).mappings().all()
    if not users:
        return target
    if any(user["status"] != "attached" or user["host"] != row["host"] for user in users):
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is attached to a server of another host than its "
                             "own, so its content cannot move. Detach it first, or migrate the server.")
    found = None if target.id is None else next((
        pool for pool in fetch_host_pools(connection, target.id) if pool.host == row["host"] and pool.state == UP),
        None)
    if target.host != row["host"] and found is None:
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is attached to a server whose host does not "
                             "reach that pool. Detach it first, or choose a pool that its host reaches.")
    return target if found is None else PoolTarget(found.host, found.name, found.id, found.kind, found.free_gb)


def _check_movable(connection: Connection, row: RowMapping) -> None:
    """Raise ``InvalidRequest`` unless the volume *row* can migrate now. Its status must be available or in-use. It must
    have no migration, no other task and no snapshots, and must not be the source of a volume that is being created."""
    id = row["id"]
    if row["status"] not in MOVABLE:
        raise wrong_status(volumes, row, MOVABLE)
    if row["migration"] or row["task"]:
        raise InvalidRequest(f"Invalid volume: Volume {id} must not be migrating or busy with other work. Wait until "
                             "that has ended.")
    if connection.execute(select(snapshots.c.id).where(snapshots.c.volume_id == id).limit(1)).first():
        raise InvalidRequest(f"Invalid volume: Volume {id} must not have snapshots to migrate: they stay where they "
                             "are. Delete them, or make a new volume from the volume.")
    if connection.execute(select(volumes.c.id).where(volumes.c.task == "create", volumes.c.source_volid == id)
                          .limit(1)).first():
        raise InvalidRequest(f"Invalid volume: Volume {id} is being copied to a new volume. Wait until that has "
                             "ended.")


def _check_pools(connection: Connection, row: RowMapping, target: PoolTarget) -> None:
    """Raise an error if the volume *row* cannot migrate to *target*. Raise ``InvalidRequest`` if the volume is in this
    pool already, or the pool has too little free space. Also raise ``InvalidRequest`` if the volume is in Ceph and
    *target* is on another host. Raise ``Conflict`` if the host of *target* had the volume before, and has not removed
    it yet."""
    if not row["host"] or (row["host"], _pool_name(row)) == (target.host, target.pool):
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is there already: destination host and pool "
                             "must be different than the current ones.")
    current = find_pool_on_host(connection, row["host"], _pool_name(row))
    if current is not None and current.id == target.id:
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is in that pool already, which both hosts reach.")
    if current is not None and current.kind == "rbd" and target.host != row["host"]:
        raise InvalidRequest(f"Invalid host: Volume {row['id']} is in Ceph. Choose a pool of a host that reaches it: "
                             f"{row['host']}@{BACKEND_NAME}#POOL.")
    if target.free_gb is not None and target.free_gb < row["size"]:
        raise InvalidRequest(f"Invalid host: the pool {target.pool} of host {target.host} has {target.free_gb} GiB "
                             f"free, and the volume has {row['size']} GiB.")
    if has_due_removal(connection, target.host, row["id"]):
        raise Conflict(f"Host {target.host} had volume {row['id']} before, and has not removed its content yet. Wait "
                       "until the host is up, then repeat the request.")
