# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes in the database. ``backup_tasks`` has the agents write, restore and remove them."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, func, insert, select, update

from magnetar_control.services import Context, KeyManager
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest

from .attachments import lock_volume
from .backup_tasks import BACKING_UP, RESTORING, release_backup_source, stored_backup_key
from .pools import PoolOnHost, pool_id_of
from .rows import (
    DryRunEnd,
    NamedStore,
    check_admin,
    check_volume_writer,
    checked_metadata,
    get_visible_row,
    queue_volume_task,
    set_columns,
    wrong_status,
)
from .tables import backups, snapshots, volumes
from .types import VolumeType
from .volumes import create_volume_row
from .worker import VOLUMES_CHANGED

GIB = 2**30
#: Columns in the documents of backups.
SHOWN = ("id", "name", "description", "volume_id", "snapshot_id", "parent_id", "status", "size", "container",
         "object_count", "checksum", "data_timestamp", "project_id", "user_id", "fault", "created_at", "updated_at")
DELETABLE = ("available", "error")
#: The service in the records of ``export_record``.
SERVICE = "magnetar"
#: Columns in a record, by which a backup can be imported into another database.
RECORDED = ("name", "description", "size", "volume_id", "snapshot_id", "parent_id", "target_id", "container",
            "object_count", "checksum", "data_timestamp", "metadata", "volume_type", "bootable", "image_metadata")
#: Texts of a record: required, and optional ones; those that are uuids; and the longest that are shorter than names.
REQUIRED = ("id", "volume_id", "data_timestamp")
OPTIONAL = ("name", "description", "snapshot_id", "parent_id", "target_id", "container", "checksum", "volume_type",
            "project_id", "user_id", "created_at")
UUIDS = ("id", "volume_id", "snapshot_id", "parent_id", "target_id")
LENGTHS = {"data_timestamp": 26, "created_at": 26, "checksum": 64}


