# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes for servers, as the API and the conductors ask for them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.agents import Agents
from magnetar_control.services import Context, Document, Images, KeyManager
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound
from magnetar_core.flows import Sure, always
from magnetar_core.image_format import is_encrypted

from . import attachments, quotas, volumes
from .actions import ADMIN, FREEING, extend, reimage, upload_image
from .rows import OWN, VolumeListing, asked, check_admin, check_writer, document, found, mine, own, seen, wrong_status
from .snapshots import SnapshotStore, begin
from .tables import attachments as held
from .tables import snapshots
from .tables import volumes as table
from .types import TypeStore, VolumeType
from .volumes import VolumeStore, attachments_of, documents
from .worker import BELL, Hosts, Reach, Worker

GIB = 2**30
#: Image property: the type of volumes that are made of it, unless the request says one (LCH-40).
TYPE = "cinder_img_volume_type"
#: Statuses of a volume whose content is on its way.
MAKING = ("creating", "downloading")


class EmbeddedVolumes:
    """See ``services.Volumes``; in the API *database*, their content on compute hosts. *hosts* gives [{name, endpoint,
    disk_gb, disk_gb_free, up}], *ensure_image* (host, image's uuid) has a host have an image, *images* shows images,
    *pools* are those of the agents, the default one first; *used* says whether a server has an attachment; *limits*:
    see ``quotas.of``; *keys* has the keys of encrypted ones."""

    def __init__(self, database: Database, hosts: Hosts, agents: Agents, ensure_image: Callable[[str, str], None],
                 images: Images | None = None, pools: Sequence[str] = ("default",), zone: str = "nova",
                 pause: float = 2.0, used: attachments.Used = lambda _server, _attachment: False,
                 limits: Mapping[str, int] | None = None, keys: KeyManager | None = None) -> None:
        self.database, self.images, self.zone = database, images, zone
        self.quota = quotas.of(limits or {})
        self.reach = Reach(hosts, agents, ensure_image, images, keys)
        self.types = TypeStore(database, tuple(pools))
        self.volumes, self.snapshots = VolumeStore(database), SnapshotStore(database)
        self.attachments = attachments.AttachmentStore(database, used)
        self.show, self.snapshot = self.volumes.find, self.snapshots.find
        self.worker = Worker(database, self.reach, pause)

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """*fields* besides: description, metadata, ``in_use`` (false: not of a volume in use). Raises ``NotFound``,
        ``InvalidRequest`` when the volume is not ready, ``TooLarge``."""
        id = fields.get("id") or str(uuid.uuid4())
        if there := self.snapshot(context, id):
            return there
        with self.database.write() as connection:
            attachments.lock(connection, volume_id)
            row = seen(connection, table, context, volume_id)
            statuses = ("available", "in-use", "detaching") if fields.get("in_use", True) else ("available",)
            if row["status"] not in statuses:
                raise wrong_status(table, row, statuses)
            self.quota.within(connection, row["project_id"], snapshots=1, gigabytes=row["size"])
            begin(connection, context, row, id, name=fields.get("name"), description=fields.get("description"),
                  metadata=orjson.dumps(fields.get("metadata") or {}).decode())
            self.database.ring(connection, BELL)
        return self.snapshots.show(context, id)

    def delete_snapshot(self, context: Context, id: str) -> None:
        with self.database.write() as connection:
            row = found(connection, snapshots, context, id)
            if row is not None and row["status"] != "deleting":
                asked(connection, snapshots, row, "delete", status="deleting")
                self.database.ring(connection, BELL)

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """*fields* besides: description, metadata, multiattach, hints {same_host, different_host: uuids of volumes},
        ``image_names_type`` (false: whatever type the image names does not count, for it may not be the caller's).
        Asked twice with one *id*, the same volume. Content of a snapshot or volume stays on its host."""
        id = fields.get("id") or str(uuid.uuid4())
        if there := self.show(context, id):
            return there
        values, chosen = self._values(context, id, size, fields)
        with self.database.write() as connection:
            volumes.create(connection, context, self.quota, values)
            if chosen is not None:
                chosen.check_volume(values["size"], self.zone)
            self.database.ring(connection, BELL)
        return self.volumes.show(context, id)

    def _values(self, context: Context, id: str, size: int, fields: Document) -> tuple[Document, VolumeType | None]:
        """The columns of a volume to be made, from what was asked, and the type; ``None``: the type of its source."""
        if fields.get("image_id") and (snapshot_id := self._snapshot_of_image(context, fields["image_id"])):
            fields = {**fields, "image_id": None, "snapshot_id": snapshot_id}
        sources = [name for name in ("image_id", "snapshot_id", "source_volume_id") if fields.get(name)]
        if len(sources) > 1:
            raise InvalidRequest(f"A volume is made from one thing; {' and '.join(sources)} were given.")
        given, copied = fields.get("volume_type"), fields.get("snapshot_id") or fields.get("source_volume_id")
        values: Document = {
            "id": id, "project_id": context.project_id or "", "user_id": context.user_id, "size": size,
            "name": fields.get("name"), "description": fields.get("description"), "host": fields.get("host"),
            "metadata": orjson.dumps(fields.get("metadata") or {}).decode(),
            "multiattach": bool(fields.get("multiattach")), "image_id": fields.get("image_id"),
            "snapshot_id": fields.get("snapshot_id"), "source_volid": fields.get("source_volume_id"),
            "availability_zone": self.zone}
        if fields.get("image_id"):
            values.update(self._of_image(context, fields["image_id"], size))
            by_image = fields.get("image_names_type", True)
            if not given and by_image and (named := document(values["image_metadata"]).get(TYPE)):
                if not self.types.has(context, named):
                    raise InvalidRequest(f"Invalid input received: the property {TYPE} of image {fields['image_id']} "
                                         f"names the volume type {named[:80]}, which could not be found. Give another "
                                         "volume_type.")
                given = named
        chosen = None if copied and not given else self.types.find(context, given)
        values.update(volume_type=chosen and chosen.name, pool=chosen and chosen.pool,
                      multiattach=values["multiattach"] or bool(chosen and chosen.multiattach),
                      encryption_key_id=volumes.key_id(id) if chosen and chosen.encryption else None)
        near = self._near(context, fields.get("hints") or {})
        if not values["host"] and not copied:
            values["host"] = self.reach.roomiest(near)
        if near:
            store: SnapshotStore | VolumeStore = self.snapshots if fields.get("snapshot_id") else self.volumes
            lies = store.show(context, copied)["host"] if copied else values["host"]
            if not lies or not near(lies):
                raise InvalidRequest("Invalid input received: No host that is up is as scheduler_hints ask; a copy "
                                     "lies on the host of its source.")
        return values, chosen

    def _near(self, context: Context, hints: Mapping[str, Sequence[str]]) -> Callable[[str], bool] | None:
        """Whether a host holds one of the volumes ``same_host`` and none of ``different_host``. Raises ``NotFound``."""
        if not any(hints.values()):
            return None
        host_of = self.volumes.hosts(context, {id for ids in hints.values() for id in ids})
        same, different = ({host_of[id] for id in hints.get(name, ())} - {None}
                           for name in ("same_host", "different_host"))
        return lambda host: (not hints.get("same_host") or host in same) and host not in different

    def _snapshot_of_image(self, context: Context, id: str) -> str | None:
        """Return the snapshot of the root volume that an image of a volume-backed server names, as Cinder does: such an
        image has no content. ``None`` for another image. The snapshot belongs to the project of the volume or of the
        image: conductors ask as administrators, and whoever makes an image writes any uuid into it. Raises
        ``NotFound``."""
        image = (self.images.show(context, id) if self.images else None) or {}
        mapping = (image.get("properties") or {}).get("block_device_mapping")
        if not mapping or image.get("size"):
            return None
        try:
            blocks = orjson.loads(mapping)
            found = next((one.get("snapshot_id") for one in blocks if one.get("boot_index") == 0), None)
        except (ValueError, TypeError, AttributeError):
            found = None
        if not found:
            return None
        with self.database.read() as connection:
            project = connection.execute(select(snapshots.c.project_id).where(snapshots.c.id == str(found))).scalar()
        if project not in (context.project_id, image.get("owner")):
            raise NotFound(f"Snapshot {str(found)[:80]}, which image {id} names, could not be found.")
        return str(found)

    def _of_image(self, context: Context, id: str, size: int) -> Document:
        image = self.images.show(context, id) if self.images else None
        if image is None:
            raise InvalidRequest(f"Invalid image identifier or unable to access requested image: {id}.")
        if image["status"] != "active":
            raise InvalidRequest(f"Invalid input received: Image {id} is not active; it is {image['status']}.")
        if image.get("size") == 0:
            raise InvalidRequest(f"Invalid input received: Image {id} has no content, as that of a server on volumes; "
                                 "the snapshot in its block_device_mapping has it.")
        if is_encrypted(image):
            raise InvalidRequest(f"Invalid input received: The content of image {id} is encrypted, as it is the root "
                                 "disk of a shelved server. Unshelve that server, or use another image.")
        least = max(image.get("min_disk") or 0, -(-(image.get("virtual_size") or image.get("size") or 0) // GIB))
        if size < least:
            raise InvalidRequest(f"Invalid input received: Image {id} needs {least} GiB; the volume is to have {size}.")
        return {"bootable": True, "image_metadata": orjson.dumps(volumes.of_image(image)).decode()}

    def act(self, context: Context, id: str, action: Callable[..., Document | None], **given: Any) -> Document | None:
        check_writer(context)
        if action in ADMIN:
            check_admin(context, ADMIN[action])
        if action in FREEING:
            with self.database.read() as connection:
                seen(connection, table, context, id)
                held = volumes.attachments_of(connection, [id])[id]
            named = given.get("attachment_id")
            attachments.check_free(context, self.attachments.used, [
                one for one in held if named in (None, one["id"])])
        if action is extend:
            given["quota"] = self.quota
        if action is reimage:
            size = self.volumes.show(context, id)["size"]
            given.update(self._of_image(context, given["image_id"], size))
        with self.database.write() as connection:
            attachments.lock(connection, id)
            said = action(connection, context, seen(connection, table, context, id), **given)
            self.database.ring(connection, BELL)
        return said

    def upload_image(self, context: Context, id: str, name: str, **fields: Any) -> Document:
        """Have an image made of a volume that is available; *fields*: disk_format, container_format, visibility,
        protected. It has the properties of the image that the volume was made from. Returns both: {volume, image}.
        Raises what making the image raises, and ``InvalidRequest``."""
        check_writer(context)
        volume = self.volumes.show(context, id)
        if self.images is None or volume["status"] != "available":  # before the image is there
            raise wrong_status(table, volume, ("available",))
        if volume["encryption_key_id"]:
            raise InvalidRequest(f"Invalid volume: Volume {id} is encrypted, and no image is made of it, as that would "
                                 "hold its content in clear text. In a server, copy what is needed to another volume.")
        told = volume["volume_image_metadata"]
        least_disk, least_ram = (int(told.get(one) or 0) for one in ("min_disk", "min_ram"))
        image = self.images.create(context, name, **fields, min_disk=least_disk, min_ram=least_ram, properties={
            one: value for one, value in told.items() if one not in volumes.OF_IMAGE})
        try:
            self.act(context, id, upload_image, image_id=image["id"])
        except MagnetarError:
            self.images.fail(image["id"], "The volume was not available any more.")
            raise
        return {"volume": self.volumes.show(context, id), "image": image}

    def is_uploading(self, image_id: str) -> bool:
        with self.database.read() as connection:
            return connection.execute(select(table.c.id).where(
                table.c.task == "upload", table.c.upload.contains(image_id, autoescape=True)).limit(1)).first() \
                is not None

    def wait(self, id: str, limit: float) -> Document:
        """Where nobody is at it, it is made here."""
        deadline = time.monotonic() + limit
        while True:
            seen = self.database.bell.count(BELL)
            with self.database.read() as connection:
                row = connection.execute(select(table).where(table.c.id == id)).mappings().first()
                if row is not None and row["status"] not in (*MAKING, "error"):
                    return documents(connection, [row])[0]
            if row is None or row["status"] == "error":
                why = f" {row['fault']}" if row is not None and row["fault"] else ""
                raise InvalidRequest(f"Volume {id} could not be made.{why}" if row is not None else
                                     f"Volume {id} could not be found; it was deleted while it was made.")
            if time.monotonic() >= deadline:
                raise InvalidRequest(f"Volume {id} was not made within {limit:g} s; it is still being made.")
            if not self.worker.step(id):
                self.worker.rest(seen, min(0.5, max(deadline - time.monotonic(), 0.01)))

    def reimage(self, context: Context, id: str, image_id: str, request: str) -> None:
        self.act(context, id, reimage, image_id=image_id, reimage_reserved=True, request=request)

    def reimaged(self, id: str, request: str) -> bool:
        with self.database.read() as connection:
            told = document(connection.execute(select(table.c.reimage).where(table.c.id == id)).scalar())
        return bool(told.get("request") == request and told.get("done"))

    def reserve(self, context: Context, id: str, server_id: str, sure: Sure = always, **fields: Any) -> Document:
        """*fields*: ``attachment_id``, drawn unless given. Asked twice for one server, the same attachment."""
        with self.database.write() as connection:
            row = next((one for one in attachments_of(connection, [id])[id] if one["server_id"] == server_id), None)
            if row is None or fields.get("attachment_id") not in (None, row["id"]):
                row = attachments.reserve(connection, context, id, server_id, fields.get("attachment_id"))
            sure()
            return {"id": row["id"], "volume": documents(connection, [seen(connection, table, context, id)])[0]}

    def attached(self, attachment_id: str, host: str, device: str, sure: Sure = always) -> None:
        with self.database.write() as connection:
            attachments.complete(connection, attachment_id, host, device)
            sure()

    def begin_detaching(self, attachment_id: str, sure: Sure = always) -> None:
        with self.database.write() as connection:
            attachments.begin_detaching(connection, attachment_id)
            sure()

    def roll_detaching(self, attachment_id: str, sure: Sure = always) -> None:
        with self.database.write() as connection:
            attachments.roll_detaching(connection, attachment_id)
            sure()

    def disconnected(self, attachment_id: str, sure: Sure = always) -> None:
        with self.database.write() as connection:
            attachments.disconnect(connection, attachment_id)
            sure()

    def detached(self, attachment_id: str, sure: Sure = always) -> None:
        with self.database.write() as connection:
            attachments.drop(connection, attachment_id)
            sure()

    def quotas(self, project_id: str) -> tuple[dict[str, int], dict[str, int]]:
        with self.database.read() as connection:
            return self.quota.limits(connection, project_id), self.quota.used(connection, project_id)

    def set_quotas(self, project_id: str, given: Mapping[str, int | None]) -> dict[str, int]:
        """Set limits of a project (``None``: the usual one again); all that it has then."""
        with self.database.write() as connection:
            return self.quota.set(connection, project_id, given)

    def messages(self, context: Context, listing: VolumeListing = OWN) -> list[tuple[str, Document]]:
        """Volumes and snapshots that failed, the latest first; of the projects, and by the columns, that *listing* asks
        for."""
        with self.database.read() as connection:
            found = [(noun, {**row}) for rows, noun in ((table, "VOLUME"), (snapshots, "VOLUME_SNAPSHOT"))
                     for row in connection.execute(rows.select().where(
                         mine(context, rows, listing), rows.c.fault.is_not(None),
                         *(rows.c[name] == value for name, value in listing.filters.items()))).mappings()]
        return sorted(found, key=lambda one: (one[1]["updated_at"] or one[1]["created_at"], one[1]["id"]), reverse=True)

    def forget(self, context: Context, id: str) -> None:
        """The message of a volume or snapshot that the caller may see is not told any more. Raises ``NotFound``."""
        check_writer(context)
        with self.database.write() as connection:
            for rows in (table, snapshots):
                if connection.execute(rows.update().where(
                        rows.c.id == id, own(rows, context), rows.c.fault.is_not(None)).values(fault=None)).rowcount:
                    return
        raise NotFound(f"Message {id} could not be found.")

    def users(self) -> dict[str, str]:
        with self.database.read() as connection:
            return {row.id: row.server_id for row in connection.execute(select(held.c.id, held.c.server_id).where(
                held.c.server_id.is_not(None)))}

    def has_type(self, context: Context, name: str) -> bool:
        return self.types.has(context, name)

    def where(self, id: str) -> str:
        """Raises ``NotFound`` where there is no such volume, 409 before it has a host."""
        with self.database.read() as connection:
            row = connection.execute(select(table.c.host).where(table.c.id == id)).first()
        if row is None:
            raise NotFound(f"Volume {id} could not be found.")
        if not row.host:
            raise Conflict(f"Volume {id} is on no host yet.")
        return str(row.host)

    def delete(self, context: Context, id: str) -> None:
        """Also one that is still being made. Asked twice, nothing more."""
        with self.database.write() as connection:
            row = found(connection, table, context, id)
            if row is not None and row["status"] != "deleting":
                volumes.begin_delete(connection, row, force=row["status"] in MAKING)
                self.database.ring(connection, BELL)
