# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - actions take the same first arguments
"""Actions on a volume. Each function takes the connection, the caller, the volume's row, and arguments of its own."""

from __future__ import annotations

import uuid

import orjson
from sqlalchemy import Connection, RowMapping, delete, select

from magnetar_control.services import Context
from magnetar_control.services.quotas import Quotas
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from . import attachments
from .backup_tasks import without_restore
from .migration_rows import cancelled_values
from .rows import checked_metadata, queue_volume_task, set_columns, wrong_status
from .tables import attachments as held
from .tables import volumes
from .volumes import begin_delete, follow_attachments


def extend_volume(connection: Connection, context: Context, row: RowMapping, *, new_size: int, in_use: bool,
                  quota: Quotas) -> None:
    """Queue the extension of the volume *row* to *new_size* GiB. *in_use*: allow the extension while servers have the
    volume (as Cinder does since 3.42). Raises ``InvalidRequest``, and the quota error if *quota* is exceeded."""
    statuses = ("available", "in-use") if in_use else ("available",)
    if row["status"] not in statuses:
        raise wrong_status(volumes, row, statuses)
    if new_size <= row["size"]:
        raise InvalidRequest(f"Invalid input received: New size for extend must be greater than current size. "
                             f"(current: {row['size']}, extended: {new_size}).")
    quota.within(connection, row["project_id"], per_volume_gigabytes=new_size, gigabytes=new_size - row["size"])
    queue_volume_task(connection, volumes, row, "extend", statuses, status="extending", new_size=new_size,
                      previous_status=row["status"])


def reimage_volume(connection: Connection, context: Context, row: RowMapping, *, image_id: str,
                   image_metadata: Document, reimage_reserved: bool = False, request: str | None = None,
                   as_object: bool = False, **_of_image: object) -> None:
    """Queue a task that overwrites the volume *row* with the image *image_id*. *image_metadata*: the volume's new image
    metadata. *reimage_reserved*: allow the task for a reserved volume. *request*: the id of the caller's request; a
    repeated call with the same id does nothing. *as_object*: whether to store the metadata as a JSON object, which
    processes of release 0.1.0 cannot read; otherwise as text."""
    if request and (row["reimage"] or {}).get("request") == request:
        return
    reimage_task = {"request": request or str(uuid.uuid4()), "image_id": image_id,
                    "image_metadata": image_metadata if as_object else orjson.dumps(image_metadata).decode()}
    statuses = ("available", "error", *(("reserved",) if reimage_reserved else ()))
    queue_volume_task(connection, volumes, row, "reimage", statuses, status="downloading", reimage=reimage_task,
                      metadata=without_restore(row["metadata"]))
    follow_attachments(connection, row["id"])


def upload_image(connection: Connection, context: Context, row: RowMapping, *, image_id: str) -> None:
    """Queue the upload of the volume's content to the existing image *image_id*. As in Cinder with its default
    ``enable_force_upload = False``, a volume in use is refused, even with ``force``."""
    queue_volume_task(connection, volumes, row, "upload", ("available",), status="uploading",
                      previous_status=row["status"], upload={"image_id": image_id})


def set_bootable(connection: Connection, context: Context, row: RowMapping, *, bootable: bool) -> None:
    """Set whether servers can boot from the volume."""
    set_columns(connection, volumes, row["id"], bootable=bootable)


def reset_status(connection: Connection, context: Context, row: RowMapping, *, status: str | None = None,
                 attach_status: str | None = None, migration_status: str | None = None) -> None:
    """Set the status of the volume *row*, after an admin has checked the volume. A *status* other than creating or
    deleting also cancels the running task. *attach_status*: "detached" deletes all attachments; "attached" raises
    ``InvalidRequest`` if there are none. *migration_status*: "none" clears this column. If the volume migrates,
    *status* or *migration_status* also cancels the migration, which the worker then undoes."""
    if attach_status == "attached" and not _attachment_ids(connection, row, "attached", "detaching"):
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is attached to no server, and a status attaches it "
                             "to none. Use the Compute API: openstack server add volume.")
    if attach_status == "detached":
        connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    if row["migration"] and (status or migration_status):
        set_columns(connection, volumes, row["id"], **{**cancelled_values(row),
                                                       "status": status or row["previous_status"]})
        return
    values: Document = {} if status in (None, "creating", "deleting") else {"task": None, "lease_until": None}
    set_columns(connection, volumes, row["id"], **({"status": status} if status else {}), **values,
                **({"migration_status": None} if migration_status else {}))


def force_delete_volume(connection: Connection, context: Context, row: RowMapping) -> None:
    """Queue the deletion of the volume in any status, attached or not."""
    connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    begin_delete(connection, row, force=True, admin=True)


