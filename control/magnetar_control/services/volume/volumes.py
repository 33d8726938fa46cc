# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of volumes in the database, each in one transaction. ``worker`` does the work on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from magnetar_control.services import Context
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest

from .key_ids import key_id
from .rows import (
    NamedStore,
    VolumeListing,
    check_admin,
    check_volume_writer,
    get_visible_row,
    listing_condition,
    queue_volume_task,
    refuse_while_migrating,
    wrong_status,
)
from .snapshots import DELETABLE as SNAPSHOTS_DELETABLE
from .tables import attachments, snapshots, volumes
from .types import type_ids_of_names
from .worker import VOLUMES_CHANGED

#: Status of an attachment to the status of its volume. Of several attachments the first status in this order counts.
FOLLOWING = {"attached": "in-use", "detaching": "detaching", "attaching": "attaching", "reserved": "reserved"}
#: Columns in the documents of volumes.
SHOWN = ("id", "name", "description", "status", "size", "multiattach", "bootable", "host", "volume_type", "pool",
         "encryption_key_id", "readonly", "migration_status",
         "availability_zone", "project_id", "user_id", "snapshot_id", "source_volid", "fault", "created_at",
         "updated_at")
#: Columns of attachments that are shown with their volumes.
HELD = ("id", "volume_id", "server_id", "host", "device", "attached_at", "status")
#: Fields in ``volume_image_metadata`` in addition to the image's properties.
OF_IMAGE = ("image_id", "image_name", "checksum", "container_format", "disk_format", "min_disk", "min_ram", "size")
DELETABLE = ("available", "error", "error_extending", "error_deleting", "error_restoring", "error_managing")


def create_volume_row(connection: Connection, context: Context, quota: Quotas, values: Document) -> None:
    """Insert the row of a volume, and queue the task that creates the volume. *values*: the column values; host, size
    and bootable are completed from the snapshot or volume that the new volume copies. Raises the quota error if *quota*
    is exceeded, ``InvalidRequest``, ``NotFound``."""
    source = _source(connection, context, values)
    if source is not None:
        if source["host"]:
            values["host"] = source["host"]  # content is copied within a host
        values.setdefault("bootable", source["bootable"])
        values["size"] = values.get("size") or source["size"]
        if values["size"] < source["size"]:
            raise InvalidRequest(f"Invalid input received: size {values['size']} GiB is smaller than the source's "
                                 f"{source['size']} GiB.")
    if not values.get("size"):
        raise InvalidRequest("Invalid input received: size is required for a volume that is made from nothing else.")
    if values["multiattach"] and values["encryption_key_id"]:
        raise InvalidRequest("Invalid input received: Multiattach cannot be used with encrypted volumes.")
    quota.within(connection, values["project_id"], per_volume_gigabytes=values["size"], volumes=1,
                 gigabytes=values["size"])
    connection.execute(insert(volumes).values(status="creating", task="create", created_at=utc_now(), **values))


def _source(connection: Connection, context: Context, values: Document) -> RowMapping | None:
    """Return the row of the snapshot or volume that a new volume copies; ``None`` if the new volume is no copy.
    Complete the volume's column *values*: type and pool (unless the request names a type), and image metadata. Raises
    ``InvalidRequest``, ``NotFound``."""
    if values.get("snapshot_id"):
        row = get_visible_row(connection, snapshots, context, values["snapshot_id"])
        if row["status"] != "available":
            raise wrong_status(snapshots, row, ("available",))
        origin = connection.execute(select(volumes).where(volumes.c.id == row["volume_id"])).mappings().first()
    elif values.get("source_volid"):
        row = origin = get_visible_row(connection, volumes, context, values["source_volid"])
        if row["status"] not in ("available", "in-use"):
            raise wrong_status(volumes, row, ("available", "in-use"))
        refuse_while_migrating(row)
    else:
        return None
    hidden = origin is not None and origin["encryption_key_id"] is not None
    if hidden and values["volume_type"] and not values["encryption_key_id"]:
        raise InvalidRequest(f"Invalid input received: {row['id']} is encrypted, and volumes of the type "
                             f"{values['volume_type']} are not. A copy has an encrypted type too.")
    if hidden:
        values["encryption_key_id"] = key_id(values["id"])
    if not values["volume_type"]:
        values["volume_type"] = row["volume_type"]
        if origin is not None:
            values.update(pool=origin["pool"], multiattach=values["multiattach"] or origin["multiattach"])
    if origin is not None:
        own_metadata = row["image_metadata"]
        values.setdefault("image_metadata", origin["image_metadata"] if own_metadata is None else own_metadata)
    return row


