# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of the embedded volume service, in the API database.

``task``: the pending work on the host (create, extend, migrate, delete), written before it begins. ``lease_until``: the
end of the lease of the worker that does the task. ``not_before``: when a failed task is tried again. ``fault``: why it
failed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import API, NAME, TIME, UUID, timestamp_columns


def _thing() -> tuple[Column[Any], ...]:
    """Return the common columns of the tables of volumes and snapshots."""
    return (Column("id", UUID, primary_key=True), Column("project_id", NAME, nullable=False),
            Column("user_id", NAME, nullable=False), Column("name", NAME), Column("description", NAME),
            Column("size", Integer, nullable=False), Column("status", String(32), nullable=False),
            Column("host", NAME), Column("metadata", JsonColumn, nullable=False, default=dict),
            Column("task", String(16)), Column("holder", String(36)), Column("lease_until", TIME),
            Column("not_before", TIME), Column("attempts", Integer, nullable=False, default=0), Column("fault", Text),
            *timestamp_columns())


#: Volume types that administrators have created; see ``types``.
types = Table(
    "volume_types", API, Column("id", UUID, primary_key=True), Column("name", NAME, nullable=False, unique=True),
    Column("description", NAME), Column("is_public", Boolean, nullable=False, default=True),
    Column("extra_specs", JsonColumn, nullable=False, default=dict),
    # {encryption_id, provider, cipher, key_size, control_location}.
    Column("encryption", JsonColumn), *timestamp_columns())

#: The projects that may use a private type.
type_projects = Table(
    "volume_type_projects", API,
    Column("type_id", UUID, ForeignKey("volume_types.id", ondelete="CASCADE"), primary_key=True),
    Column("project_id", NAME, primary_key=True))

#: The storage pools that agents have reported. *identity*: the same on each host that reaches the pool. *shared*:
#: whether several hosts can reach it. Sizes in GiB, as of the last report.
pools = Table(
    "pools", API, Column("id", UUID, primary_key=True), Column("identity", Text, nullable=False, unique=True),
    Column("kind", String(16), nullable=False), Column("shared", Boolean, nullable=False),
    Column("total_gb", Integer), Column("free_gb", Integer), *timestamp_columns())

#: The hosts that reach a pool. *name*: its name in the agent's settings. *state*: up, or down because of *reason*.
pool_hosts = Table(
    "pool_hosts", API,
    Column("host", NAME, ForeignKey("hosts.name", ondelete="CASCADE"), primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("pool_id", UUID, ForeignKey("pools.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(8), nullable=False), Column("reason", Text, nullable=False, default=""),
    Index("pool_hosts_pool", "pool_id"))

volumes = Table(
    "volumes", API, *_thing(), Column("volume_type", NAME, nullable=False),
    # The pool with the content, once that is made and the agent has reported the pool.
    Column("pool_id", UUID),
    # The agents' pool of the volume. Null: the pool with the name of the type.
    Column("pool", NAME),
    # The key of an encrypted volume, in the key manager.
    Column("encryption_key_id", UUID),
    Column("availability_zone", NAME, nullable=False), Column("bootable", Boolean, nullable=False, default=False),
    Column("multiattach", Boolean, nullable=False, default=False),
    Column("readonly", Boolean, nullable=False, default=False),
    Column("image_metadata", JsonColumn, nullable=False, default=dict), Column("image_id", UUID),
    Column("snapshot_id", UUID), Column("source_volid", UUID),
    # While the volume is extended or reimaged: the new size, and the status afterwards.
    Column("new_size", Integer), Column("previous_status", String(32)),
    # The present or last reimage: {request, image_id, image_metadata, done}.
    Column("reimage", JsonColumn),
    # While an image is made from the volume: {image_id}.
    Column("upload", JsonColumn),
    # While content of a pool becomes the volume: {name, format}.
    Column("existing", JsonColumn),
    # While the volume moves to another pool or host, see ``migration_rows``; and Cinder's word for the last move.
    Column("migration", JsonColumn), Column("migration_status", String(16)),
    Index("volumes_project", "project_id", "created_at", "id"), Index("volumes_created", "created_at", "id"),
    Index("volumes_host", "host"), Index("volumes_task", "task"), Index("volumes_pool", "pool_id"))

snapshots = Table(
    "volume_snapshots", API, *_thing(), Column("volume_id", UUID, nullable=False),
    Column("bootable", Boolean, nullable=False, default=False), Column("volume_type", NAME, nullable=False),
    # Image metadata of the volume when it went to another project without the snapshot. Null: that of the volume.
    Column("image_metadata", JsonColumn),
    Index("volume_snapshots_project", "project_id", "created_at", "id"),
    Index("volume_snapshots_created", "created_at", "id"), Index("volume_snapshots_volume", "volume_id"),
    Index("volume_snapshots_task", "task"))

#: Backups of volumes, which outlive them; see ``backups``. ``host``: the host with the agent's document of the backup.
backups = Table(
    "volume_backups", API, *_thing(), Column("volume_id", UUID, nullable=False), Column("snapshot_id", UUID),
    # The backup that an incremental one needs.
    Column("parent_id", UUID),
    # The target of backups, as a pool (``pools.pool_id_of``); null before the backup is written.
    Column("target_id", UUID),
    Column("container", NAME), Column("object_count", Integer, nullable=False, default=0),
    Column("checksum", String(64)), Column("data_timestamp", TIME, nullable=False),
    # What a volume that is restored gets from the one that was backed up.
    Column("volume_type", NAME), Column("bootable", Boolean, nullable=False, default=False),
    Column("image_metadata", JsonColumn, nullable=False, default=dict),
    # While it is restored: {request, volume_id, is_new}.
    Column("restore", JsonColumn),
    Index("volume_backups_project", "project_id", "created_at", "id"),
    Index("volume_backups_created", "created_at", "id"), Index("volume_backups_volume", "volume_id"),
    Index("volume_backups_parent", "parent_id"), Index("volume_backups_task", "task"))

attachments = Table(
    "volume_attachments", API, Column("id", UUID, primary_key=True),
    Column("volume_id", UUID, ForeignKey("volumes.id", ondelete="CASCADE"), nullable=False),
    Column("project_id", NAME, nullable=False), Column("server_id", UUID), Column("host", NAME),
    Column("device", NAME), Column("status", String(16), nullable=False),  # reserved, attaching, attached, detaching
    Column("mode", String(4), nullable=False, default="rw"), Column("connector", JsonColumn),
    Column("attached_at", TIME),
    *timestamp_columns(), Index("volume_attachments_volume", "volume_id"),
    Index("volume_attachments_server", "server_id"))

#: Open transfers of volumes to other projects; see ``transfers``. ``project_id``: the project that has the volume.
transfers = Table(
    "volume_transfers", API, Column("id", UUID, primary_key=True),
    Column("volume_id", UUID, ForeignKey("volumes.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("project_id", NAME, nullable=False), Column("name", NAME),
    Column("no_snapshots", Boolean, nullable=False, default=False),
    # The key's hash, with its salt, in hexadecimal digits.
    Column("salt", String(64), nullable=False), Column("key_hash", String(64), nullable=False),
    *timestamp_columns(), Index("volume_transfers_project", "project_id", "created_at", "id"),
    Index("volume_transfers_created", "created_at", "id"))