def reserve_volume(connection: Connection, context: Context, row: RowMapping) -> None:
    """Reserve the volume *row* for a server that is not named yet (Cinder's os-reserve)."""
    attachments.reserve_attachment(connection, context, row["id"], None)


def unreserve_volume(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete those attachments of the volume *row* that are only reserved or attaching (Cinder's os-unreserve)."""
    for id in _attachment_ids(connection, row, "reserved", "attaching"):
        attachments.remove_attachment(connection, id)


def _attachment_ids(connection: Connection, row: RowMapping, *statuses: str) -> list[str]:
    return list(connection.execute(select(held.c.id).where(
        held.c.volume_id == row["id"], held.c.status.in_(statuses)).order_by(held.c.created_at)).scalars())


def attach_volume(connection: Connection, context: Context, row: RowMapping, *, instance_uuid: str, mode: str = "rw",
                  host_name: str | None = None, mountpoint: str | None = None) -> None:
    """Attach the volume *row* to the server *instance_uuid*, using an existing reservation or a new one (Cinder's
    os-attach, for clients that do not use the attachments API of Cinder 3.27). *mode*: rw or ro. *host_name*: the
    server's host. *mountpoint*: the name of the device in the server."""
    free = _attachment_ids(connection, row, "reserved", "attaching")
    id = free[0] if free else attachments.reserve_attachment(connection, context, row["id"], instance_uuid)["id"]
    set_columns(connection, held, id, server_id=instance_uuid, mode=mode)
    attachments.complete_attachment(connection, id, host_name, mountpoint)


def begin_volume_detaching(connection: Connection, context: Context, row: RowMapping) -> None:
    """Set the status of a volume in use to detaching. Raises ``InvalidRequest`` in another status."""
    attachment_ids = _attachment_ids(connection, row, "attached")
    if row["status"] != "in-use" or not attachment_ids:
        raise wrong_status(volumes, row, ("in-use",))
    for id in attachment_ids:
        set_columns(connection, held, id, status="detaching")
    follow_attachments(connection, row["id"])


def roll_volume_detaching(connection: Connection, context: Context, row: RowMapping) -> None:
    """Set the status of the volume back from detaching to in-use."""
    for id in _attachment_ids(connection, row, "detaching"):
        set_columns(connection, held, id, status="attached")
    follow_attachments(connection, row["id"])


def detach_volume(connection: Connection, context: Context, row: RowMapping, *,
                  attachment_id: str | None = None) -> None:
    """Detach the volume from a server. Raises ``InvalidRequest`` when several servers have it and *attachment_id* is
    missing."""
    attachment_ids = _attachment_ids(connection, row, "attached", "detaching")
    if attachment_id is None and len(attachment_ids) > 1:
        raise InvalidRequest("Invalid volume: The volume is attached to more than one server; attachment_id says from "
                             "which to detach it.")
    if attachment_id is not None and attachment_id not in attachment_ids:
        raise NotFound(f"Volume attachment {attachment_id} could not be found.")
    for id in [attachment_id] if attachment_id else attachment_ids:
        attachments.remove_attachment(connection, id)


def set_readonly(connection: Connection, context: Context, row: RowMapping, *, readonly: bool = True) -> None:
    """Set whether servers may only read the volume."""
    if row["status"] != "available":
        raise wrong_status(volumes, row, ("available",))
    set_columns(connection, volumes, row["id"], readonly=readonly)


def terminate_connection(connection: Connection, context: Context, row: RowMapping, *, connector: Document) -> None:
    """Do nothing (Cinder's os-terminate_connection), because ``os-initialize_connection`` creates no connection here.
    """


def show_image_metadata(connection: Connection, context: Context, row: RowMapping) -> Document:
    """Return {"metadata": image metadata of the volume *row*}, copied from the image when the volume was created."""
    return {"metadata": row["image_metadata"]}


def set_image_metadata(connection: Connection, context: Context, row: RowMapping, *,
                       metadata: Document | None = None) -> Document:
    """Add *metadata* to the image metadata of the volume *row*. Return {"metadata": the complete image metadata}."""
    image_metadata = {**row["image_metadata"], **(metadata or {})}
    set_columns(connection, volumes, row["id"], image_metadata=checked_metadata(image_metadata))
    return {"metadata": image_metadata}


def unset_image_metadata(connection: Connection, context: Context, row: RowMapping, *, key: str | None = None) -> None:
    """Remove *key* from the image metadata of the volume *row*."""
    image_metadata = row["image_metadata"]
    if key not in image_metadata:
        raise NotFound(f"Metadata key {key} is not found.")
    set_columns(connection, volumes, row["id"], image_metadata={
        name: value for name, value in image_metadata.items() if name != key})


#: Actions that take the volume from servers.
FREEING = (detach_volume, unreserve_volume)
#: Actions for admins only, and their names in the policy.
ADMIN = {reset_status: "os-reset_status", force_delete_volume: "os-force_delete"}