def backup_documents(connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """Convert backup *rows* to documents for callers."""
    parents = set(connection.execute(select(backups.c.parent_id).where(
        backups.c.parent_id.in_([row["id"] for row in rows]))).scalars())
    return [{**{name: row[name] for name in SHOWN}, "metadata": row["metadata"],
             "has_dependent_backups": row["id"] in parents} for row in rows]


@dataclass(frozen=True)
class NewVolumes:
    """The dependencies for restoring a backup to a new volume. *columns*: a function (caller, id, size, fields) that
    returns (columns of the new volume, volume type). *quota*: the volume quotas. *pools*: a function that returns the
    pools which hosts have reported. *zone*: the availability zone of volumes. *keys*: the key manager of encrypted
    volumes."""

    columns: Callable[[Context, str, int, Document], tuple[Document, VolumeType | None]]
    quota: Quotas
    pools: Callable[[], Sequence[PoolOnHost]]
    zone: str
    keys: KeyManager | None = None


class BackupStore(NamedStore):
    """The operations on volume backups."""

    table, documents = backups, staticmethod(backup_documents)

    def __init__(self, database: Database, new: NewVolumes) -> None:
        super().__init__(database)
        self.new = new

    def create(self, context: Context, volume_id: str, *, snapshot_id: str | None = None, incremental: bool = False,
               force: bool = False, **fields: Any) -> Document:
        """Queue the backup of a volume, or of its snapshot *snapshot_id*, and return the backup. *incremental*: store
        only the changes since the volume's latest backup. *force*: allow the backup while the volume is in use.
        *fields*: name, description, container, metadata. Raises ``NotFound``, ``InvalidRequest``, ``TooLarge``."""
        check_volume_writer(context)
        id, pools = str(uuid.uuid4()), self.new.pools()
        with self.database.write() as connection:
            volume, snapshot, parent = self._sources(connection, context, pools, volume_id, snapshot_id, incremental,
                                                     force)
            size, now = volume["size"], utc_now()
            connection.execute(insert(backups).values(
                id=id, project_id=volume["project_id"], user_id=context.user_id, volume_id=volume_id, size=size,
                snapshot_id=snapshot_id, parent_id=parent and parent["id"], status="creating", task="create",
                host=volume["host"], name=fields.get("name"), description=fields.get("description"),
                container=fields.get("container"), metadata=checked_metadata(fields.get("metadata") or {}),
                volume_type=volume["volume_type"], bootable=volume["bootable"],
                image_metadata=volume["image_metadata"], created_at=now,
                data_timestamp=snapshot["created_at"] if snapshot else now))
            if snapshot:
                set_columns(connection, snapshots, snapshot["id"], status=BACKING_UP)
            else:
                # Without updated_at: it tells whether the volume was changed since its backup.
                connection.execute(update(volumes).where(volumes.c.id == volume_id).values(
                    status=BACKING_UP, previous_status=volume["status"]))
            self.database.notify(connection, VOLUMES_CHANGED)
            return backup_documents(connection, [get_visible_row(connection, backups, context, id)])[0]

    def check(self, context: Context, volume_id: str, *, snapshot_id: str | None = None, incremental: bool = False,
              force: bool = False) -> None:
        """Raise the errors that ``create`` would raise with the same arguments, without changing anything."""
        check_volume_writer(context)
        with suppress(DryRunEnd), self.database.write() as connection:
            self._sources(connection, context, self.new.pools(), volume_id, snapshot_id, incremental, force)
            raise DryRunEnd

    def _sources(self, connection: Connection, context: Context, pools: Sequence[PoolOnHost], volume_id: str,
                 snapshot_id: str | None, incremental: bool,
                 force: bool) -> tuple[RowMapping, RowMapping | None, RowMapping | None]:
        """Check a request for a new backup, and lock the volume. Return the rows of the volume, of its snapshot
        *snapshot_id* (``None``: without a snapshot), and of the parent backup (``None``: not incremental). *pools*: the
        pools of all hosts. Raises the errors of ``create``."""
        lock_volume(connection, volume_id)
        volume = get_visible_row(connection, volumes, context, volume_id)
        snapshot = _checked_source(connection, context, volume, snapshot_id, force)
        _check_directory(volume, pools)
        self.new.quota.within(connection, volume["project_id"], backups=1, backup_gigabytes=volume["size"])
        return volume, snapshot, _latest_backup(connection, volume, snapshot) if incremental else None

    def restore(self, context: Context, id: str, volume_id: str | None = None, name: str | None = None, *,
                dry_run: bool = False) -> Document:
        """Queue the restore of a backup: to the volume *volume_id*, whose content is overwritten, or to a new volume
        called *name*. Return {backup_id, volume_id, volume_name}. *dry_run*: only raise the errors. Raises
        ``NotFound``, ``InvalidRequest``, ``TooLarge``."""
        check_volume_writer(context)
        with self.database.read() as connection:
            row = get_visible_row(connection, backups, context, id)
            target = None if volume_id is None else get_visible_row(connection, volumes, context, volume_id)
        values: Document = {}
        key = stored_backup_key(self.new.keys, id)
        if volume_id is None:
            volume_id = str(uuid.uuid4())
            values = self._new_volume(context, volume_id, row, name, encrypted=key is not None)
        elif target is not None and key is not None:
            _check_key(self.new.keys, target, id, key)
        volume: Mapping[Any, Any] = {"name": name}
        with suppress(DryRunEnd), self.database.write() as connection:
            row = get_visible_row(connection, backups, context, id)
            if row["status"] != "available":
                raise wrong_status(backups, row, ("available",))
            if values:
                create_volume_row(connection, context, self.new.quota, values)
                set_columns(connection, volumes, volume_id, status=RESTORING, task=None)
            else:
                lock_volume(connection, volume_id)
                _check_restorable(get_visible_row(connection, volumes, context, volume_id), row)
                set_columns(connection, volumes, volume_id, status=RESTORING)
            queue_volume_task(connection, backups, row, "restore", ("available",), status="restoring", restore={
                "request": str(uuid.uuid4()), "volume_id": volume_id, "is_new": bool(values)})
            volume = get_visible_row(connection, volumes, context, volume_id)
            if dry_run:
                raise DryRunEnd
            self.database.notify(connection, VOLUMES_CHANGED)
        return {"backup_id": id, "volume_id": volume_id, "volume_name": volume["name"]}

    def _new_volume(self, context: Context, id: str, backup: RowMapping, name: str | None, *,
                    encrypted: bool) -> Document:
        """Return the column values of a new volume with the uuid *id*, for the restore of *backup*. *encrypted*:
        whether the backup is encrypted; then the new volume gets the type of the volume that was backed up. Raises
        ``InvalidRequest``."""
        values, chosen = self.new.columns(context, id, backup["size"], {
            "name": f"restore_backup_{backup['id']}" if name is None else name,
            "description": "auto-created_from_restore_from_backup",
            **({"volume_type": backup["volume_type"]} if encrypted else {})})
        values["host"] = None  # the worker chooses one that reaches the backup
        if chosen is not None:
            chosen.check_volume(backup["size"], self.new.zone)
        if encrypted and not values["encryption_key_id"]:
            raise InvalidRequest(f"Invalid backup: Backup {backup['id']} is encrypted, and the volume type "
                                 f"{backup['volume_type']} does not encrypt new volumes any more. Restore it to the "
                                 "volume that was backed up, or have an administrator encrypt that type again.")
        return values

    def delete(self, context: Context, id: str, force: bool = False) -> None:
        """Queue the deletion of a backup without dependent (incremental) backups. *force*: allow the deletion in any
        status, for admins. Raises ``NotFound``, ``InvalidRequest``."""
        check_admin(context) if force else check_volume_writer(context)
        with self.database.write() as connection:
            # Locked, so that a simultaneous incremental backup is seen here, or sees the deletion.
            connection.execute(select(backups.c.id).where(backups.c.id == id).with_for_update())
            row = get_visible_row(connection, backups, context, id)
            if connection.execute(select(backups.c.id).where(backups.c.parent_id == id).limit(1)).first():
                raise InvalidRequest("Invalid backup: Incremental backups exist for this backup. Delete them first, "
                                     "the latest before the others.")
            queue_volume_task(connection, backups, row, "delete", None if force else DELETABLE, status="deleting")
            release_backup_source(connection, row)
            self.database.notify(connection, VOLUMES_CHANGED)

    def reset_status(self, context: Context, id: str, status: str) -> None:
        """Set the status of a backup, after an admin has checked it. Cancel its running task."""
        check_admin(context)
        with self.database.write() as connection:
            row = get_visible_row(connection, backups, context, id)
            set_columns(connection, backups, row["id"], status=status, task=None, lease_until=None)
            release_backup_source(connection, row)

    def export_record(self, context: Context, id: str) -> Document:
        """Return {backup_service, backup_url} of a backup: its data for ``import_record`` in another database. Raises
        ``NotFound``, ``InvalidRequest``."""
        check_admin(context)
        with self.database.read() as connection:
            row = get_visible_row(connection, backups, context, id)
        if row["status"] != "available":
            raise wrong_status(backups, row, ("available",))
        record = {"id": id, **{name: row[name] for name in RECORDED}}
        return {"backup_service": SERVICE, "backup_url": base64.b64encode(orjson.dumps(record)).decode()}

    def import_record(self, context: Context, service: str, url: str) -> Document:
        """Queue the import of a backup into the caller's project, and return the backup. *service*, *url*: the backup's
        backup_service and backup_url, which ``export_record`` has returned from another database. Raises
        ``InvalidRequest`` if these are not valid here, or if the backup exists already."""
        check_admin(context)
        if service != SERVICE:
            raise InvalidRequest(f"Invalid backup: backup_service must be {SERVICE}, which wrote the record, and is "
                                 f"{service[:80]!r}.")
        try:
            record = parse_backup_record(orjson.loads(base64.b64decode(url, validate=True)))
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"Invalid input received: backup_url is no record of a backup: {error}.") from None
        with self.database.write() as connection:
            if not insert_imported_backup(connection, {**record, "project_id": context.project_id or "",
                                                       "user_id": context.user_id}):
                raise InvalidRequest(f"Invalid backup: Backup {record['id']} already exists in the database.")
            self.database.notify(connection, VOLUMES_CHANGED)
        return self.show(context, record["id"])

    def import_catalogues(self, records: Sequence[Document]) -> list[str]:
        """Queue the import of several backups, each into the project that its record names. *records*: the column
        values of the backups, from ``catalogue_record``. Return the uuids of the backups that the database did not have
        yet."""
        with self.database.write() as connection:
            imported = [record["id"] for record in records if insert_imported_backup(connection, record)]
            self.database.notify(connection, VOLUMES_CHANGED)
        return imported


