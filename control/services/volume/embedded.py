# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes for servers, as the API and the conductors ask for them (``services.Volumes``)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import Select, select

from magnetar_control.agents import Agents
from magnetar_control.services import Context, Document, Images
from magnetar_control.store.database import Database
from magnetar_control.store.tables import API
from magnetar_control.web import Request
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

from . import attachments, volumes
from .application import Application
from .snapshots import begin
from .tables import attachments as attachment_rows
from .tables import snapshots
from .tables import volumes as table
from .types import Types
from .work import BELL, Hosts, Reach, Worker

GIB = 2**30
TABLES = ("volumes", "volume_snapshots", "volume_attachments", "quotas")


class Embedded:
    """Volumes in the API *database*, their content on compute hosts. *hosts* gives [{name, endpoint, disk_gb_free,
    up}], *ensure_image* (host, image's uuid) has a host have an image, *images* shows images, *pools* are those of the
    agents, the default one first."""

    def __init__(self, database: Database, hosts: Hosts, agents: Agents, ensure_image: Callable[[str, str], None],
                 images: Images | None = None, pools: Sequence[str] = ("default",), zone: str = "nova",
                 pause: float = 2.0) -> None:
        self.database, self.images, self.zone = database, images, zone
        self.reach = Reach(hosts, agents, ensure_image)
        self.types = Types(tuple(pools))
        self.worker = Worker(database, self.reach, pause)

    def create_tables(self) -> None:
        """Make the tables that are not there."""
        API.create_all(self.database.engine, [one for one in API.sorted_tables if one.name in TABLES])

    def application(self, authenticate: Callable[[Request], None]) -> Application:
        """What is mounted at ``/volume``; *authenticate* sets ``request.context`` or raises ``Unauthenticated``."""
        return Application(self, authenticate)

    def start(self, threads: int = 4) -> None:
        """Work in the background from now on; what a process that died has left is gone on with."""
        self.worker.start(threads)

    def stop(self) -> None:
        """End the work in the background."""
        self.worker.stop()

    def work(self) -> int:
        """Do all that can be done now; how many tasks that were."""
        return self.worker.work()

    def show(self, context: Context, id: str) -> Document | None:
        """See ``services.Volumes``."""
        with self.database.read() as connection:
            row = connection.execute(_one(context, id)).mappings().first()
            return plain(row, attachments.of(connection, [id])[id]) if row else None

    def snapshot(self, context: Context, id: str) -> Document | None:
        """See ``services.Volumes``."""
        with self.database.read() as connection:
            row = connection.execute(select(snapshots).where(
                snapshots.c.id == id, volumes.own(snapshots, context))).mappings().first()
        return {name: row[name] for name in ("id", "name", "volume_id", "size", "status", "bootable", "host")} if row \
            else None

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """See ``services.Volumes``. Raises ``NotFound``, 400 when the volume is not ready, 413."""
        id = fields.get("id") or str(uuid.uuid4())
        there = self.snapshot(context, id)
        if there is None:
            with self.database.write() as connection:
                row = volumes.seen(connection, table, context, volume_id)
                if row["status"] not in ("available", "in-use"):
                    raise volumes.wrong_status(table, row, ("available", "in-use"))
                begin(connection, context, row, id, name=fields.get("name"))
                self.database.ring(connection, BELL)
            there = self.snapshot(context, id)
        assert there is not None
        return there

    def delete_snapshot(self, context: Context, id: str) -> None:
        """See ``services.Volumes``."""
        with self.database.write() as connection:
            row = connection.execute(select(snapshots).where(
                snapshots.c.id == id, volumes.own(snapshots, context))).mappings().first()
            if row is not None and row["status"] != "deleting":
                volumes.asked(connection, snapshots, row, "delete", status="deleting")
                self.database.ring(connection, BELL)

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """See ``services.Volumes``; besides: description, metadata, multiattach, availability_zone, bootable. Asked
        twice with one *id*, the same volume. Content of a snapshot or volume stays on its host."""
        id = fields.get("id") or str(uuid.uuid4())
        there = self.show(context, id)
        if there is None:
            values = self._values(context, id, size, fields)
            with self.database.write() as connection:
                volumes.create(connection, context, values)
                self.database.ring(connection, BELL)
            there = self.show(context, id)
        assert there is not None
        return there

    def _values(self, context: Context, id: str, size: int, fields: Document) -> Document:
        """The columns of a volume to be made, from what was asked."""
        sources = [name for name in ("image_id", "snapshot_id", "source_volume_id") if fields.get(name)]
        if len(sources) > 1:
            raise InvalidRequest(f"A volume is made from one thing; {' and '.join(sources)} were given.")
        given, copied = fields.get("volume_type"), fields.get("snapshot_id") or fields.get("source_volume_id")
        values: Document = {
            "id": id, "project_id": context.project_id or "", "user_id": context.user_id, "size": size,
            "name": fields.get("name"), "description": fields.get("description"), "host": fields.get("host"),
            "metadata": orjson.dumps(fields.get("metadata") or {}).decode(),
            "multiattach": bool(fields.get("multiattach")), "image_id": fields.get("image_id"),
            "availability_zone": fields.get("availability_zone") or self.zone,
            "snapshot_id": fields.get("snapshot_id"), "source_volid": fields.get("source_volume_id"),
            "volume_type": None if copied and not given else self.types.named(given)}
        if fields.get("image_id"):
            values.update(self._of_image(context, fields["image_id"], size))
        elif not sources:
            values["bootable"] = bool(fields.get("bootable"))
        if not values["host"] and not copied:
            values["host"] = self.reach.roomiest()
        return values

    def _of_image(self, context: Context, id: str, size: int) -> Document:
        image = self.images.show(context, id) if self.images else None
        if image is None:
            raise InvalidRequest(f"Invalid image identifier or unable to access requested image: {id}.")
        if image["status"] != "active":
            raise InvalidRequest(f"Invalid input received: Image {id} is not active; it is {image['status']}.")
        least = max(image.get("min_disk") or 0, -(-(image.get("virtual_size") or image.get("size") or 0) // GIB))
        if size < least:
            raise InvalidRequest(f"Invalid input received: Image {id} needs {least} GiB; the volume is to have {size}.")
        return {"bootable": True, "image_metadata": orjson.dumps(volumes.of_image(image)).decode()}

    def wait(self, id: str, limit: float) -> Document:
        """See ``services.Volumes``. Where nobody is at it, it is made here."""
        deadline = time.monotonic() + limit
        while True:
            seen = self.database.bell.count(BELL)
            with self.database.read() as connection:
                row = connection.execute(select(table).where(table.c.id == id)).mappings().first()
                if row is not None and row["status"] not in ("creating", "error"):
                    return plain(row, attachments.of(connection, [id])[id])
            if row is None or row["status"] == "error":
                why = f" {row['fault']}" if row is not None and row["fault"] else ""
                raise InvalidRequest(f"Volume {id} could not be made.{why}" if row is not None else
                            f"Volume {id} could not be found; it was deleted while it was made.")
            if time.monotonic() >= deadline:
                raise InvalidRequest(f"Volume {id} was not made within {limit:g} s; it is still being made.")
            if not self.worker.step(id):
                self.worker.rest(seen, min(0.5, max(deadline - time.monotonic(), 0.01)))

    def reserve(self, context: Context, id: str, server_id: str, **fields: Any) -> Document:
        """See ``services.Volumes``; *fields*: ``attachment_id``, drawn unless given, and ``mode`` (rw, ro).
        Asked twice for one server, the same attachment."""
        with self.database.write() as connection:
            held = attachments.of(connection, [id])[id]
            row = next((one for one in held if one["server_id"] == server_id), None)
            if row is None or fields.get("attachment_id") not in (None, row["id"]):
                row = attachments.reserve(connection, context, id, server_id, fields.get("attachment_id"),
                                          fields.get("mode", "rw"))
            volume = volumes.seen(connection, table, context, id)
            return {"id": row["id"], "volume": plain(volume, attachments.of(connection, [id])[id])}

    def attached(self, attachment_id: str, host: str, device: str) -> None:
        """See ``services.Volumes``."""
        with self.database.write() as connection:
            attachments.complete(connection, attachment_id, host, device)

    def detached(self, attachment_id: str) -> None:
        """See ``services.Volumes``."""
        with self.database.write() as connection:
            attachments.drop(connection, attachment_id)

    def users(self) -> dict[str, str]:
        """See ``services.Volumes``."""
        held = attachment_rows
        with self.database.read() as connection:
            return {row.id: row.server_id for row in connection.execute(select(held.c.id, held.c.server_id).where(
                held.c.server_id.is_not(None)))}

    def has_type(self, _context: Context, name: str) -> bool:
        """See ``services.Volumes``."""
        return any(name in (one, self.types.id(one)) for one in self.types.pools)

    def where(self, id: str) -> str:
        """See ``services.Volumes``; raises ``NotFound`` where there is no such volume, 409 before it has a host."""
        with self.database.read() as connection:
            row = connection.execute(select(table.c.host).where(table.c.id == id)).first()
        if row is None:
            raise NotFound(f"Volume {id} could not be found.")
        if not row.host:
            raise Conflict(f"Volume {id} is on no host yet.")
        return str(row.host)

    def delete(self, context: Context, id: str) -> None:
        """See ``services.Volumes``; also one that is still being made. Asked twice, nothing more."""
        with self.database.write() as connection:
            row = connection.execute(_one(context, id)).mappings().first()
            if row is not None and row["status"] != "deleting":
                volumes.begin_delete(connection, row, force=row["status"] == "creating")
                self.database.ring(connection, BELL)


def _one(context: Context, id: str) -> Select[Any]:
    return select(table).where(table.c.id == id, volumes.own(table, context))


def plain(row: Any, held: Sequence[Any]) -> Document:
    """A volume as ``services.Volumes`` has it."""
    names = ("id", "name", "description", "status", "size", "multiattach", "bootable", "host", "volume_type",
             "readonly", "availability_zone", "project_id", "user_id", "snapshot_id", "source_volid", "fault",
             "created_at")
    return {**{name: row[name] for name in names}, "metadata": volumes.document(row["metadata"]),
            "volume_image_metadata": volumes.document(row["image_metadata"]),
            "attachments": [{name: one[name] for name in ("id", "server_id", "device", "attached_at", "status")}
                            for one in held]}
