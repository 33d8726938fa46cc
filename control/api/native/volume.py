# SPDX-License-Identifier: GPL-3.0-or-later
"""volume and volume_snapshot: those of the volume service."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound, TimedOut
from magnetar_core.kinds import Volume, VolumeSnapshot
from magnetar_core.plan import Step

from .asks import Asks, Document
from .image import Images
from .noun import Noun, foreseen, is_uuid
from .operations import Operation

STATUS = {"available": "available", "in-use": "in-use", "creating": "creating", "downloading": "creating"}
#: Seconds between looks at something that is being made, and for how long.
LOOK, LIMIT = 0.1, 1800.0


def shown(volume: Mapping[str, Any]) -> Document:
    """Cinder's volume as the kind has it."""
    image = (volume.get("volume_image_metadata") or {}).get("image_id")
    return {"id": volume["id"], "name": volume["name"] or "", "description": volume["description"] or "",
            "size": volume["size"], "pool": volume["volume_type"], "format": None, "image": image,
            "source_volume": volume["source_volid"], "snapshot": volume["snapshot_id"],
            "metadata": {name: value for name, value in volume["metadata"].items() if name != "readonly"},
            "multiattach": volume["multiattach"], "bootable": volume["bootable"] == "true",
            "status": STATUS.get(volume["status"], "in-use" if volume["attachments"] else "error"
                                 if "error" in volume["status"] else "creating"),
            "attachments": [{"id": one["attachment_id"], "server": one["server_id"], "server_name": "",
                             "device": (one["device"] or "").rpartition("/")[2]} for one in volume["attachments"]],
            "shared": False, "host": (volume.get("os-vol-host-attr:host") or "").partition("@")[0], "fault": None,
            "created_at": volume["created_at"], "updated_at": volume["updated_at"], "_status": volume["status"]}


class Stored(Noun):
    """What the two have in common. *path* and *word*: in the volume API."""

    path, word = "", ""

    def shown(self, one: Mapping[str, Any]) -> Document:
        """As the kind has it."""
        raise NotImplementedError

    def every(self, asks: Asks) -> list[Document]:
        """Of the project."""
        return [self.shown(one) for one in asks.volume("GET", f"/{self.path}/detail")[self.path]]

    def ready(self, asks: Asks, id: str, operation: Operation) -> None:
        """Wait until nothing is done to it any more. Raises ``Conflict`` when it is in error then."""
        deadline = time.monotonic() + LIMIT
        while (status := self._status(asks, id)) not in ("available", "in-use"):
            operation.check()
            if status is None or "error" in status:
                raise Conflict(f"The {self.kind.noun} became {status or 'nothing'}: {self.why(asks, id)}")
            if time.monotonic() > deadline:
                raise TimedOut(f"The {self.kind.noun} {id} is still {status}.")
            time.sleep(LOOK)

    def made(self, asks: Asks, id: str, operation: Operation) -> None:
        """Wait until it is made; nothing is left of one that could not be."""
        try:
            self.ready(asks, id, operation)
        except Conflict:
            with contextlib.suppress(MagnetarError):
                asks.volume("DELETE", f"/{self.path}/{id}")
            raise

    def why(self, asks: Asks, id: str) -> str:
        """What the volume service says of its last failure."""
        found = [one["user_message"] for one in asks.volume("GET", "/messages")["messages"]
                 if one["resource_uuid"] == id]
        return str(found[0]) if found else "it does not say why; its log does."

    def _status(self, asks: Asks, id: str) -> str | None:
        try:
            return str(asks.volume("GET", f"/{self.path}/{id}")[self.word]["status"])
        except NotFound:
            return None

    def told(self, asks: Asks, have: Document, want: Document, names: list[str]) -> None:
        """Name, description, metadata."""
        body = {name: want[name] for name in names if name in ("name", "description")}
        if body:
            asks.volume("PUT", f"/{self.path}/{have['id']}", {self.word: body})
        if "metadata" in names:
            asks.volume("PUT", f"/{self.path}/{have['id']}/metadata", {"metadata": want["metadata"]})

    def remove(self, asks: Asks, have: Document, operation: Operation) -> None:
        """Delete it, and wait until it is gone."""
        asks.volume("DELETE", f"/{self.path}/{have['id']}")
        deadline = time.monotonic() + LIMIT
        while (status := self._status(asks, str(have["id"]))) is not None:
            if "error" in status:
                raise Conflict(f"The {self.kind.noun} {have['name']!r} could not be removed; it is {status}.")
            if time.monotonic() > deadline:
                raise TimedOut(f"The {self.kind.noun} {have['name']!r} is still being removed.")
            time.sleep(LOOK)


