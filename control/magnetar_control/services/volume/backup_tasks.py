# SPDX-License-Identifier: GPL-3.0-or-later
"""The worker's tasks for backups: they have an agent write, restore, adopt or remove a backup. The end of a task
changes the volume in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, update

from magnetar_control.services import Context, KeyManager
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound, Unreachable

from .key_ids import key_id
from .pools import UP, PoolOnHost, find_pool_on_host, pool_id_of
from .tables import snapshots, volumes

if TYPE_CHECKING:
    from .worker import Worker

Row = Mapping[Any, Any]
#: Statuses of a volume (or snapshot) whose backup is written, and of a volume that is restored.
BACKING_UP, RESTORING = "backing-up", "restoring-backup"
#: Key in the metadata of a restored volume: the uuid of the backup, as in Cinder.
RESTORED_FROM = "src_backup_id"
#: Errors of an agent that refuses a restore before it touches the volume.
REFUSALS = (Conflict, InvalidField)
#: Columns of a backup that its catalogue has, for an import after the loss of the database.
CATALOGUED = ("name", "description", "volume_id", "snapshot_id", "parent_id", "container", "data_timestamp", "metadata",
              "volume_type", "bootable", "image_metadata", "project_id", "user_id", "created_at")


def create_backup(worker: Worker, row: Row) -> Document:
    """Execute the task "create" of the backup *row*: the agent of the volume's host writes the backup. Return the new
    column values of the backup. Raises ``Conflict`` for a volume without a host."""
    if row["host"] is None:
        raise Conflict(f"Volume {row['volume_id']} is on no host, so it has no content to back up.")
    _keep_key(worker, row)
    return _written(worker.ensure(row, "volume_backup", {
        "name": f"backup-{row['id']}", "volume": row["volume_id"], "snapshot": row["snapshot_id"],
        "parent": row["parent_id"], "record": {name: row[name] for name in CATALOGUED}}))


def _keep_key(worker: Worker, row: Row) -> None:
    """Copy the encryption key of the volume, as the key of its backup *row*, because the backup may exist longer than
    the volume. Do nothing for an unencrypted volume. Raises ``Conflict`` without a key manager."""
    with worker.database.read() as connection:
        volume_key = connection.execute(select(volumes.c.encryption_key_id).where(
            volumes.c.id == row["volume_id"])).scalar()
    if volume_key is None:
        return
    if worker.reach.keys is None:
        raise Conflict("There is no key manager here, so no encrypted volume can be backed up.")
    worker.reach.keys.create_key(key_id(row["id"]), volume_key)


def stored_backup_key(keys: KeyManager | None, id: str) -> str | None:
    """Return the encryption key of the backup *id* from the key manager *keys*; ``None`` if the backup is not
    encrypted."""
    try:
        return None if keys is None else keys.key(Context("", "", frozenset(("admin",))), key_id(id))
    except NotFound:
        return None


def _written(resource: Document) -> Document:
    """Return the column values of a backup that was written. *resource*: the state of the backup that the agent has
    returned."""
    return {"status": "available", "size": resource["size"], "object_count": resource["stored_chunks"],
            "checksum": resource["checksum"], "target_id": pool_id_of(resource["target"])}


def import_backup(worker: Worker, row: Row) -> Document:
    """Execute the task "import" of the backup *row*: find a host that reaches its files, and register the backup in
    the agent there. Return the new column values of the backup. Raises ``Conflict`` if no host reaches the files, and
    ``Unreachable`` if no host with a backup target is up."""
    reasons = []
    for host in _hosts_to_ask(worker, row):
        try:
            resource = worker.ensure({**row, "host": host}, "volume_backup", {"name": f"backup-{row['id']}"})
            return {**_written(resource), "host": host}
        except REFUSALS as error:
            reasons.append(error.message)
    if not reasons:
        raise Unreachable("No host with a backup target is up.")
    raise Conflict(f"No host that is up has backup {row['id']} in its backup target. {reasons[-1]}")


def _hosts_to_ask(worker: Worker, row: Row) -> Iterator[str]:
    """Yield hosts that may have the files of the backup *row*. First yield one host for each backup target: a host that
    is up and reaches the target. The host for the target that *row* names comes first. Then yield all hosts that are up
    and have not reported their pools."""
    up = {host["name"] for host in worker.reach.hosts() if host["up"]}
    pools = list(worker.reach.pools())
    targets: dict[str, str] = {}
    for pool in _targets(pools):
        if pool.host in up:
            targets.setdefault(pool.id, pool.host)
    yield from sorted(targets.values(), key=lambda host: (host != targets.get(row["target_id"]), host))
    yield from sorted(up - {pool.host for pool in pools})


def _targets(pools: list[PoolOnHost]) -> list[PoolOnHost]:
    return [pool for pool in pools if pool.kind == "backup" and pool.state == UP]


def delete_backup(worker: Worker, row: Row) -> None:
    """Execute the task "delete" of the backup *row*: the agent of the backup's host removes the backup's files. If this
    host was removed from the cloud, another host that reaches the files removes them. If no such host exists, the files
    remain. Also delete the backup's encryption key."""
    host = row["host"]
    if host and all(known["name"] != host for known in worker.reach.hosts()):
        host = next((pool.host for pool in _targets(list(worker.reach.pools())) if pool.id == row["target_id"]), None)
        if host:
            worker.ensure({**row, "host": host}, "volume_backup", {"name": f"backup-{row['id']}"})
    if host:
        worker.remove({**row, "host": host}, "volume_backup")
    if worker.reach.keys is not None:
        worker.reach.keys.delete_key(key_id(row["id"]))


