# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of volumes: what may become of one, in one transaction each. The work on the host is ``work``'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, delete, func, insert, or_, select, update

from magnetar_control.services import Context, Document
from magnetar_control.store.database import now
from magnetar_control.store.quotas import turn
from magnetar_control.store.tables import quotas
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound, TooLarge

from .tables import attachments, snapshots, volumes

#: Statuses that follow from the attachments.
FOLLOWING = ("available", "reserved", "attaching", "in-use", "detaching")
DELETABLE = ("available", "error", "error_extending", "error_deleting", "error_restoring")
#: Limits of a project where the table ``quotas`` has none; Cinder's defaults.
LIMITS = {"volumes": 10, "gigabytes": 1000, "snapshots": 10}
NOUNS = {"volumes": "Volume", "volume_snapshots": "Snapshot", "volume_attachments": "Volume attachment"}


def own(table: Table, context: Context) -> ColumnElement[bool]:
    """What *context* may see: its project's; for admins everything."""
    mine = table.c.project_id == (context.project_id or "")
    return or_(mine, table.c.id.is_not(None)) if context.is_admin else mine


def seen(connection: Connection, table: Table, context: Context, id: str) -> RowMapping:
    """The row that *context* may see; raises ``NotFound``."""
    row = connection.execute(select(table).where(table.c.id == id, own(table, context))).mappings().first()
    if row is None:
        raise NotFound(f"{NOUNS[table.name]} {id} could not be found.")
    return row


def set_(connection: Connection, table: Table, id: str, **values: Any) -> None:
    """Change a row."""
    connection.execute(update(table).where(table.c.id == id).values(updated_at=now(), **values))


def asked(connection: Connection, table: Table, row: RowMapping, task: str, statuses: Sequence[str] | None = None,
          **values: Any) -> None:
    """Note a task for the worker. Raises ``InvalidRequest`` where the status is none of *statuses*, or has changed."""
    if statuses is not None and row["status"] not in statuses:
        raise wrong_status(table, row, statuses)
    done = connection.execute(update(table).where(table.c.id == row["id"], table.c.status == row["status"]).values(
        task=task, holder=None, lease_until=None, not_before=None, attempts=0, fault=None, updated_at=now(), **values))
    if not done.rowcount:
        raise Conflict(f"{NOUNS[table.name]} {row['id']} was just changed by somebody else; look again.")


def wrong_status(table: Table, row: RowMapping, statuses: Sequence[str]) -> MagnetarError:
    """It is in no state for this."""
    noun = NOUNS[table.name]
    return InvalidRequest(f"Invalid {noun.lower()}: {noun} {row['id']} status must be {' or '.join(statuses)}, but "
                          "current "
                 f"status is: {row['status']}.")


def limits(connection: Connection, project_id: str) -> dict[str, int]:
    """Limits of a project; -1 for none."""
    found = dict(LIMITS)
    rows = connection.execute(select(quotas).where(
        quotas.c.project_id.in_(("default", project_id)), quotas.c.resource.in_(LIMITS))).all()
    for row in sorted(rows, key=lambda row: row.project_id != "default"):
        found[row.resource] = row.limit
    return found


def set_limits(connection: Connection, project_id: str, given: Mapping[str, int | None]) -> None:
    """Set limits of a project; ``None`` is the usual one again."""
    connection.execute(delete(quotas).where(quotas.c.project_id == project_id, quotas.c.resource.in_(given)))
    for resource, number in given.items():
        if number is not None:
            connection.execute(insert(quotas).values(project_id=project_id, resource=resource, limit=number))


def usage(connection: Connection, project_id: str) -> dict[str, int]:
    """What a project has; snapshots count as gigabytes too, as in Cinder."""
    def of(table: Table) -> tuple[int, int]:
        count, size = connection.execute(select(func.count(), func.coalesce(func.sum(table.c.size), 0))
                                         .select_from(table).where(table.c.project_id == project_id)).one()
        return int(count), int(size)

    (count, size), (taken, taken_size) = of(volumes), of(snapshots)
    return {"volumes": count, "gigabytes": size + taken_size, "snapshots": taken}


def within(connection: Connection, project_id: str, **more: int) -> None:
    """Raises ``TooLarge`` (Cinder's over-quota status) where *more* is beyond a limit. What it finds stays true until
    the transaction ends: who wants more in the same project waits."""
    most = limits(connection, project_id)
    if all(most[resource] < 0 for resource in more):
        return
    turn(connection, project_id)
    have = usage(connection, project_id)
    for resource, number in more.items():
        if most[resource] >= 0 and number > 0 and have[resource] + number > most[resource]:
            raise TooLarge(f"Quota exceeded for {resource}: the project has {have[resource]}, asked for {number} "
                        f"more, and may have {most[resource]}.")


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
                             "(current: "
                    f"{row['size']}, extended: {size}).")
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


def document(text: str | None) -> Any:
    """A column with JSON."""
    return orjson.loads(text) if text else {}
