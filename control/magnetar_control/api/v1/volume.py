# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource drivers of volume and volume_snapshot: the volumes and snapshots of the volume service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.services.volume import actions
from magnetar_control.services.volume.backup_tasks import RESTORED_FROM
from magnetar_control.services.volume.rows import VolumeListing, check_volume_writer
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidField, MagnetarError, NotFound, TimedOut
from magnetar_core.kinds import Volume, VolumeSnapshot
from magnetar_core.operations import Operation
from magnetar_core.plan import Step
from magnetar_core.reconcile import is_uuid_key

from .driver import ALL_PROJECTS, CloudDriver
from .image import CloudImages

STATUS = {"available": "available", "in-use": "in-use", "creating": "creating", "downloading": "creating",
          "awaiting-transfer": "awaiting-transfer"}
#: Seconds between checks of a resource that is being created, and in total.
POLL_INTERVAL, LIMIT = 0.1, 1800.0
#: Sources of a volume: field, and the statuses in which the source can be copied.
SOURCES = (("image", ("active",)), ("source_volume", ("available", "in-use")), ("snapshot", ("available",)))
GIB = 2**30
#: Keys in the metadata of volumes that the volume service writes.
OWN_METADATA = ("readonly", RESTORED_FROM)


def _alike(row: Mapping[str, Any]) -> Document:
    """Return the fields that volumes and snapshots have in common, in the format of the v1 API. *row*: a row of the
    volume service."""
    return {**{name: row[name] for name in ("id", "size", "created_at", "updated_at")}, "name": row["name"] or "",
            "description": row["description"] or "", "format": None, "fault": None, "_status": row["status"]}


