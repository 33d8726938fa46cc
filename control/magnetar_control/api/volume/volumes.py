# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of volumes, and their actions: ``POST /volumes/{id}/action`` with one key, the action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Id, record
from magnetar_control.services import Document, Documents
from magnetar_control.services.volume import actions
from magnetar_control.services.volume.rows import VolumeListing, check_writer
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import Record
from magnetar_core.values import Choices, ListOf, Nullable, Text

from . import views
from .nouns import MOMENTS, NounRoutes, listing
from .values import ID, IGNORED, METADATA, MODE, NAME, NAMES, SIZE, TRUTH, Stripped, body, is_set, named

#: What volumes can be made from elsewhere, and not here.
NOT_HERE = ("consistencygroup_id", "group_id", "backup_id", "source_replica")
#: What old clients say of a new volume, which is so anyway.
SAID = ("user_id", "project_id", "status", "attach_status")
CREATE = record({
    **NAMES, "size": Nullable(SIZE), "availability_zone": NAME, "volume_type": NAME, "snapshot_id": ID,
    "source_volid": ID, "imageRef": ID, "image_id": ID, "metadata": METADATA, "multiattach": TRUTH,
    **dict.fromkeys((*NOT_HERE, *SAID), IGNORED)})
HINTS = ("OS-SCH-HNT:scheduler_hints", "scheduler_hints")
HINT = Nullable(record({"same_host": ListOf(Id(), 100), "different_host": ListOf(Id(), 100)}))
#: What an admin may set a status to.
STATUSES = ("creating", "available", "deleting", "error", "error_deleting", "error_extending", "attaching", "detaching",
            "in-use", "reserved", "maintenance")
#: The first microversion that images volumes anew.
REIMAGE = (3, 68)
#: Actions of Cinder that hosts' own disks do not offer, and why.
NO_ACTIONS = {
    "os-retype": "content stays in its pool; make a new volume of the other type with source_volid",
    "os-migrate_volume": "content stays on its host; servers of other hosts reach it there",
    "revert": "its content is not replaced; make a new volume from the snapshot",
    "os-migrate_volume_completion": "nothing migrates; content stays on its host",
    "os-unmanage": "a host does not keep what this service has given up; make an image of it before you delete it",
    "os-force_detach": "openstack server remove volume unplugs it; openstack volume set --detached drops what is left",
    "os-initialize_connection": "attachments say who connects it (3.27); hosts connect it by themselves"}


class Status(Choices):
    """A status, in any case; the empty text is none."""

    def check(self, value: object, path: str, version: object = None) -> str | None:
        """In lower case."""
        word = str(value or "").lower()
        return super().check(word, path) if word else None


@dataclass(frozen=True)
class VolumeAction:
    """What is done, the fields of the action, and the status of the answer."""

    act: Callable[..., Document | None]
    body: Record
    status: int = 202


ACTIONS = {
    "os-extend": VolumeAction(actions.extend, record({"new_size": SIZE}, "new_size")),
    "os-reimage": VolumeAction(actions.reimage, record({"image_id": Id(), "reimage_reserved": TRUTH}, "image_id")),
    "os-set_bootable": VolumeAction(actions.set_bootable, record({"bootable": TRUTH}, "bootable"), 200),
    "os-reset_status": VolumeAction(actions.reset_status, record({
        "status": Status(*STATUSES), "attach_status": Status("attached", "detached"),
        "migration_status": Nullable(Choices("none", ""))})),
    "os-force_delete": VolumeAction(actions.force_delete, record({})),
    "os-reserve": VolumeAction(actions.reserve, record({})),
    "os-unreserve": VolumeAction(actions.unreserve, record({})),
    "os-attach": VolumeAction(actions.attach, record({
        "instance_uuid": Id(), "mountpoint": NAME, "mode": MODE, "host_name": NAME}, "instance_uuid")),
    "os-begin_detaching": VolumeAction(actions.begin_detaching, record({})),
    "os-roll_detaching": VolumeAction(actions.roll_detaching, record({})),
    "os-detach": VolumeAction(actions.detach, record({"attachment_id": ID})),
    "os-update_readonly_flag": VolumeAction(actions.set_readonly, record({"readonly": TRUTH})),
    "os-terminate_connection": VolumeAction(
        actions.terminate_connection, record({"connector": IGNORED}, "connector")),
    "os-show_image_metadata": VolumeAction(actions.show_image_metadata, record({}), 200),
    "os-set_image_metadata": VolumeAction(actions.set_image_metadata, record({"metadata": METADATA}), 200),
    "os-unset_image_metadata": VolumeAction(actions.unset_image_metadata, record({"key": Stripped()}), 200)}


UPLOAD = "os-volume_upload_image"
UPLOAD_BODY = record({
    "image_name": Text(1, 255), "force": TRUTH, "container_format": Nullable(Choices("bare")),
    "disk_format": Nullable(Choices("raw", "qcow2")), "visibility": Choices("public", "private", "shared", "community"),
    "protected": TRUTH}, "image_name")
#: The first microversion that says who sees the image.
VISIBILITY = (3, 1)