def restore_backup(worker: Worker, row: Row) -> Document:
    """Execute the task "restore" of the backup *row*: the agent of the volume's host replaces the volume's content, or
    creates the volume if it is new. Return the new column values of the backup. Raises ``Conflict`` if the volume was
    deleted."""
    asked = row["restore"]
    with worker.database.read() as connection:
        volume = connection.execute(select(volumes).where(volumes.c.id == asked["volume_id"])).mappings().first()
    if volume is None:
        raise Conflict(f"Volume {asked['volume_id']} was deleted before the backup was restored to it.")
    want: Document = {"reimage": {"backup": row["id"], "request": asked["request"]}}
    host = volume["host"] or _choose_host(worker, row, volume)
    if asked["is_new"]:
        if volume["encryption_key_id"] and worker.reach.keys and stored_backup_key(worker.reach.keys, row["id"]):
            worker.reach.keys.create_key(volume["encryption_key_id"], key_id(row["id"]))
        want = {**worker.new_volume({**volume, "host": host}), **want}
    else:
        _check_reach(worker, row, host)
    worker.ensure({**volume, "host": host}, "volume", want)
    with worker.database.read() as connection:
        deleted = connection.execute(select(volumes.c.id).where(volumes.c.id == volume["id"])).first() is None
    if deleted:  # an administrator deleted it meanwhile
        worker.remove({**volume, "host": host}, "volume")
    return {"status": "available", "restore": None}


def _choose_host(worker: Worker, backup: Row, volume: Row) -> str:
    """Choose the host for a new *volume* that *backup* is restored to, and return the name of the host. The host must
    be up, reach the backup, and have the volume's pool. The choice is saved before anything is created on the host.
    Raises ``Unreachable`` if there is no such host."""
    pools = list(worker.reach.pools())
    hosts = {pool.host for pool in _targets(pools) if pool.id == backup["target_id"]}
    if backup["host"] not in {pool.host for pool in pools}:
        hosts.add(backup["host"])
    host = worker.reach.roomiest(volume["pool"] or volume["volume_type"], hosts.__contains__)
    if host is None:
        raise Unreachable("No compute host is up that reaches the backup and has the volume's pool.")
    with worker.database.write() as connection:
        connection.execute(update(volumes).where(volumes.c.id == volume["id"], volumes.c.host.is_(None)).values(
            host=host))
    return host


def _check_reach(worker: Worker, backup: Row, host: str) -> None:
    """Raise ``Conflict`` if *host*, the host of the volume, has reported that it does not reach the target of
    *backup*."""
    pools = [pool for pool in worker.reach.pools() if pool.host == host]
    if pools and all(pool.id != backup["target_id"] for pool in pools if pool.kind == "backup"):
        raise Conflict(f"The host of volume {backup['restore']['volume_id']} does not reach the target of backup "
                       f"{backup['id']}. Restore it to a new volume (without volume_id).")


def without_restore(metadata: Document) -> Document:
    """Return the volume's *metadata* without the entry that names the restored backup, because the volume gets new
    content."""
    return {name: value for name, value in metadata.items() if name != RESTORED_FROM}


def complete_backup_task(connection: Connection, row: Row, error: MagnetarError | None) -> None:
    """Update the volume when the task of the backup *row* has ended: set its status, and after a restore also its
    metadata. *error*: why the task failed; ``None``: it succeeded."""
    release_backup_source(connection, row)
    if row["task"] != "restore":
        return
    asked = row["restore"]
    values: Document = {"status": "available", "bootable": row["bootable"], "image_metadata": row["image_metadata"]}
    metadata = connection.execute(select(volumes.c.metadata).where(volumes.c.id == asked["volume_id"])).scalar()
    if error is None:
        values["metadata"] = {**(metadata or {}), RESTORED_FROM: row["id"]}
    elif isinstance(error, REFUSALS) and not asked["is_new"]:  # the content is as before
        values = {"status": "available", "fault": error.message}
    else:
        values = {"status": "error" if asked["is_new"] else "error_restoring", "fault": error.message,
                  "metadata": without_restore(metadata or {})}
    connection.execute(update(volumes).where(
        volumes.c.id == asked["volume_id"], volumes.c.status == RESTORING).values(updated_at=utc_now(), **values))
    if error is None and asked["is_new"]:
        volume = connection.execute(select(volumes).where(volumes.c.id == asked["volume_id"])).mappings().first()
        pool = volume and find_pool_on_host(connection, volume["host"], volume["pool"] or volume["volume_type"])
        if pool:
            connection.execute(update(volumes).where(volumes.c.id == asked["volume_id"]).values(pool_id=pool.id))


def release_backup_source(connection: Connection, row: Row) -> None:
    """Set the status of the backed-up volume or snapshot back to the status before the backup *row* began. Do nothing
    unless the backup is being created."""
    if row["status"] != "creating" or row["task"] == "import":
        return
    if row["snapshot_id"]:
        connection.execute(update(snapshots).where(
            snapshots.c.id == row["snapshot_id"], snapshots.c.status == BACKING_UP).values(
                status="available", updated_at=utc_now()))
        return
    # Without updated_at: it tells whether the volume was changed since its backup.
    connection.execute(update(volumes).where(
        volumes.c.id == row["volume_id"], volumes.c.status == BACKING_UP).values(
            status=volumes.c.previous_status, previous_status=None))


TASKS = {"create": create_backup, "import": import_backup, "restore": restore_backup, "delete": delete_backup}