class Stored(CloudDriver):
    """The base class of the drivers of the v1 API for resources of the volume service: volumes, snapshots, backups and
    transfers. *counted*: the name of the resource type (and of its quota) in the volume service, and the name of this
    quota's limit in Cinder's API, such as ("volumes", "maxTotalVolumes")."""

    counted = ("", "")
    of_all_projects = True
    takes_id = False
    making: tuple[Step, ...] = (Step("make", "make the content"),)
    removing: tuple[Step, ...] = (Step("drop", "remove the content"),)

    def as_document(self, caller: Caller, row: Mapping[str, Any]) -> Document:
        """Return *row*, a row of the volume service, in the format of the v1 API."""
        raise NotImplementedError

    def store(self, caller: Caller) -> Any:
        """Return the object of the volume service that reads and writes these resources, such as a ``VolumeStore``."""
        return getattr(caller.cloud.services.volume, self.counted[0])

    def every(self, caller: Caller, **filters: str) -> list[Document]:
        rows, _count = self.store(caller).list(caller.context, VolumeListing(filters=filters))
        return [self.as_document(caller, row) for row in rows]

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the resources of the project. The filter ``all_projects``, for administrators, returns the resources
        of all projects."""
        if not filters.pop(ALL_PROJECTS, False):
            return self.every(caller)
        if not caller.context.is_admin:
            raise Forbidden(f"Only administrators may list the {self.kind.plural.replace('_', ' ')} of all projects.")
        rows, _count = self.store(caller).list(caller.context, VolumeListing(everywhere=True))
        return [self.as_document(caller, row) for row in rows]

    def find(self, caller: Caller, key: str) -> Document | None:
        by_id = self.every(caller, id=key.lower()) if is_uuid_key(key) else []
        return self.only(caller, by_id or self.every(caller, name=key), key)

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """Wait until the creation of *have*, which another client may have requested, is complete, and return the
        resource. *operation*: ``None`` in a dry run, which does not wait. Raises ``Conflict`` if the resource is in
        error or is being removed."""
        status, name, id = have["_status"], f"{self.kind.noun} {have['name']!r}", str(have["id"])
        if status in ("creating", "downloading") and operation:
            self.wait_until_ready(caller, id, operation)
            return self.one(caller, id)
        if status == "deleting":
            raise Conflict(f"The {name} is being removed. Wait until it is gone, then repeat the call.")
        if "error" in status:
            raise Conflict(f"The {name} is in the status {status}: {self.why(caller, id)} Remove it (state absent) and "
                           "make it again; or, to keep its content, have an administrator mend the cause and reset "
                           "its status.")
        return have

    def check_quota(self, caller: Caller, size: int, have: Document | None) -> None:
        """Check that the quota allows a new resource of *size* GiB. *have*: the resource that is replaced by the new
        one and therefore does not count; ``None`` if there is none. Raises ``Conflict``."""
        limits, usage = caller.cloud.services.volume.quotas(caller.project)
        largest = limits["per_volume_gigabytes"]
        if self.counted[0] == "volumes" and 0 <= largest < size:
            raise Conflict(f"A volume of {size} GiB is beyond a quota of the project: one may have {largest}. Nothing "
                           "was changed.")
        for (name, limit_name), more in ((self.counted, int(have is None)),
                                         (("gigabytes", "maxTotalVolumeGigabytes"),
                                          size - (have["size"] if have else 0))):
            most, used = limits[name], usage[name]
            if most >= 0 and more > 0 and used + more > most:
                raise Conflict(f"The {self.kind.noun} is beyond a quota of the project: {limit_name} is {most}, "
                               f"{used} are used, and {more} more were asked for. Nothing was changed.")

    def source(self, caller: Caller, field: str, id: str, statuses: tuple[str, ...]) -> Document:
        """Return the source of a new volume. *field*: the type of the source: ``image``, ``snapshot`` or
        ``source_volume``. *id*: its uuid. *statuses*: the allowed statuses. Raises ``InvalidField`` if the source does
        not exist or has another status."""
        services = caller.cloud.services
        show = {"image": services.image.show, "snapshot": services.volume.snapshot}.get(field, services.volume.show)
        source = show(caller.context, id)
        if source is None:
            raise InvalidField(field, "must be one that is there, and that you may use", id)
        if source["status"] not in statuses:
            raise InvalidField(field, f"must be {' or '.join(statuses)}, and is {source['status']}", id)
        return source

    def _statuses(self, caller: Caller, id: str, late: str = "") -> Iterator[str | None]:
        """Yield the current status of the resource *id* every ``POLL_INTERVAL`` seconds; ``None`` if it does not exist.
        Raises ``TimedOut`` after ``LIMIT`` seconds. *late*: the end of the error message."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                status: str | None = str(self.store(caller).show(caller.context, id)["status"])
            except NotFound:
                status = None
            yield status
            if time.monotonic() > deadline:
                raise TimedOut(f"The {self.kind.noun} {late or f'{id} is still {status}'}.")
            time.sleep(POLL_INTERVAL)

    def wait_until_ready(self, caller: Caller, id: str, operation: Operation) -> None:
        """Wait until the resource *id* is available or in use. Raises ``Conflict`` if the resource gets an error status
        or disappears."""
        with operation.waiting():
            for status in self._statuses(caller, id):
                if status in ("available", "in-use"):
                    return
                operation.raise_if_cancelled()
                if status is None or "error" in status:
                    raise Conflict(f"The {self.kind.noun} became {status or 'nothing'}: {self.why(caller, id)}")

    def made(self, caller: Caller, id: str, operation: Operation) -> str:
        """Wait until the resource *id* is created, and return *id*. If the creation fails, remove the resource and
        raise ``Conflict``."""
        try:
            self.wait_until_ready(caller, id, operation)
        except Conflict:
            with contextlib.suppress(MagnetarError):
                self.store(caller).delete(caller.context, id)
            raise
        return id

    def why(self, caller: Caller, id: str) -> str:
        """Return the reason of the last failure of the resource *id*, as the volume service has stored it; a default
        text if there is none."""
        messages = caller.cloud.services.volume.messages(caller.context)
        faults = [row["fault"] for _kind, row in messages if row["id"] == id]
        return str(faults[0]) if faults else "it does not say why; its log does."

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        values = {name: want[name] for name in names if name in ("name", "description", "metadata")}
        if values:
            self.store(caller).update(caller.context, have["id"], **values)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        self.store(caller).delete(caller.context, have["id"])
        with operation.waiting():
            for status in self._statuses(caller, str(have["id"]), f"{have['name']!r} is still being removed"):
                if status is None:
                    return
                if "error" in status:
                    raise Conflict(f"The {self.kind.noun} {have['name']!r} could not be removed; it is {status}.")