def _checked_source(connection: Connection, context: Context, volume: RowMapping, snapshot_id: str | None,
                    force: bool) -> RowMapping | None:
    """Return the row of the snapshot *snapshot_id* to back up; ``None`` without *snapshot_id*: the volume itself is
    backed up. *force*: allow a volume in use. Raises ``InvalidRequest`` if the snapshot is not available or not of this
    volume. Without *snapshot_id*, raises ``InvalidRequest`` if the volume is neither available nor (with *force*) in
    use."""
    snapshot = get_visible_row(connection, snapshots, context, snapshot_id) if snapshot_id else None
    if snapshot is not None and snapshot["volume_id"] != volume["id"]:
        raise InvalidRequest(f"Invalid volume: Volume {volume['id']} does not match with snapshot.volume_id "
                             f"{snapshot['volume_id']}.")
    if snapshot is not None and snapshot["status"] != "available":
        raise wrong_status(snapshots, snapshot, ("available",))
    if snapshot is None and volume["status"] not in ("available", "in-use"):
        raise wrong_status(volumes, volume, ("available", "in-use"))
    if snapshot is None and volume["status"] == "in-use" and not force:
        raise InvalidRequest("Invalid volume: Backing up an in-use volume must use the force flag.")
    return snapshot


def _check_key(keys: KeyManager | None, volume: RowMapping, id: str, key: str) -> None:
    """Raise ``InvalidRequest`` unless *volume*, the target of a restore, has the same encryption key as the backup
    *id*. *key*: the key of the backup."""
    if volume["encryption_key_id"] and keys and keys.create_key(volume["encryption_key_id"]) == key:
        return
    raise InvalidRequest(f"Invalid volume: Backup {id} is encrypted with another key than volume {volume['id']} has. "
                         "Restore it to the volume that was backed up, or to a new volume (without volume_id).")


