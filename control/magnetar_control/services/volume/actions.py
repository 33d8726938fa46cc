# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - actions take the same first arguments
"""Actions of a volume: each takes the connection, who asks, the volume's row, and arguments of its own."""

from __future__ import annotations

import uuid

import orjson
from sqlalchemy import Connection, RowMapping, delete, select

from magnetar_control.services import Context, Document
from magnetar_control.services.quotas import Quotas
from magnetar_core.errors import InvalidRequest, NotFound

from . import attachments
from .rows import asked, document, metadata_text, set_, wrong_status
from .tables import attachments as held
from .tables import volumes
from .volumes import begin_delete, follow


def extend(connection: Connection, context: Context, row: RowMapping, *, new_size: int, in_use: bool,
           quota: Quotas) -> None:
    """Have it grow to *new_size* GiB; *in_use*: also while servers have it (3.42)."""
    statuses = ("available", "in-use") if in_use else ("available",)
    if row["status"] not in statuses:
        raise wrong_status(volumes, row, statuses)
    if new_size <= row["size"]:
        raise InvalidRequest(f"Invalid input received: New size for extend must be greater than current size. "
                             f"(current: {row['size']}, extended: {new_size}).")
    quota.within(connection, row["project_id"], per_volume_gigabytes=new_size, gigabytes=new_size - row["size"])
    asked(connection, volumes, row, "extend", statuses, status="extending", new_size=new_size,
          previous_status=row["status"])


def reimage(connection: Connection, context: Context, row: RowMapping, *, image_id: str, image_metadata: str,
            reimage_reserved: bool = False, request: str | None = None, **_of_image: object) -> None:
    """Have its content, which is lost, made anew from an image. *reimage_reserved*: also while it is kept for a server.
    Nothing for a *request* that has asked before."""
    if request and document(row["reimage"]).get("request") == request:
        return
    told = {"request": request or str(uuid.uuid4()), "image_id": image_id, "image_metadata": image_metadata}
    statuses = ("available", "error", *(("reserved",) if reimage_reserved else ()))
    asked(connection, volumes, row, "reimage", statuses, status="downloading", reimage=orjson.dumps(told).decode())
    follow(connection, row["id"])


def upload_image(connection: Connection, context: Context, row: RowMapping, *, image_id: str) -> None:
    """Have it copied into the image, which is queued. As in Cinder with its default ``enable_force_upload = False``, a
    volume in use is refused, also with ``force``."""
    asked(connection, volumes, row, "upload", ("available",), status="uploading", previous_status=row["status"],
          upload=orjson.dumps({"image_id": image_id}).decode())


def set_bootable(connection: Connection, context: Context, row: RowMapping, *, bootable: bool) -> None:
    """Say whether servers can boot from it."""
    set_(connection, volumes, row["id"], bootable=bootable)


def reset_status(connection: Connection, context: Context, row: RowMapping, *, status: str | None = None,
                 attach_status: str | None = None) -> None:
    """Set the status, as an admin who has looked. What the worker was to do is dropped, unless the status says that it
    still is to be done."""
    if attach_status == "attached" and not _those(connection, row, "attached", "detaching"):
        raise InvalidRequest(f"Invalid volume: Volume {row['id']} is attached to no server, and a status attaches it "
                             "to none. Use the Compute API: openstack server add volume.")
    if attach_status == "detached":
        connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    values: Document = {} if status in (None, "creating", "deleting") else {"task": None, "lease_until": None}
    set_(connection, volumes, row["id"], **({"status": status} if status else {}), **values)


def force_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Have it go, in any status, attached or not."""
    connection.execute(delete(held).where(held.c.volume_id == row["id"]))
    begin_delete(connection, row, force=True)


def reserve(connection: Connection, context: Context, row: RowMapping) -> None:
    """Keep it for some server."""
    attachments.reserve(connection, context, row["id"], None)


def unreserve(connection: Connection, context: Context, row: RowMapping) -> None:
    """Keep it no longer."""
    for id in _those(connection, row, "reserved", "attaching"):
        attachments.drop(connection, id)


def _those(connection: Connection, row: RowMapping, *statuses: str) -> list[str]:
    return list(connection.execute(select(held.c.id).where(
        held.c.volume_id == row["id"], held.c.status.in_(statuses)).order_by(held.c.created_at)).scalars())


def attach(connection: Connection, context: Context, row: RowMapping, *, instance_uuid: str, mode: str = "rw",
           host_name: str | None = None, mountpoint: str | None = None) -> None:
    """What was reserved becomes a server's: Nova before attachments (Cinder 3.27), and tools."""
    free = _those(connection, row, "reserved", "attaching")
    id = free[0] if free else attachments.reserve(connection, context, row["id"], instance_uuid)["id"]
    set_(connection, held, id, server_id=instance_uuid, mode=mode)
    attachments.complete(connection, id, host_name, mountpoint)


def begin_detaching(connection: Connection, context: Context, row: RowMapping) -> None:
    """Servers let go of it soon."""
    those = _those(connection, row, "attached")
    if row["status"] != "in-use" or not those:
        raise wrong_status(volumes, row, ("in-use",))
    for id in those:
        set_(connection, held, id, status="detaching")
    follow(connection, row["id"])


def roll_detaching(connection: Connection, context: Context, row: RowMapping) -> None:
    """Servers keep it after all."""
    for id in _those(connection, row, "detaching"):
        set_(connection, held, id, status="attached")
    follow(connection, row["id"])


def detach(connection: Connection, context: Context, row: RowMapping, *, attachment_id: str | None = None) -> None:
    """A server has it no more."""
    those = _those(connection, row, "attached", "detaching")
    if attachment_id is None and len(those) > 1:
        raise InvalidRequest("Invalid volume: The volume is attached to more than one server; attachment_id says from "
                             "which to detach it.")
    if attachment_id is not None and attachment_id not in those:
        raise NotFound(f"Volume attachment {attachment_id} could not be found.")
    for id in [attachment_id] if attachment_id else those:
        attachments.drop(connection, id)


def set_readonly(connection: Connection, context: Context, row: RowMapping, *, readonly: bool = True) -> None:
    """Say whether servers may only read it."""
    if row["status"] != "available":
        raise wrong_status(volumes, row, ("available",))
    set_(connection, volumes, row["id"], readonly=readonly)


def terminate_connection(connection: Connection, context: Context, row: RowMapping, *, connector: Document) -> None:
    """Accept the end of a connection. No connection exists: ``os-initialize_connection`` makes none here."""


def show_image_metadata(connection: Connection, context: Context, row: RowMapping) -> Document:
    """What it has of the image that it was made from."""
    return {"metadata": document(row["image_metadata"])}


def set_image_metadata(connection: Connection, context: Context, row: RowMapping, *,
                       metadata: Document | None = None) -> Document:
    """Add to the metadata of its image."""
    found = {**document(row["image_metadata"]), **(metadata or {})}
    set_(connection, volumes, row["id"], image_metadata=metadata_text(found))
    return {"metadata": found}


def unset_image_metadata(connection: Connection, context: Context, row: RowMapping, *, key: str | None = None) -> None:
    """Remove a key from the metadata of its image."""
    found = document(row["image_metadata"])
    if key not in found:
        raise NotFound(f"Metadata key {key} is not found.")
    del found[key]
    set_(connection, volumes, row["id"], image_metadata=orjson.dumps(found).decode())


#: Actions that free the volume of servers.
FREEING = (detach, unreserve)
#: Actions that only admins do, with the names by which the policy knows them.
ADMIN = {reset_status: "os-reset_status", force_delete: "os-force_delete"}
