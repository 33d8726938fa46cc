# SPDX-License-Identifier: GPL-3.0-or-later
"""Existing content in the pools of hosts, for administrators: lists of the content, its conversion to volumes (manage),
and the removal of volumes whose content stays in the pool (unmanage)."""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import insert, select

from magnetar_control.agents import PATIENCE
from magnetar_control.services import Context
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, InvalidRequest

from .attachments import lock_volume
from .managing_worker import MANAGE, UNMANAGE
from .migrations import MigrationStore, PoolTarget
from .removal_rows import has_due_removal
from .rows import check_admin, get_visible_row, queue_volume_task
from .tables import attachments, snapshots, volumes
from .types import VolumeType
from .worker import VOLUMES_CHANGED

#: Name of the field of a reference, as in Cinder's drivers of files and logical volumes.
NAME, ID = "source-name", "source-id"
#: Why content of volumes and snapshots cannot be managed.
MANAGED = "already managed"
#: Kinds of pools whose content keeps its name, so that the name is the uuid of the volume.
KEEPING = ("lvm", "rbd")


class ManageStore:
    """The operations that add existing storage content (files, LVs, RBD images) to the service as volumes, and that
    release volumes (Cinder's manage and unmanage). *targets*: finds the pools of hosts. *quota*: the volume quotas."""

    def __init__(self, database: Database, targets: MigrationStore, quota: Quotas) -> None:
        self.database, self.targets, self.quota = database, targets, quota

    def list(self, context: Context, host: str) -> Documents:
        """Return the content of a storage pool: [{name, size, format, volume, reason}]. *host*: the pool as
        HOST@BACKEND#POOL. ``volume``: the uuid of the volume that has this content, if any. ``reason``: why the content
        cannot be managed; empty if it can. Raises ``InvalidRequest``."""
        check_admin(context, "volume_extension:list_manageable")
        return self._content(self.targets.find_target(host, self.targets.types.pools[0]))

    def _content(self, target: PoolTarget) -> Documents:
        hosts = {host["name"]: host["endpoint"] for host in self.targets.reach.hosts()}
        with self.targets.reach.agents.client(hosts[target.host], PATIENCE) as client:
            content = client.pool_content(target.pool)
        stems = {found["name"].partition(".")[0] for found in content}
        with self.database.read() as connection:  # in a shared pool also of volumes that other hosts have
            owned = {id for table in (volumes, snapshots)
                     for id in connection.execute(select(table.c.id).where(table.c.id.in_(stems))).scalars()}
        return [{**found, "volume": found["name"].partition(".")[0], "reason": MANAGED}
                if found["name"].partition(".")[0] in owned else found for found in content]

    def manage(self, context: Context, host: str, reference: Document, **fields: Any) -> str:
        """Queue the task that turns existing content of a storage pool into a volume of the caller's project. Return
        the volume's id. *host*: the pool as HOST@BACKEND#POOL. *reference*: {source-name} or {source-id}, the name of
        the content. *fields*: name, description, metadata, volume_type, bootable. Raises ``InvalidRequest``,
        ``NotFound``, ``TooLarge`` beyond the quota."""
        check_admin(context, "volume_extension:volume_manage")
        target = self.targets.find_target(host, self.targets.types.pools[0])
        content = self._referenced(target, reference)
        chosen = self._type(context, target, fields.get("volume_type"), content)
        id = content["name"] if target.kind in KEEPING else str(uuid.uuid4())
        values = {
            "id": id, "project_id": context.project_id or "", "user_id": context.user_id, "size": content["size"],
            "name": fields.get("name"), "description": fields.get("description"),
            "metadata": fields.get("metadata") or {}, "bootable": bool(fields.get("bootable")), "host": target.host,
            "pool": target.pool, "pool_id": target.id, "volume_type": chosen.name, "multiattach": chosen.multiattach,
            "availability_zone": self.targets.zone, "existing": {"name": content["name"], "format": content["format"]}}
        with self.database.write() as connection:
            if connection.execute(select(volumes.c.id).where(volumes.c.id == id)).first():
                raise InvalidRequest(f"Unable to manage existing volume. Volume {id} is already managed.")
            if has_due_removal(connection, target.host, id):
                raise Conflict(f"Host {target.host} is removing the content {id}, which migrated to another host.")
            self.quota.within(connection, values["project_id"], per_volume_gigabytes=content["size"], volumes=1,
                              gigabytes=content["size"])
            connection.execute(insert(volumes).values(status="creating", task=MANAGE, created_at=utc_now(), **values))
            self.database.notify(connection, VOLUMES_CHANGED)
        return str(id)

    def _referenced(self, target: PoolTarget, reference: Document) -> Document:
        """Return the description of the content in the pool *target* whose name is in *reference* ({source-name} or
        {source-id}). Raises ``InvalidRequest`` if the content does not exist or cannot be managed."""
        name = reference.get(NAME) or reference.get(ID)
        content = next((content for content in self._content(target) if content["name"] == name), None)
        if content is None:
            raise InvalidRequest(f"Failed to manage existing volume: the pool {target.pool} of host {target.host} has "
                                 f"no content {str(name)[:80]!r}. This lists it: openstack block storage volume "
                                 "manageable list.")
        if content["reason"]:
            raise InvalidRequest(f"Failed to manage existing volume: {content['name']} cannot be taken over: "
                                 f"{content['reason']}.")
        return content

    def _type(self, context: Context, target: PoolTarget, name: str | None, content: Document) -> VolumeType:
        """Return the volume type *name* for the volume that *content* will become; ``None``: the type of its pool
        *target*. Raises ``NotFound``, and ``InvalidRequest`` if the type does not allow this pool or content."""
        types = self.targets.types
        chosen = types.find(context, name) if name else types.of(target.pool)
        fits = not self.targets.refusals(chosen, target.host, target.pool, 0) if chosen.chooses else (
            chosen.pool == target.pool)
        if not fits or chosen.encryption or (chosen.multiattach and content["format"] != "raw"):
            raise InvalidRequest(f"Invalid volume type: volumes of the type {chosen.name} are in the pool "
                                 f"{' or '.join(chosen.pools) if chosen.chooses else chosen.pool}"
                                 f"{', encrypted' if chosen.encryption else ''}"
                                 f"{', raw' if chosen.multiattach else ''}, and {content['name']} is not.")
        chosen.check_volume(content["size"], self.targets.zone)
        return chosen

    def unmanage(self, context: Context, id: str) -> None:
        """Queue the removal of a volume from the service, without deleting its content from the storage pool. Raises
        ``NotFound``, ``InvalidRequest``."""
        check_admin(context, "volume_extension:volume_unmanage")
        with self.database.write() as connection:
            lock_volume(connection, id)
            row = get_visible_row(connection, volumes, context, id)
            if row["encryption_key_id"]:
                raise InvalidRequest("Invalid volume: Unmanaging encrypted volumes is not supported.")
            for table, state in ((attachments, "be attached"), (snapshots, "have snapshots")):
                if connection.execute(select(table.c.id).where(table.c.volume_id == id).limit(1)).first():
                    raise InvalidRequest(f"Invalid volume: Volume {id} must not {state} to be unmanaged.")
            queue_volume_task(connection, volumes, row, UNMANAGE, ("available", "error", "error_unmanaging"),
                              status="unmanaging")
            self.database.notify(connection, VOLUMES_CHANGED)