def _check_directory(volume: RowMapping, pools: Sequence[PoolOnHost]) -> None:
    """Raise ``InvalidRequest`` if the volume's host has reported its pools, and no backup target among them. Do
    nothing if the host has not reported yet; then the task will fail if there is no backup target. *pools*: the
    pools of all hosts."""
    reported = [pool for pool in pools if pool.host == volume["host"]]
    if reported and all(pool.kind != "backup" for pool in reported):
        raise InvalidRequest(f"Invalid volume: The host of volume {volume['id']} has no backup target. An operator "
                             "sets backup_directory, backup_pool or backup_s3_store_bucket in the settings of its "
                             "agent.")


def _latest_backup(connection: Connection, volume: RowMapping, snapshot: RowMapping | None) -> RowMapping:
    """Return the parent of a new incremental backup: the latest backup of the volume, or, for a backup of *snapshot*,
    the latest one from before the snapshot. Raises ``InvalidRequest`` if there is none, or if it is not available."""
    before = [] if snapshot is None else [backups.c.data_timestamp < snapshot["created_at"]]
    row = connection.execute(select(backups).where(
        backups.c.volume_id == volume["id"], backups.c.project_id == volume["project_id"], *before).order_by(
            backups.c.data_timestamp.desc(), backups.c.created_at.desc()).limit(1).with_for_update()).mappings().first()
    if row is None:
        raise InvalidRequest("Invalid backup: No backups available to do an incremental backup.")
    if row["status"] != "available":
        raise InvalidRequest("Invalid backup: The parent backup must be available for incremental backup; backup "
                             f"{row['id']} is {row['status']}.")
    return row