def begin_delete(connection: Connection, row: RowMapping, cascade: bool = False, force: bool = False,
                 admin: bool = False) -> None:
    """Queue the deletion of the volume *row*. *cascade*: also delete its snapshots. *force*: allow any status. *admin*:
    with *cascade*, also delete snapshots of another project. Such snapshots exist if that project has transferred the
    volume without them. Raises ``InvalidRequest`` if the volume is attached, or has snapshots that may not be deleted.
    """
    id = row["id"]
    # Locked, so that a simultaneous new snapshot is seen here, or sees the deletion.
    connection.execute(select(volumes.c.id).where(volumes.c.id == id).with_for_update())
    used = connection.execute(select(attachments.c.id).where(attachments.c.volume_id == id).limit(1)).first()
    taken = connection.execute(select(snapshots).where(snapshots.c.volume_id == id)).mappings().all()
    if used or (taken and not cascade):
        raise InvalidRequest(f"Invalid volume: Volume {id} must not be attached or have snapshots (asked with cascade, "
                             f"they go too); current status is: {row['status']}.")
    if not admin and any(snapshot["project_id"] != row["project_id"] for snapshot in taken):
        raise InvalidRequest(f"Invalid volume: Volume {id} has snapshots in the project that transferred it. They must "
                             "be deleted first, there or by an administrator.")
    for snapshot in taken:
        queue_volume_task(connection, snapshots, snapshot, "delete", None if force else SNAPSHOTS_DELETABLE,
                          status="deleting")
    queue_volume_task(connection, volumes, row, "delete", None if force else DELETABLE, status="deleting")


def follow_attachments(connection: Connection, volume_id: str) -> None:
    """Update the status of a volume after a change of its attachments. While the volume is extended, reimaged,
    uploaded, backed up or retyped, its status does not change: the new status is saved in ``previous_status``, and set
    at the end of that task."""
    have = set(connection.execute(select(attachments.c.status).where(attachments.c.volume_id == volume_id)).scalars())
    status = next((volume_status for attachment_status, volume_status in FOLLOWING.items()
                   if attachment_status in have), "available")
    connection.execute(update(volumes).where(volumes.c.id == volume_id, volumes.c.status.in_(
        ("available", *FOLLOWING.values()))).values(status=status, updated_at=utc_now()))
    # The volume returns to this status afterwards.
    connection.execute(update(volumes).where(volumes.c.id == volume_id, volumes.c.status.in_(
        ("extending", "downloading", "uploading", "backing-up", "retyping"))).values(previous_status=status))


def volume_image_metadata(image: Document) -> Document:
    """Return the ``volume_image_metadata`` of a volume created from *image*: the image's properties, id, name and some
    other fields, as strings."""
    image_facts = {"image_id": image["id"], "image_name": image.get("name"),
                   **{name: image.get(name) for name in OF_IMAGE[2:]}}
    return {**image.get("properties", {}), **{name: str(value) for name,
                                              value in image_facts.items() if value is not None}}


def attachments_of(connection: Connection, ids: Iterable[str]) -> dict[str, list[RowMapping]]:
    """Return the attachments of the volumes *ids*: {volume id: its attachments, oldest first}, each with the columns in
    ``HELD``."""
    attachments_by_volume: dict[str, list[RowMapping]] = {id: [] for id in ids}
    query = select(*(attachments.c[name] for name in HELD)).where(attachments.c.volume_id.in_(attachments_by_volume))
    for row in connection.execute(query.order_by(attachments.c.created_at, attachments.c.id)).mappings():
        attachments_by_volume[row["volume_id"]].append(row)
    return attachments_by_volume


def documents(connection: Connection, rows: Sequence[RowMapping], attached: bool = True) -> Documents:
    """Convert volume *rows* to documents in the form that ``services.Volumes`` returns. *attached*: whether to include
    the attachments of the volumes."""
    attachments_by_volume = attachments_of(connection, [row["id"] for row in rows]) if attached else {}
    type_ids = type_ids_of_names(connection, (row["volume_type"] for row in rows))
    return [{**{name: row[name] for name in SHOWN}, "volume_type_id": type_ids[row["volume_type"]],
             "pool": row["pool"] or row["volume_type"], "metadata": row["metadata"],
             "volume_image_metadata": row["image_metadata"],
             "attachments": [{name: attachment[name] for name in HELD}
                             for attachment in attachments_by_volume.get(row["id"], ())]} for row in rows]


class VolumeStore(NamedStore):
    table, documents = volumes, staticmethod(documents)

    def summary(self, context: Context, listing: VolumeListing) -> tuple[int, int, dict[str, set[str]]]:
        """Return a summary of the volumes that *listing* selects: (their number, their total size in GiB, {metadata
        key: all its values})."""
        where = listing_condition(context, volumes, listing)
        with self.database.read() as connection:
            count, size = connection.execute(select(func.count(), func.coalesce(func.sum(volumes.c.size), 0))
                                             .select_from(volumes).where(where)).one()
            values: dict[str, set[str]] = {}
            has_metadata = volumes.c.metadata != {}
            for metadata in connection.execute(select(volumes.c.metadata).where(where, has_metadata)).scalars():
                for key, value in metadata.items():
                    values.setdefault(key, set()).add(value)
        return count, size, values

    def delete(self, context: Context, id: str, cascade: bool = False, force: bool = False) -> None:
        """Queue the deletion of a volume. *cascade*: also delete its snapshots. *force*: allow any status, for admins.
        Raises ``NotFound``, ``InvalidRequest``."""
        check_volume_writer(context)
        if force:
            check_admin(context, "volume:force_delete")
        with self.database.write() as connection:
            begin_delete(connection, get_visible_row(connection, volumes, context, id), cascade=cascade, force=force,
                         admin=context.is_admin)
            self.database.notify(connection, VOLUMES_CHANGED)