class CloudVolumes(Stored):
    kind = Volume
    counted = ("volumes", "maxTotalVolumes")

    def as_document(self, caller: Caller, row: Mapping[str, Any]) -> Document:
        """Return *row*, a volume of the volume service, in the format of the v1 API. Only administrators see its host.
        """
        copied = row["source_volid"] or row["snapshot_id"]  # and has the image of its source
        attachments = [user for user in row["attachments"] if user["status"] in ("attached", "detaching")]
        return {
            **_alike(row), "pool": row["volume_type"],
            "image": None if copied else row["volume_image_metadata"].get("image_id"),
            "source_volume": row["source_volid"], "snapshot": row["snapshot_id"],
            "metadata": {name: value for name, value in row["metadata"].items() if name not in OWN_METADATA},
            "_restored_from": row["metadata"].get(RESTORED_FROM),
            "multiattach": row["multiattach"], "bootable": row["bootable"],
            "status": STATUS.get(row["status"], "in-use" if attachments else "error" if "error" in row["status"]
                                 else "available" if row["status"] == "backing-up" else "creating"),
            "attachments": [{"id": user["id"], "server": user["server_id"], "server_name": "",
                             "device": (user["device"] or "").rpartition("/")[2]} for user in attachments],
            "shared": False, "host": (row["host"] or "") if caller.context.is_admin else ""}

    def names(self, caller: Caller) -> dict[str, str]:
        rows, _count = self.store(caller).list(caller.context, VolumeListing(), attached=False)
        return {str(row["id"]): row["name"] or "" for row in rows}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the uuid of the volume's source in place of a name. Raises
        ``InvalidField``, and ``Conflict`` for a size smaller than the current one."""
        want = dict(want)
        if want.get("format") not in (None, have and have["format"]):
            raise InvalidField("format", "is the pool's own affair in a cloud; leave it out", want["format"])
        want["format"] = have["format"] if have else None
        for name, driver in (("image", IMAGES), ("source_volume", self), ("snapshot", SNAPSHOTS)):
            source = want.get(name)
            if source and not is_uuid_key(source):
                resource = driver.referred(caller, source, name)
                want[name] = resource["id"] if resource else source
            elif source:
                want[name] = source.lower()
        if have and want["pool"] == "default" != have["pool"]:
            want["pool"] = have["pool"]
        if have and want.get("size") is not None and want["size"] < have["size"]:
            raise Conflict(f"Volume {have['name']!r} has {have['size']} GiB, and volumes do not shrink.",
                           fields=["size"])
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the volume *want* can be created: its source exists and is not larger than the volume, its pool
        exists, and the quota allows the volume. *have*: the volume that *want* replaces, which must be removable;
        ``None`` if there is none."""
        if have:
            self._check_removable(caller, have)
        size, least = want.get("size") or 0, 0
        for field, statuses in SOURCES:
            source_id = want.get(field)
            if not source_id or not is_uuid_key(source_id):  # a name that is still unresolved is assumed by a dry run
                continue
            if have and source_id == have["id"]:
                raise InvalidField(field, "must be another volume: this one is gone when it is recreated", source_id)
            source = self.source(caller, field, source_id, statuses)
            least = source["size"]
            if field == "image":
                least = max(source.get("min_disk") or 0, -(-(source.get("virtual_size") or least or 0) // GIB))
            size = size or (0 if field == "image" else least)
            if size < least:
                raise InvalidField("size", f"must be at least {least} GiB, which its {field} needs", size)
        if want["pool"] != "default":
            try:
                caller.cloud.services.volume.types.find(caller.context, want["pool"])
            except NotFound as error:
                raise InvalidField("pool", f"must be one that there is. {error.message}", want["pool"]) from None
        assumed = any(want.get(field) and not is_uuid_key(want[field]) for field, _statuses in SOURCES)
        if not size and not assumed:
            raise InvalidField("size", "is required to make a volume that is no copy of another")
        self.check_quota(caller, size, have)

    def _check_removable(self, caller: Caller, have: Document) -> None:
        users = sorted(attachment["server"] for attachment in have["attachments"])
        if users:
            raise Conflict(f"Volume {have['name']!r} is attached to server {', '.join(users)}. Detach it first, then "
                           "create it again.", users=users)
        if have["_status"] != "available" and "error" not in have["_status"]:
            raise Conflict(f"Volume {have['name']!r} is {have['_status']}. Wait until it is available, then repeat the "
                           "call.")
        if SNAPSHOTS.every(caller, volume_id=have["id"]):
            raise Conflict(f"Volume {have['name']!r} has snapshots, and cannot go before them. Remove them first, then "
                           "create it again.")

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        check_volume_writer(caller.context)
        arguments = {"name": want["name"], "description": want["description"], "metadata": want["metadata"],
                     "multiattach": want["multiattach"], "image_id": want["image"],
                     "source_volume_id": want["source_volume"], "snapshot_id": want["snapshot"],
                     "volume_type": None if want["pool"] == "default" else want["pool"]}
        made = caller.cloud.services.volume.create(caller.context, want.get("size") or 0, **{
            name: value for name, value in arguments.items() if value})
        return self.made(caller, str(made["id"]), operation)

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        yield from super().plan(want, have)
        if want and have and want.get("size") != have["size"]:
            yield Step("grow", f"grow it to {want['size']} GiB")

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        if have["_restored_from"]:
            want = {**want, "metadata": {**want["metadata"], RESTORED_FROM: have["_restored_from"]}}
        super().change(caller, have, want, names, operation)
        if "size" in names:
            caller.cloud.services.volume.act(caller.context, have["id"], actions.extend_volume, new_size=want["size"],
                                             in_use=True)
            self.wait_until_ready(caller, str(have["id"]), operation)
            if self.one(caller, str(have["id"]))["size"] < want["size"]:
                raise Conflict(f"Volume {have['name']!r} did not grow: {self.why(caller, str(have['id']))}")


class CloudSnapshots(Stored):
    kind = VolumeSnapshot
    counted = ("snapshots", "maxTotalSnapshots")

    def as_document(self, caller: Caller, row: Mapping[str, Any]) -> Document:
        return {**_alike(row), "metadata": row["metadata"], "volume": row["volume_id"], "pool": None, "bootable": False,
                "host": "", "status": row["status"] if row["status"] in ("creating", "available") else "error"}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        volume_key = str(want["volume"])
        rule = f"there is no volume {volume_key!r} that you may use"
        volume = None if is_uuid_key(volume_key) else VOLUMES.referred(caller, volume_key, "volume", rule)
        return {**want, "volume": volume["id"] if volume else volume_key}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the volume exists and that the quota allows a new snapshot of it. *have*: the snapshot that *want*
        replaces; ``None`` if there is none."""
        if is_uuid_key(want["volume"]):  # otherwise a dry run assumes it
            volume = self.source(caller, "volume", want["volume"], ("available", "in-use"))
            self.check_quota(caller, volume["size"], have)

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Create a snapshot of the volume, even if the volume is in use, and return the snapshot's uuid."""
        check_volume_writer(caller.context)
        made = caller.cloud.services.volume.create_snapshot(
            caller.context, want["volume"], name=want["name"], description=want["description"],
            metadata=want["metadata"])
        return self.made(caller, str(made["id"]), operation)


IMAGES, VOLUMES, SNAPSHOTS = CloudImages(), CloudVolumes(), CloudSnapshots()