class VolumeRoutes(NounRoutes):
    name = "volume"
    filters = ("name", "status", "bootable", "multiattach", "availability_zone", "size", "user_id", "id", "snapshot_id",
               "source_volid", "metadata", "glance_metadata", "volume_type", "encryption_key_id", *MOMENTS)

    def routes(self) -> list[Guarded]:
        return [*super().routes(), route("GET volumes/summary", self.summary),
                route("POST volumes/{id}/action", self.act)]

    def page(self, request: Request, asked: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        return self.service.volumes.list(request.context, asked, attached=detailed)

    def view(self, request: Request, row: Any, detailed: bool = True, extended: bool = True) -> Document:
        return views.volume(request, row, extended) if detailed else views.brief(request, row)

    def summary(self, request: Request) -> Document:
        """How many, and how large together (3.12); their metadata (3.36)."""
        check_known(request, ("all_tenants", "project_id"))
        count, size, values = self.service.volumes.summary(request.context, listing(request, ()))
        more = {"metadata": {key: sorted(each) for key, each in values.items()}}
        return {"volume-summary": {"total_count": count, "total_size": size,
                                   **(more if request.extra["version"] >= (3, 36) else {})}}

    def create(self, request: Request) -> Document:
        """Note what is to be made; the worker makes it."""
        check_writer(request.context)
        outer = request.json()
        if isinstance(outer, dict) and (unknown := sorted(set(outer) - {"volume", *HINTS})):
            raise InvalidRequest(f"Additional properties are not allowed ({unknown}).")
        given = body(request, "volume", CREATE)
        if wrong := next((name for name in NOT_HERE if given.get(name)), None):
            raise InvalidField(wrong, "must be left out: volumes are not made from it here, and belong to no groups")
        so = dict(zip(SAID, (request.context.user_id, request.context.project_id, "creating", "detached"), strict=True))
        if wrong := next((name for name in SAID if given.get(name) not in (None, "", so[name])), None):
            raise InvalidField(wrong, f"of a new volume is {so[wrong]}; leave it out", given[wrong])
        zone = given.get("availability_zone")
        if zone not in (None, "", self.service.zone):
            raise InvalidRequest(f"Invalid input received: Availability zone '{zone}' is invalid; there is "
                                 f"'{self.service.zone}'.")
        wanted = {**named(given), **{name: given[name] for name in (
            "volume_type", "snapshot_id", "metadata", "multiattach") if given.get(name)}}
        made = self.service.create(
            request.context, given.get("size") or 0, image_id=given.get("imageRef") or given.get("image_id"),
            source_volume_id=given.get("source_volid"), hints=_hints(outer), **wanted)
        request.params["id"] = made["id"]
        return self.changed(request)

    def delete(self, request: Request) -> None:
        self.store.delete(*request.named(is_set(request, "cascade"), is_set(request, "force")))

    def _upload(self, request: Request, given: Document) -> Document:
        """Have an image made of the volume. ``force`` does not help one in use, as with Cinder's default. Raises
        ``InvalidField`` for what came with 3.1 before it."""
        named = {"disk_format": given.get("disk_format") or "raw", "container_format": "bare"}
        since = request.extra["version"] >= VISIBILITY
        seen = {name: given[name] for name in ("visibility", "protected") if name in given}
        if seen and not since:
            raise InvalidField(next(iter(seen)), "is there since microversion 3.1; ask for that in the header "
                               "OpenStack-API-Version")
        made = self.service.upload_image(request.context, request.params["id"], given["image_name"], **named, **seen)
        volume, image = made["volume"], made["image"]
        return {**{name: volume[name] for name in ("id", "status", "size", "updated_at")},
                "display_description": volume["description"], "image_id": image["id"], "image_name": image["name"],
                "volume_type": views.type(request, self.service.types.of(volume["volume_type"])), **named,
                **({name: image[name] for name in ("visibility", "protected")} if since else {})}

    def act(self, request: Request) -> Answer:
        """Do the action that the body names."""
        outer = request.json()
        if not isinstance(outer, dict) or len(outer) != 1:
            raise InvalidRequest("The body must hold one action, such as {\"os-extend\": {\"new_size\": 2}}.")
        (name, given), = outer.items()
        if name == UPLOAD:
            return Answer({name: self._upload(request, UPLOAD_BODY.check(given or {}, name))}, 202)
        if name in NO_ACTIONS:
            raise InvalidRequest(f"Embedded volumes have no {name}: {NO_ACTIONS[name]}.")
        if name not in ACTIONS:
            raise InvalidRequest(f"There is no such action: {name[:80]}.")
        if name == "os-reimage" and request.extra["version"] < REIMAGE:
            raise NotFound(f"{name} is there since microversion {'.'.join(map(str, REIMAGE))}.")
        action = ACTIONS[name]
        values = action.body.check({} if given in (None, "") else given, name)  # "": gophercloud's os-force_delete
        if name == "os-extend":
            values["in_use"] = request.extra["version"] >= (3, 42)
        elif name == "os-attach":
            values["mode"] = values.get("mode") or "rw"
        elif name == "os-reset_status":
            values.pop("migration_status", None)  # nothing migrates, so that it has none is so
            if not any(values.values()):
                raise InvalidField("status", "or attach_status is required")
        return Answer(self.service.act(*request.named(action.act), **values), action.status)


def _hints(outer: Document) -> Document:
    """Where the volume is to lie, by those that are there. One id need not be in a list."""
    found: Document = {}
    for name in HINTS:
        given = outer.get(name)
        if isinstance(given, dict):
            given = {key: [value] if isinstance(value, str) else value for key, value in given.items()}
        found |= HINT.check(given, name) or {}
    return found
