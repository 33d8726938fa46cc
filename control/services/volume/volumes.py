# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes: what may become of one, in one transaction each. ``worker`` does the work on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, func, insert, select, update

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.database import Database, now
from magnetar_core.errors import InvalidRequest

from .listing import VolumeListing, listed, mine
from .quotas import within
from .rows import (
    asked,
    change_metadata,
    check_admin,
    check_writer,
    document,
    seen,
    update_row,
    wrong_status,
)
from .tables import attachments, snapshots, volumes
from .worker import BELL

#: Statuses that follow from the attachments.
FOLLOWING = ("available", "reserved", "attaching", "in-use", "detaching")
#: Columns that are shown.
SHOWN = ("id", "name", "description", "status", "size", "multiattach", "bootable", "host", "volume_type", "readonly",
         "availability_zone", "project_id", "user_id", "snapshot_id", "source_volid", "fault", "created_at",
         "updated_at")
DELETABLE = ("available", "error", "error_extending", "error_deleting", "error_restoring")


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add a volume that is to be made. *values* are columns; its source gives host, size and bootable."""
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
    within(connection, values["project_id"], volumes=1, gigabytes=values["size"])
    connection.execute(insert(volumes).values(status="creating", task="create", created_at=now(), **values))


def _source(connection: Connection, context: Context, values: Document) -> Document | None:
    """What it is made from. A copy lies in the pool's type of its source unless another is asked for."""
    if values.get("snapshot_id"):
        row = seen(connection, snapshots, context, values["snapshot_id"])
        if row["status"] != "available":
            raise wrong_status(snapshots, row, ("available",))
        origin = connection.execute(select(volumes).where(volumes.c.id == row["volume_id"])).mappings().first()
        return _inherited(values, row, origin)
    if values.get("source_volid"):
        row = seen(connection, volumes, context, values["source_volid"])
        if row["status"] not in ("available", "in-use"):
            raise wrong_status(volumes, row, ("available", "in-use"))
        return _inherited(values, row, row)
    return None


def _inherited(values: Document, row: RowMapping, origin: RowMapping | None) -> Document:
    values["volume_type"] = values["volume_type"] or row["volume_type"]
    if origin is not None:
        values.setdefault("image_metadata", origin["image_metadata"])
    return {"host": row["host"], "size": row["size"], "bootable": row["bootable"]}


def begin_delete(connection: Connection, row: RowMapping, cascade: bool = False, force: bool = False) -> None:
    """Note that the volume is to go. Raises ``InvalidRequest`` where it is in use, or snapshots of it would stay."""
    id = row["id"]
    used = connection.execute(select(attachments.c.id).where(attachments.c.volume_id == id).limit(1)).first()
    taken = connection.execute(select(snapshots).where(snapshots.c.volume_id == id)).mappings().all()
    if used or (taken and not cascade):
        raise InvalidRequest(f"Invalid volume: Volume {id} must not be attached or have snapshots (asked with cascade, "
                    f"they go too); current status is: {row['status']}.")
    for one in taken:
        asked(connection, snapshots, one, "delete", None if force else ("available", "error", "error_deleting"),
              status="deleting")
    asked(connection, volumes, row, "delete", None if force else DELETABLE, status="deleting")


def begin_extend(connection: Connection, row: RowMapping, size: int, in_use: bool) -> None:
    """Note that the volume is to grow to *size* GiB; *in_use*: also while servers have it (3.42)."""
    statuses = ("available", "in-use") if in_use else ("available",)
    if row["status"] not in statuses:
        raise wrong_status(volumes, row, statuses)
    if size <= row["size"]:
        raise InvalidRequest(f"Invalid input received: New size for extend must be greater than current size. "
                             f"(current: {row['size']}, extended: {size}).")
    within(connection, row["project_id"], gigabytes=size - row["size"])
    asked(connection, volumes, row, "extend", statuses, status="extending", new_size=size,
          previous_status=row["status"])