def _check_restorable(volume: RowMapping, backup: RowMapping) -> None:
    """Raise ``InvalidRequest`` unless *backup* can be restored to the existing *volume*: the volume must be available,
    and at least as large as the backup."""
    if volume["status"] != "available":
        raise wrong_status(volumes, volume, ("available",))
    if volume["size"] < backup["size"]:
        raise InvalidRequest(f"Invalid volume: volume size {volume['size']} is too small to restore backup of size "
                             f"{backup['size']}.")


def parse_backup_record(record: Any) -> Document:
    """Validate the *record* of a backup to import, and return the column values for its row. *record*: decoded JSON,
    from ``BackupStore.export_record`` or ``catalogue_record``. Raises ``ValueError`` with the reason."""
    if not isinstance(record, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the content is wrong, not the call
    columns: Document = {name: _record_text(record, name) for name in (*REQUIRED, *OPTIONAL)}
    for name in UUIDS:
        if columns[name] is not None:
            columns[name] = str(uuid.UUID(columns[name]))
    size, count = record.get("size"), record.get("object_count")
    if not isinstance(size, int) or not 0 < size <= 2**20:
        raise ValueError("size must be a number of GiB")
    for name in ("metadata", "image_metadata"):
        value = record.get(name) or {}
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ValueError(f"{name} must be an object of texts")
        columns[name] = value
    return {**columns, "size": size, "bootable": record.get("bootable") is True,
            "object_count": count if isinstance(count, int) and 0 <= count < 2**31 else 0}


def _record_text(record: Document, name: str) -> str | None:
    """Return the value of the field *name* in the *record* of a backup to import; ``None`` if the field is optional and
    missing. Raises ``ValueError`` if it is no string, or too long for its column."""
    value, most = record.get(name), LENGTHS.get(name, 255)
    if value is None and name in OPTIONAL:
        return None
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise ValueError(f"{name} must be a text of {most} characters at most")
    return value


def catalogue_record(catalogue: Any) -> Document:
    """Return the column values for the row of a backup. *catalogue*: the decoded JSON of the file ``backup.json``,
    which describes the backup. Raises ``ValueError`` with the reason if it is not valid, or if
    the backup belongs to no project, because it was made by an agent without a control plane."""
    facts = catalogue.get("record") if isinstance(catalogue, dict) else None
    if not isinstance(facts, dict) or not isinstance(facts.get("project_id"), str):
        reason = "it names no project, because it was made without a cloud, or it is no catalogue"
        raise ValueError(reason)  # noqa: TRY004 - the content is wrong, not the call
    size, target = catalogue.get("size"), catalogue.get("target")
    return parse_backup_record({
        **facts, "id": catalogue.get("id"), "parent_id": catalogue.get("parent"),
        "size": -(-size // GIB) if isinstance(size, int) else None, "checksum": catalogue.get("checksum"),
        "object_count": catalogue.get("stored_chunks"),
        "target_id": pool_id_of(target) if isinstance(target, str) else None})


def insert_imported_backup(connection: Connection, record: Document) -> bool:
    """Insert the row of an imported backup, and queue the task that registers it on a host. *record*: the column
    values, from ``parse_backup_record``. Return ``False`` if the database has the backup already."""
    if connection.execute(select(func.count()).select_from(backups).where(backups.c.id == record["id"])).scalar():
        return False
    connection.execute(insert(backups).values(**{
        **record, "status": "creating", "task": "import", "host": None, "project_id": record["project_id"] or "",
        "user_id": record["user_id"] or "", "created_at": record["created_at"] or utc_now(), "updated_at": utc_now()}))
    return True
