# SPDX-License-Identifier: GPL-3.0-or-later
"""volume and volume_snapshot: those of the volume service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.services.volume import actions
from magnetar_control.services.volume.rows import VolumeListing, check_writer
from magnetar_core.errors import Conflict, Forbidden, InvalidField, MagnetarError, NotFound, TimedOut
from magnetar_core.kinds import Volume, VolumeSnapshot
from magnetar_core.operations import Operation
from magnetar_core.plan import Step
from magnetar_core.reconcile import Document, is_uuid

from .driver import ALL_PROJECTS, CloudDriver
from .image import CloudImages

STATUS = {"available": "available", "in-use": "in-use", "creating": "creating", "downloading": "creating"}
#: Seconds between looks at something that is being made, and for how long.
LOOK, LIMIT = 0.1, 1800.0
#: What a volume can be made from: field, and the statuses in which it can be copied.
SOURCES = (("image", ("active",)), ("source_volume", ("available", "in-use")), ("snapshot", ("available",)))
GIB = 2**30


def _alike(one: Mapping[str, Any]) -> Document:
    """What the kinds have alike of what the service has."""
    return {**{name: one[name] for name in ("id", "size", "created_at", "updated_at")}, "name": one["name"] or "",
            "description": one["description"] or "", "format": None, "fault": None, "_status": one["status"]}


class Stored(CloudDriver):
    """What the two have in common. *counted*: its quota, called as its store is, and what Cinder calls the limit."""

    counted = ("", "")
    of_all_projects = True
    takes_id = False
    making = (Step("make", "make the content"),)
    removing = (Step("drop", "remove the content"),)

    def shown(self, caller: Caller, one: Mapping[str, Any]) -> Document:
        """As the kind has it."""
        raise NotImplementedError

    def store(self, caller: Caller) -> Any:
        """Where the volume service has them."""
        return getattr(caller.cloud.services.volume, self.counted[0])

    def every(self, caller: Caller, **filters: str) -> list[Document]:
        found, _count = self.store(caller).list(caller.context, VolumeListing(filters=filters))
        return [self.shown(caller, one) for one in found]

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """*all_projects*: those of all, for administrators."""
        if not filters.pop(ALL_PROJECTS, False):
            return self.every(caller)
        if not caller.context.is_admin:
            raise Forbidden(f"Only administrators may list the {self.kind.plural.replace('_', ' ')} of all projects.")
        found, _count = self.store(caller).list(caller.context, VolumeListing(everywhere=True))
        return [self.shown(caller, one) for one in found]

    def find(self, caller: Caller, key: str) -> Document | None:
        found = self.every(caller, id=key.lower()) if is_uuid(key) else []
        return self.only(caller, found or self.every(caller, name=key), key)

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """What somebody else makes is waited for. What is in error, or being removed, is no answer to a wish."""
        word, name, id = have["_status"], f"{self.kind.noun} {have['name']!r}", str(have["id"])
        if word in ("creating", "downloading") and operation:
            self.wait_until_ready(caller, id, operation)
            return self.one(caller, id)
        if word == "deleting":
            raise Conflict(f"The {name} is being removed. Wait until it is gone, then repeat the call.")
        if "error" in word:
            raise Conflict(f"The {name} is in the status {word}: {self.why(caller, id)} Remove it (state absent) and "
                           "make it again; or, to keep its content, have an administrator mend the cause and reset "
                           "its status.")
        return have

    def check_quota(self, caller: Caller, size: int, have: Document | None) -> None:
        """Whether the project may have another of so many GiB, when *have* is gone. Raises ``Conflict``."""
        limits, usage = caller.cloud.services.volume.quotas(caller.project)
        largest = limits["per_volume_gigabytes"]
        if self.counted[0] == "volumes" and 0 <= largest < size:
            raise Conflict(f"A volume of {size} GiB is beyond a quota of the project: one may have {largest}. Nothing "
                           "was changed.")
        for (name, word), more in ((self.counted, int(have is None)),
                                   (("gigabytes", "maxTotalVolumeGigabytes"), size - (have["size"] if have else 0))):
            most, used = limits[name], usage[name]
            if most >= 0 and more > 0 and used + more > most:
                raise Conflict(f"The {self.kind.noun} is beyond a quota of the project: {word} is {most}, "
                               f"{used} are used, and {more} more were asked for. Nothing was changed.")

    def source(self, caller: Caller, field: str, id: str, statuses: tuple[str, ...]) -> Document:
        """What is to be copied, as its service has it. Raises ``InvalidField`` where it cannot be."""
        services = caller.cloud.services
        show = {"image": services.image.show, "snapshot": services.volume.snapshot}.get(field, services.volume.show)
        found = show(caller.context, id)
        if found is None:
            raise InvalidField(field, "must be one that is there, and that you may use", id)
        if found["status"] not in statuses:
            raise InvalidField(field, f"must be {' or '.join(statuses)}, and is {found['status']}", id)
        return found

    def _statuses(self, caller: Caller, id: str, late: str = "") -> Iterator[str | None]:
        """Its status, look after look; ``None`` when it is gone. Raises ``TimedOut`` with what is *late*."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                status: str | None = str(self.store(caller).show(caller.context, id)["status"])
            except NotFound:
                status = None
            yield status
            if time.monotonic() > deadline:
                raise TimedOut(f"The {self.kind.noun} {late or f'{id} is still {status}'}.")
            time.sleep(LOOK)

    def wait_until_ready(self, caller: Caller, id: str, operation: Operation) -> None:
        """Wait until nothing is done to it any more. Raises ``Conflict`` when it is in error then."""
        with operation.waiting():
            for status in self._statuses(caller, id):
                if status in ("available", "in-use"):
                    return
                operation.raise_if_cancelled()
                if status is None or "error" in status:
                    raise Conflict(f"The {self.kind.noun} became {status or 'nothing'}: {self.why(caller, id)}")

    def made(self, caller: Caller, id: str, operation: Operation) -> str:
        """Its uuid, when it is made; nothing is left of one that could not be."""
        try:
            self.wait_until_ready(caller, id, operation)
        except Conflict:
            with contextlib.suppress(MagnetarError):
                self.store(caller).delete(caller.context, id)
            raise
        return id

    def why(self, caller: Caller, id: str) -> str:
        """What the volume service says of its last failure."""
        messages = caller.cloud.services.volume.messages(caller.context)
        found = [row["fault"] for _kind, row in messages if row["id"] == id]
        return str(found[0]) if found else "it does not say why; its log does."

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

    def shown(self, caller: Caller, one: Mapping[str, Any]) -> Document:
        """Its host is told to admins."""
        copied = one["source_volid"] or one["snapshot_id"]  # and has the image of what it is a copy of
        held = [user for user in one["attachments"] if user["status"] in ("attached", "detaching")]
        return {
            **_alike(one), "pool": one["volume_type"],
            "image": None if copied else one["volume_image_metadata"].get("image_id"),
            "source_volume": one["source_volid"], "snapshot": one["snapshot_id"],
            "metadata": {name: value for name, value in one["metadata"].items() if name != "readonly"},
            "multiattach": one["multiattach"], "bootable": one["bootable"],
            "status": STATUS.get(one["status"], "in-use" if held else "error" if "error" in one["status"]
                                 else "creating"),
            "attachments": [{"id": user["id"], "server": user["server_id"], "server_name": "",
                             "device": (user["device"] or "").rpartition("/")[2]} for user in held],
            "shared": False, "host": (one["host"] or "") if caller.context.is_admin else ""}

    def names(self, caller: Caller) -> dict[str, str]:
        found, _count = self.store(caller).list(caller.context, VolumeListing(), attached=False)
        return {str(one["id"]): one["name"] or "" for one in found}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Sources by uuid; they say how a volume is made, and are compared with what is noted of that."""
        want = dict(want)
        if want.get("format") not in (None, have and have["format"]):
            raise InvalidField("format", "is the pool's own affair in a cloud; leave it out", want["format"])
        want["format"] = have["format"] if have else None
        for name, driver in (("image", IMAGES), ("source_volume", self), ("snapshot", SNAPSHOTS)):
            given = want.get(name)
            if given and not is_uuid(given):
                found = driver.referred(caller, given, name)
                want[name] = found["id"] if found else given
            elif given:
                want[name] = given.lower()
        if have and want["pool"] == "default" != have["pool"]:
            want["pool"] = have["pool"]
        if have and want.get("size") is not None and want["size"] < have["size"]:
            raise Conflict(f"Volume {have['name']!r} has {have['size']} GiB, and volumes do not shrink.",
                           fields=["size"])
        return want

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Its source is there and fits, its pool exists, and *have* can go."""
        if have:
            self._check_removable(caller, have)
        size, least = want.get("size") or 0, 0
        for field, statuses in SOURCES:
            given = want.get(field)
            if not given or not is_uuid(given):  # a name that is left is one that a dry run assumes
                continue
            if have and given == have["id"]:
                raise InvalidField(field, "must be another volume: this one is gone when it is made anew", given)
            found = self.source(caller, field, given, statuses)
            least = found["size"]
            if field == "image":
                least = max(found.get("min_disk") or 0, -(-(found.get("virtual_size") or least or 0) // GIB))
            size = size or (0 if field == "image" else least)
            if size < least:
                raise InvalidField("size", f"must be at least {least} GiB, which its {field} needs", size)
        if want["pool"] != "default":
            try:
                caller.cloud.services.volume.types.find(caller.context, want["pool"])
            except NotFound as error:
                raise InvalidField("pool", f"must be one that there is. {error.message}", want["pool"]) from None
        assumed = any(want.get(field) and not is_uuid(want[field]) for field, _statuses in SOURCES)
        if not size and not assumed:
            raise InvalidField("size", "is required to make a volume that is no copy of another")
        self.check_quota(caller, size, have)

    def _check_removable(self, caller: Caller, have: Document) -> None:
        users = sorted(one["server"] for one in have["attachments"])
        if users:
            raise Conflict(f"Volume {have['name']!r} is attached to server {', '.join(users)}. Detach it first, then "
                           "make it anew.", users=users)
        if have["_status"] != "available" and "error" not in have["_status"]:
            raise Conflict(f"Volume {have['name']!r} is {have['_status']}. Wait until it is available, then repeat the "
                           "call.")
        if SNAPSHOTS.every(caller, volume_id=have["id"]):
            raise Conflict(f"Volume {have['name']!r} has snapshots, and cannot go before them. Remove them first, then "
                           "make it anew.")

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        check_writer(caller.context)
        wanted = {"name": want["name"], "description": want["description"], "metadata": want["metadata"],
                  "multiattach": want["multiattach"], "image_id": want["image"],
                  "source_volume_id": want["source_volume"], "snapshot_id": want["snapshot"],
                  "volume_type": None if want["pool"] == "default" else want["pool"]}
        made = caller.cloud.services.volume.create(caller.context, want.get("size") or 0, **{
            name: value for name, value in wanted.items() if value})
        return self.made(caller, str(made["id"]), operation)

    def plan(self, want: Document | None, have: Document | None) -> Iterator[Step]:
        yield from super().plan(want, have)
        if want and have and want.get("size") != have["size"]:
            yield Step("grow", f"grow it to {want['size']} GiB")

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        super().change(caller, have, want, names, operation)
        if "size" in names:
            caller.cloud.services.volume.act(caller.context, have["id"], actions.extend, new_size=want["size"],
                                             in_use=True)
            self.wait_until_ready(caller, str(have["id"]), operation)
            if self.one(caller, str(have["id"]))["size"] < want["size"]:
                raise Conflict(f"Volume {have['name']!r} did not grow: {self.why(caller, str(have['id']))}")


class CloudSnapshots(Stored):
    kind = VolumeSnapshot
    counted = ("snapshots", "maxTotalSnapshots")

    def shown(self, caller: Caller, one: Mapping[str, Any]) -> Document:
        return {**_alike(one), "metadata": one["metadata"], "volume": one["volume_id"], "pool": None, "bootable": False,
                "host": "", "status": one["status"] if one["status"] in ("creating", "available") else "error"}

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        given = str(want["volume"])
        rule = f"there is no volume {given!r} that you may use"
        found = None if is_uuid(given) else VOLUMES.referred(caller, given, "volume", rule)
        return {**want, "volume": found["id"] if found else given}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """The volume is there, and may have one more."""
        if is_uuid(want["volume"]):  # else a dry run assumes it
            volume = self.source(caller, "volume", want["volume"], ("available", "in-use"))
            self.check_quota(caller, volume["size"], have)

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Take it, of a volume in use too."""
        check_writer(caller.context)
        made = caller.cloud.services.volume.create_snapshot(
            caller.context, want["volume"], name=want["name"], description=want["description"],
            metadata=want["metadata"])
        return self.made(caller, str(made["id"]), operation)


IMAGES, VOLUMES, SNAPSHOTS = CloudImages(), CloudVolumes(), CloudSnapshots()