def follow(connection: Connection, volume_id: str) -> str:
    """Set the volume's status by its attachments, and return it."""
    rank = {"attached": 3, "detaching": 2, "attaching": 1, "reserved": 0}
    word = {3: "in-use", 2: "detaching", 1: "attaching", 0: "reserved", -1: "available"}
    have = connection.execute(select(attachments.c.status).where(attachments.c.volume_id == volume_id)).scalars()
    status = word[max((rank[one] for one in have), default=-1)]
    connection.execute(update(volumes).where(and_(volumes.c.id == volume_id, volumes.c.status.in_(FOLLOWING)))
                       .values(status=status, updated_at=now()))
    # One that grows goes back to what it is by then.
    connection.execute(update(volumes).where(volumes.c.id == volume_id, volumes.c.status == "extending")
                       .values(previous_status=status))
    return status


def of_image(image: Document) -> Document:
    """``volume_image_metadata`` of an image: its properties and what else is told of it, as texts."""
    told = {"image_id": image["id"], "image_name": image.get("name"),
            **{name: image.get(name) for name in ("checksum", "container_format", "disk_format", "min_disk", "min_ram",
                                                  "size")}}
    return {**image.get("properties", {}), **{name: str(value) for name, value in told.items() if value is not None}}


def documents(connection: Connection, rows: Sequence[RowMapping], attached: bool = True) -> list[Document]:
    """Volumes as ``services.Volumes`` has them; *attached*: with their attachments."""
    held: dict[str, list[Document]] = {row["id"]: [] for row in rows}
    if attached:
        for one in connection.execute(select(attachments).where(attachments.c.volume_id.in_(held)).order_by(
                attachments.c.created_at, attachments.c.id)).mappings():
            held[one["volume_id"]].append({name: one[name] for name in (
                "id", "volume_id", "server_id", "host", "device", "attached_at", "status")})
    return [{**{name: row[name] for name in SHOWN}, "metadata": document(row["metadata"]),
             "volume_image_metadata": document(row["image_metadata"]), "attachments": held[row["id"]]} for row in rows]


class VolumeStore:
    """Volumes, for callers. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def list(self, context: Context, listing: VolumeListing = VolumeListing(),  # noqa: B008 - it is frozen
             attached: bool = True) -> tuple[Documents, int | None]:
        """A page of volumes, and how many there are on all pages where that is asked; *attached*: with attachments."""
        with self.database.read() as connection:
            rows, count = listed(connection, context, volumes, listing)
            return documents(connection, rows, attached), count

    def summary(self, context: Context, listing: VolumeListing) -> tuple[int, int, dict[str, set[str]]]:
        """How many, how large together, and all values of each key of their metadata."""
        where = mine(context, volumes, listing)
        with self.database.read() as connection:
            count, size = connection.execute(select(func.count(), func.coalesce(func.sum(volumes.c.size), 0))
                                             .select_from(volumes).where(where)).one()
            texts = connection.execute(select(volumes.c.metadata).where(where, volumes.c.metadata != "{}")).scalars()
            values: dict[str, set[str]] = {}
            for text in texts:
                for key, value in document(text).items():
                    values.setdefault(key, set()).add(value)
        return count, size, values

    def show(self, context: Context, id: str) -> Document:
        """One. Raises ``NotFound``."""
        with self.database.read() as connection:
            return documents(connection, [seen(connection, volumes, context, id)])[0]

    def update(self, context: Context, id: str, **values: Any) -> None:
        """Change name, description or metadata."""
        update_row(self.database, volumes, context, id, values)

    def change_metadata(self, context: Context, id: str, change: Callable[[Document], Document]) -> Document:
        """Change the metadata to what *change* makes of it."""
        return change_metadata(self.database, volumes, context, id, change)

    def delete(self, context: Context, id: str, cascade: bool = False, force: bool = False) -> None:
        """Note that it is to go; *cascade*: with its snapshots; *force*: in any status, for admins."""
        check_writer(context)
        if force:
            check_admin(context, "volume:force_delete")
        with self.database.write() as connection:
            row = seen(connection, volumes, context, id)
            begin_delete(connection, row, cascade=cascade, force=force)
            self.database.ring(connection, BELL)