class Volumes(Stored):
    """volume."""

    kind, path, word = Volume, "volumes", "volume"
    made_by = (Step("make", "make the content"),)
    unmade_by = (Step("drop", "remove the content"),)

    def shown(self, one: Mapping[str, Any]) -> Document:
        """As the kind has it."""
        return shown(one)

    def complete(self, asks: Asks, want: Document, have: Document | None, warnings: list[str], dry: bool) -> Document:
        """Sources by uuid; they say how a volume is made, and are compared with what is noted of that."""
        want = dict(want)
        if want.get("format") not in (None, have and have["format"]):
            raise InvalidField("format", "is the pool's own affair in a cloud; leave it out", want["format"])
        want["format"] = have["format"] if have else None
        for name, noun in (("image", IMAGES), ("source_volume", self), ("snapshot", SNAPSHOTS)):
            given = want.get(name)
            if given and not is_uuid(given):
                found = noun.find(asks, given)
                if found is None:
                    foreseen(dry, warnings, InvalidField(name, f"there is no {noun.kind.noun} {given!r} in this cloud "
                                                               "that you may use"), noun.kind.noun, given)
                want[name] = found["id"] if found else given
        if have and want["pool"] == "default" != have["pool"]:
            want["pool"] = have["pool"]
        if have and want.get("size") is not None and want["size"] < have["size"]:
            raise Conflict(f"Volume {have['name']!r} has {have['size']} GiB, and volumes do not shrink.",
                           fields=["size"])
        return want

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """POST volumes; it waits for the content."""
        body = {"name": want["name"], "description": want["description"], "metadata": want["metadata"],
                "size": want.get("size"), "multiattach": want["multiattach"], "imageRef": want["image"],
                "source_volid": want["source_volume"], "snapshot_id": want["snapshot"],
                "volume_type": None if want["pool"] == "default" else want["pool"]}
        made = asks.volume("POST", "/volumes", {"volume": {name: value for name, value in body.items() if value}})
        self.made(asks, made["volume"]["id"], operation)

    def changed_by(self, want: Document, names: list[str]) -> tuple[Step, ...]:
        """More room has to be made."""
        return (Step("grow", f"grow it to {want['size']} GiB"),) if "size" in names else ()

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """What it is called, and more room."""
        self.told(asks, have, want, names)
        if "size" in names:
            asks.volume("POST", f"/volumes/{have['id']}/action", {"os-extend": {"new_size": want["size"]}})
            self.ready(asks, str(have["id"]), operation)
            if self.one(asks, str(have["id"]))["size"] < want["size"]:
                raise Conflict(f"Volume {have['name']!r} did not grow: {self.why(asks, str(have['id']))}")


class Snapshots(Stored):
    """volume_snapshot."""

    kind, path, word = VolumeSnapshot, "snapshots", "snapshot"
    made_by = (Step("make", "make the content"),)
    unmade_by = (Step("drop", "remove the content"),)

    def shown(self, one: Mapping[str, Any]) -> Document:
        """As the kind has it."""
        return {**{name: one[name] for name in ("id", "size", "created_at", "updated_at", "metadata")},
                "name": one["name"] or "", "description": one["description"] or "", "volume": one["volume_id"],
                "pool": None, "format": None, "bootable": False, "host": "", "fault": None,
                "status": one["status"] if one["status"] in ("creating", "available") else "error"}

    def complete(self, asks: Asks, want: Document, have: Document | None, warnings: list[str], dry: bool) -> Document:
        """The volume by uuid."""
        given = str(want["volume"])
        found = None if is_uuid(given) else VOLUMES.find(asks, given)
        if not is_uuid(given) and found is None:
            foreseen(dry, warnings, InvalidField("volume", f"there is no volume {given!r} that you may use"), "volume",
                     given)
        return {**want, "volume": found["id"] if found else given}

    def make(self, asks: Asks, want: Document, operation: Operation) -> None:
        """POST snapshots, of volumes in use too."""
        made = asks.volume("POST", "/snapshots", {"snapshot": {
            "volume_id": want["volume"], "name": want["name"], "description": want["description"],
            "metadata": want["metadata"], "force": True}})
        self.made(asks, made["snapshot"]["id"], operation)

    def change(self, asks: Asks, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        """What it is called."""
        self.told(asks, have, want, names)


IMAGES, VOLUMES, SNAPSHOTS = Images(), Volumes(), Snapshots()
