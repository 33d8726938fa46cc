# SPDX-License-Identifier: GPL-3.0-or-later
"""The embedded ``services.Volumes``, which the API and the conductors call."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import bindparam, select

from magnetar_control.agents import Agents
from magnetar_control.services import Context, Images, KeyManager
from magnetar_control.store.engine.database import Database
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound
from magnetar_core.flows import Confirm, always_allowed
from magnetar_core.image_format import is_encrypted

from . import attachments, quotas, volumes
from .access import fetch_served_volumes, fetch_volume_access
from .actions import ADMIN, FREEING, extend_volume, reimage_volume, upload_image
from .backups import BackupStore, NewVolumes
from .key_ids import key_id
from .managing import ManageStore
from .migrations import MigrationStore
from .pool_choice import choose_pool
from .pools import PoolOnHost, fetch_host_pools, fetch_pool_usage
from .reach import Hosts, Reach
from .reimage_data import REIMAGE_OBJECTS
from .rows import (
    OWN,
    VolumeListing,
    check_admin,
    check_volume_writer,
    find_visible_row,
    get_visible_row,
    listing_condition,
    queue_volume_task,
    visible_to_caller,
    wrong_status,
)
from .snapshots import SnapshotStore, begin_snapshot
from .tables import attachments as held
from .tables import backups, snapshots
from .tables import volumes as table
from .transfers import TransferStore
from .types import TypeStore, VolumeType
from .volumes import VolumeStore, attachments_of, documents
from .worker import VOLUMES_CHANGED, Worker

GIB = 2**30
#: The image property that names the type of volumes made from it, unless the request names one.
TYPE = "cinder_img_volume_type"
_USER_IDS = select(held.c.server_id).distinct().where(held.c.server_id > bindparam("after")).order_by(
    held.c.server_id).limit(bindparam("most"))
#: Statuses of a volume whose content is not complete yet.
MAKING = ("creating", "downloading")


class EmbeddedVolumes:
    """The volume service inside the control plane, an implementation of ``services.Volumes``. Its rows are in the API
    *database*, the content of volumes is on compute hosts.

    *hosts*: a function that returns [{name, endpoint, disk_gb, disk_gb_free, up}]. *ensure_image*: a function (host,
    uuid of an image) that copies the image to the host if it is missing there. *images*: the image service. *pools*:
    the names of the agents' storage pools, the default pool first. *zone*: the availability zone of volumes. *pause*:
    seconds before the first retry of a failed task. *used*: a function that returns whether a server uses an
    attachment. *limits*: the default quotas of projects. *keys*: the key manager of encrypted volumes. *knows*: a
    function that returns whether all processes support a capability (during an upgrade).
    """

    def __init__(self, database: Database, hosts: Hosts, agents: Agents, ensure_image: Callable[[str, str], None],
                 images: Images | None = None, pools: Sequence[str] = ("default",), zone: str = "nova",
                 pause: float = 2.0, used: attachments.Used = lambda _server, _attachment: False,
                 limits: Mapping[str, int] | None = None, keys: KeyManager | None = None,
                 knows: Callable[[str], bool] = lambda _capability: False) -> None:
        self.database, self.images, self.zone, self._knows = database, images, zone, knows
        self.quota = quotas.build_volume_quotas(limits or {})
        self.reach = Reach(hosts, agents, ensure_image, images, keys, self.host_pools)
        self.types = TypeStore(database, tuple(pools))
        self.volumes, self.snapshots = VolumeStore(database), SnapshotStore(database)
        self.attachments = attachments.AttachmentStore(database, used)
        self.transfers = TransferStore(database, self.quota)
        self.backups = BackupStore(database, NewVolumes(self._values, self.quota, self.host_pools, zone,
                                                          keys))
        self.migrations = MigrationStore(database, self.reach, self.types, zone)
        self.managed = ManageStore(database, self.migrations, self.quota)
        self.show, self.snapshot = self.volumes.find, self.snapshots.find
        self.worker = Worker(database, self.reach, pause)
        self.homes = self.worker.homes

    def host_pools(self) -> list[PoolOnHost]:
        """Return the storage pools of all hosts, as their agents have last reported them."""
        with self.database.read() as connection:
            return fetch_host_pools(connection)

    def pool_usage(self) -> dict[str, tuple[int, int]]:
        """Return how much of each storage pool the volumes use: {pool uuid: (number of volumes, their total GiB)}."""
        with self.database.read() as connection:
            return fetch_pool_usage(connection)

    def create_snapshot(self, context: Context, volume_id: str, **fields: Any) -> Document:
        """Create and return a snapshot of a volume. *fields*: id, name, description, metadata, and ``in_use`` (false:
        raise an error if the volume is in use). A repeated call with the same ``id`` returns the same snapshot. Raises
        ``NotFound``, ``TooLarge``, and ``InvalidRequest`` for a volume that is neither available nor in use."""
        id = fields.get("id") or str(uuid.uuid4())
        if existing := self.snapshot(context, id):
            return existing
        with self.database.write() as connection:
            attachments.lock_volume(connection, volume_id)
            row = get_visible_row(connection, table, context, volume_id)
            statuses = ("available", "in-use", "detaching") if fields.get("in_use", True) else ("available",)
            if row["status"] not in statuses:
                raise wrong_status(table, row, statuses)
            self.quota.within(connection, row["project_id"], snapshots=1, gigabytes=row["size"])
            begin_snapshot(connection, context, row, id, name=fields.get("name"), description=fields.get("description"),
                           metadata=fields.get("metadata") or {})
            self.database.notify(connection, VOLUMES_CHANGED)
        return self.snapshots.show(context, id)

    def delete_snapshot(self, context: Context, id: str) -> None:
        with self.database.write() as connection:
            row = find_visible_row(connection, snapshots, context, id)
            if row is not None and row["status"] != "deleting":
                queue_volume_task(connection, snapshots, row, "delete", status="deleting")
                self.database.notify(connection, VOLUMES_CHANGED)

    def create(self, context: Context, size: int, **fields: Any) -> Document:
        """Create and return a volume of *size* GiB. *fields*: as in ``services.Volumes.create``, and also description,
        metadata, multiattach, hints {same_host, different_host: uuids of volumes}, and ``image_names_type`` (false:
        ignore the volume type in the image's properties, because the caller may not be allowed to use it). A repeated
        call with the same ``id`` returns the same volume. A copy of a snapshot or volume is created on the host of its
        source."""
        id = fields.get("id") or str(uuid.uuid4())
        if existing := self.show(context, id):
            return existing
        values, chosen = self._values(context, id, size, fields)
        with self.database.write() as connection:
            volumes.create_volume_row(connection, context, self.quota, values)
            if chosen is not None:
                chosen.check_volume(values["size"], self.zone)
            self.database.notify(connection, VOLUMES_CHANGED)
        return self.volumes.show(context, id)

    def _values(self, context: Context, id: str, size: int, fields: Document) -> tuple[Document, VolumeType | None]:
        """Return (columns of a new volume, its volume type) for a request. *size*: GiB. *fields*: as in ``create``. The
        type is ``None`` if the new volume gets the type of the snapshot or volume that it copies."""
        if fields.get("image_id") and (snapshot_id := self._snapshot_of_image(context, fields["image_id"])):
            fields = {**fields, "image_id": None, "snapshot_id": snapshot_id}
        sources = [name for name in ("image_id", "snapshot_id", "source_volume_id") if fields.get(name)]
        if len(sources) > 1:
            raise InvalidRequest(f"A volume is made from one thing; {' and '.join(sources)} were given.")
        type_name, copied = fields.get("volume_type"), fields.get("snapshot_id") or fields.get("source_volume_id")
        values: Document = {
            "id": id, "project_id": context.project_id or "", "user_id": context.user_id, "size": size,
            "name": fields.get("name"), "description": fields.get("description"), "host": fields.get("host"),
            "metadata": fields.get("metadata") or {},
            "multiattach": bool(fields.get("multiattach")), "image_id": fields.get("image_id"),
            "snapshot_id": fields.get("snapshot_id"), "source_volid": fields.get("source_volume_id"),
            "availability_zone": self.zone}
        if fields.get("image_id"):
            values.update(self._of_image(context, fields["image_id"], size))
            by_image = fields.get("image_names_type", True)
            if not type_name and by_image and (named := values["image_metadata"].get(TYPE)):
                if not self.types.has(context, named):
                    raise InvalidRequest(f"Invalid input received: the property {TYPE} of image {fields['image_id']} "
                                         f"names the volume type {named[:80]}, which could not be found. Give another "
                                         "volume_type.")
                type_name = named
        chosen = None if copied and not type_name else self.types.find(context, type_name)
        values.update(volume_type=chosen and chosen.name, pool=chosen and chosen.pool,
                      multiattach=values["multiattach"] or bool(chosen and chosen.multiattach),
                      encryption_key_id=key_id(id) if chosen and chosen.encryption else None)
        self._set_host(context, values, chosen, self._near(context, fields.get("hints") or {}))
        return values, chosen

    def _set_host(self, context: Context, values: Document, chosen: VolumeType | None,
                  near: Callable[[str], bool] | None) -> None:
        """Choose the host of a new volume, and set it in its columns *values*; a copy gets no host here, because it is
        created on the host of its source. If the volume's type *chosen* allows several pools, also set the pool.
        *near*: the result of ``_near`` (returns whether the scheduler hints allow a host). Raises ``InvalidRequest``.
        """
        host, copied = values["host"], values["snapshot_id"] or values["source_volid"]
        if copied and (near or (chosen is not None and chosen.chooses)):
            store: SnapshotStore | VolumeStore = self.snapshots if values["snapshot_id"] else self.volumes
            host = store.show(context, copied)["host"]
        if chosen is not None and chosen.chooses:
            option = choose_pool(self.reach, chosen, values["size"], lambda name: (
                host in (None, name) and (near is None or near(name))))
            values["pool"], host = (chosen.pool, host) if option is None else (option.name, option.host)
        elif not host and not copied:
            host = self.reach.roomiest(values["pool"] or str(values["volume_type"]), near)
        if near and (not host or not near(host)):
            raise InvalidRequest("Invalid input received: No host that is up is as scheduler_hints ask; a copy lies on "
                                 "the host of its source.")
        if not copied:
            values["host"] = host

    def _near(self, context: Context, hints: Mapping[str, Sequence[str]]) -> Callable[[str], bool] | None:
        """Return a function that returns whether the scheduler hints *hints* allow a host: the host has one of the
        volumes ``same_host`` (if given), and none of the volumes ``different_host``. Return ``None`` if there are no
        hints. Raises ``NotFound``."""
        if not any(hints.values()):
            return None
        host_of = self.volumes.hosts(context, {id for ids in hints.values() for id in ids})
        same, different = ({host_of[id] for id in hints.get(name, ())} - {None}
                           for name in ("same_host", "different_host"))
        return lambda host: (not hints.get("same_host") or host in same) and host not in different

    def _snapshot_of_image(self, context: Context, id: str) -> str | None:
        """Return the id of the volume snapshot that the image *id* refers to; ``None`` if it refers to none. The image
        of a volume-backed server has no content, and refers to the snapshot of the root volume.

        Raises ``NotFound`` unless the snapshot belongs to the project of the caller or of the image. This check is
        necessary because conductors call this as administrators, and users can write any uuid into an image.
        """
        image = (self.images.show(context, id) if self.images else None) or {}
        mapping = (image.get("properties") or {}).get("block_device_mapping")
        if not mapping or image.get("size"):
            return None
        try:
            block_devices = orjson.loads(mapping)
            snapshot_id = next((block_device.get("snapshot_id") for block_device in block_devices
                                if block_device.get("boot_index") == 0), None)
        except (ValueError, TypeError, AttributeError):
            snapshot_id = None
        if not snapshot_id:
            return None
        with self.database.read() as connection:
            project = connection.execute(select(snapshots.c.project_id).where(snapshots.c.id
                                                                              == str(snapshot_id))).scalar()
        if project not in (context.project_id, image.get("owner")):
            raise NotFound(f"Snapshot {str(snapshot_id)[:80]}, which image {id} names, could not be found.")
        return str(snapshot_id)

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
        return {"bootable": True, "image_metadata": volumes.volume_image_metadata(image)}

    def act(self, context: Context, id: str, action: Callable[..., Document | None],
            **arguments: Any) -> Document | None:
        check_volume_writer(context)
        if action in ADMIN:
            check_admin(context, ADMIN[action])
        if action in FREEING:
            with self.database.read() as connection:
                get_visible_row(connection, table, context, id)
                attachment_rows = volumes.attachments_of(connection, [id])[id]
            named = arguments.get("attachment_id")
            attachments.check_free(context, self.attachments.used, [
                attachment for attachment in attachment_rows if named in (None, attachment["id"])])
        if action is extend_volume:
            arguments["quota"] = self.quota
        if action is reimage_volume:
            size = self.volumes.show(context, id)["size"]
            arguments.update(self._of_image(context, arguments["image_id"], size),
                             as_object=self._knows(REIMAGE_OBJECTS))
        with self.database.write() as connection:
            attachments.lock_volume(connection, id)
            answer = action(connection, context, get_visible_row(connection, table, context, id), **arguments)
            self.database.notify(connection, VOLUMES_CHANGED)
        return answer

    def upload_image(self, context: Context, id: str, name: str, **fields: Any) -> Document:
        """Create an image from an available volume, and queue the upload of the volume's content. *fields*:
        disk_format, container_format, visibility, protected. If the volume was created from an image, the new image
        gets the properties of that image. Return {volume, image}. Raises the errors of the image service, and
        ``InvalidRequest``."""
        check_volume_writer(context)
        volume = self.volumes.show(context, id)
        if self.images is None or volume["status"] != "available":  # before the image exists
            raise wrong_status(table, volume, ("available",))
        if volume["encryption_key_id"]:
            raise InvalidRequest(f"Invalid volume: Volume {id} is encrypted, and no image is made of it, as that would "
                                 "hold its content in clear text. In a server, copy what is needed to another volume.")
        image_metadata = volume["volume_image_metadata"]
        least_disk, least_ram = (int(image_metadata.get(field) or 0) for field in ("min_disk", "min_ram"))
        image = self.images.create(context, name, **fields, min_disk=least_disk, min_ram=least_ram, properties={
            key: value for key, value in image_metadata.items() if key not in volumes.OF_IMAGE})
        try:
            self.act(context, id, upload_image, image_id=image["id"])
        except MagnetarError:
            self.images.fail(image["id"], "The volume was not available any more.")
            raise
        return {"volume": self.volumes.show(context, id), "image": image}

    def is_uploading(self, image_id: str) -> bool:
        with self.database.read() as connection:
            return connection.execute(select(table.c.id).where(
                table.c.task == "upload", table.c.upload == {"image_id": image_id}).limit(1)).first() \
                is not None

    def wait(self, id: str, limit: float) -> Document:
        """Wait at most *limit* seconds until a volume is created or reimaged, and return the volume. If no worker has
        started the volume's task, execute the task in this thread. Raises ``InvalidRequest`` when the task has failed,
        or is not done in time."""
        deadline = time.monotonic() + limit
        while True:
            signal_count = self.database.signals.count(VOLUMES_CHANGED)
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
                self.worker.rest(signal_count, min(0.5, max(deadline - time.monotonic(), 0.01)))

    def reimage(self, context: Context, id: str, image_id: str, request: str) -> None:
        self.act(context, id, reimage_volume, image_id=image_id, reimage_reserved=True, request=request)

    def reimaged(self, id: str, request: str) -> bool:
        with self.database.read() as connection:
            reimage_task = connection.execute(select(table.c.reimage).where(table.c.id == id)).scalar() or {}
        return bool(reimage_task.get("request") == request and reimage_task.get("done"))

    def reserve(self, context: Context, id: str, server_id: str, confirm: Confirm = always_allowed,
                **fields: Any) -> Document:
        """Reserve the volume *id* for a server, and return {"id": id of the attachment, "volume": the volume}.
        *fields*: ``attachment_id``, by default a new uuid. *confirm*: called before the commit; may raise to roll back.
        A repeated call for the same server returns the same attachment."""
        with self.database.write() as connection:
            row = next((attachment for attachment in attachments_of(connection, [id])[id]
                        if attachment["server_id"] == server_id), None)
            if row is None or fields.get("attachment_id") not in (None, row["id"]):
                row = attachments.reserve_attachment(connection, context, id, server_id, fields.get("attachment_id"))
            confirm()
            return {"id": row["id"], "volume": documents(connection,
                                                         [get_visible_row(connection, table, context, id)])[0]}

    def attached(self, attachment_id: str, host: str, device: str | None, confirm: Confirm = always_allowed) -> None:
        with self.database.write() as connection:
            attachments.complete_attachment(connection, attachment_id, host, device)
            confirm()

    def begin_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        with self.database.write() as connection:
            attachments.begin_attachment_detaching(connection, attachment_id)
            confirm()

    def roll_detaching(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        with self.database.write() as connection:
            attachments.roll_attachment_detaching(connection, attachment_id)
            confirm()

    def disconnected(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        with self.database.write() as connection:
            attachments.disconnect_attachment(connection, attachment_id)
            confirm()

    def detached(self, attachment_id: str, confirm: Confirm = always_allowed) -> None:
        with self.database.write() as connection:
            attachments.remove_attachment(connection, attachment_id)
            confirm()

    def quotas(self, project_id: str) -> tuple[dict[str, int], dict[str, int]]:
        with self.database.read() as connection:
            return self.quota.limits(connection, project_id), self.quota.used(connection, project_id)

    def set_quotas(self, project_id: str, limits: Mapping[str, int | None]) -> dict[str, int]:
        """Set the limits *limits* of a project, by resource (``None``: use the default again). Return all of its
        limits."""
        with self.database.write() as connection:
            return self.quota.set(connection, project_id, limits)

    def messages(self, context: Context, listing: VolumeListing = OWN) -> list[tuple[str, Document]]:
        """Return the faults of volumes, snapshots and backups, the latest first: (type, such as VOLUME; row with the
        column ``fault``). *listing*: the projects and the filters; paging and sorting in *listing* have no effect."""
        with self.database.read() as connection:
            messages = [(noun, {**row}) for rows, noun in (
            (table, "VOLUME"), (snapshots, "VOLUME_SNAPSHOT"), (backups, "VOLUME_BACKUP"))
                        for row in connection.execute(rows.select().where(
                         listing_condition(context, rows, listing), rows.c.fault.is_not(None),
                         *(rows.c[name] == value for name, value in listing.filters.items()))).mappings()]
        return sorted(messages, key=lambda message: (message[1]["updated_at"] or message[1]["created_at"],
                                                     message[1]["id"]), reverse=True)

    def forget(self, context: Context, id: str) -> None:
        """Clear the column ``fault`` (the message of the last error) of a volume, snapshot or backup. Raises
        ``NotFound`` if *context* may not see it."""
        check_volume_writer(context)
        with self.database.write() as connection:
            for rows in (table, snapshots, backups):
                if connection.execute(rows.update().where(
                        rows.c.id == id, visible_to_caller(rows, context),
                        rows.c.fault.is_not(None)).values(fault=None)).rowcount:
                    return
        raise NotFound(f"Message {id} could not be found.")

    def users(self, servers: Collection[str] | None = None) -> dict[str, str]:
        of_servers = held.c.server_id.is_not(None) if servers is None else held.c.server_id.in_(list(servers))
        with self.database.read() as connection:
            return {row.id: row.server_id for row in connection.execute(select(held.c.id, held.c.server_id).where(
                of_servers))}

    def user_ids(self, after: str, limit: int) -> list[str]:
        with self.database.read() as connection:
            return list(connection.execute(_USER_IDS, {"after": after, "most": limit}).scalars())

    def has_type(self, context: Context, name: str) -> bool:
        return self.types.has(context, name)

    def where(self, id: str) -> str:
        """Return the name of the host of a volume. Raises ``NotFound`` when the volume does not exist, ``Conflict``
        when it has no host yet."""
        with self.database.read() as connection:
            row = connection.execute(select(table.c.host).where(table.c.id == id)).first()
        if row is None:
            raise NotFound(f"Volume {id} could not be found.")
        if not row.host:
            raise Conflict(f"Volume {id} is on no host yet.")
        return str(row.host)

    def stored_on(self, host: str) -> frozenset[str]:
        with self.database.read() as connection:
            return fetch_served_volumes(connection, host)

    def serving_hosts(self, ids: Collection[str]) -> dict[str, str]:
        with self.database.read() as connection:
            access = fetch_volume_access(connection, ids)
        return {id: volume.host for id, volume in access.items() if not volume.direct}

    def delete(self, context: Context, id: str) -> None:
        """Queue the deletion of a volume, even while it is being created or migrated. Do nothing if it is already being
        deleted, or does not exist."""
        with self.database.write() as connection:
            row = find_visible_row(connection, table, context, id)
            if row is not None and row["status"] != "deleting":
                volumes.begin_delete(connection, row, force=row["status"] in MAKING or bool(row["migration"]))
                self.database.notify(connection, VOLUMES_CHANGED)
