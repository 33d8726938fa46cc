# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of volumes, and their actions: ``POST /volumes/{id}/action`` with one key, the action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.api.values import Id, build_record
from magnetar_control.services.volume import EmbeddedVolumes, actions
from magnetar_control.services.volume.rows import VolumeListing, check_volume_writer
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import Record
from magnetar_core.values import Choices, ListOf, Nullable, Text

from . import views
from .managing import UNMANAGE, UNMANAGE_BODY, unmanage_volume
from .migrations import MIGRATE, MIGRATE_BODY, RETYPE, RETYPE_BODY, migration_actions
from .nouns import MOMENTS, VolumeResourceRoutes, parse_volume_listing
from .values import ID, IGNORED, METADATA, MODE, NAME, NAMES, SIZE, TRUTH, Stripped, checked_body, is_set, name_fields

#: Sources of volumes that other clouds have.
NOT_HERE = ("consistencygroup_id", "group_id", "backup_id", "source_replica")
#: Fields in the requests of old clients that repeat what is true for each new volume.
SAID = ("user_id", "project_id", "status", "attach_status")
CREATE = build_record({
    **NAMES, "size": Nullable(SIZE), "availability_zone": NAME, "volume_type": NAME, "snapshot_id": ID,
    "source_volid": ID, "imageRef": ID, "image_id": ID, "metadata": METADATA, "multiattach": TRUTH,
    **dict.fromkeys((*NOT_HERE, *SAID), IGNORED)})
HINTS = ("OS-SCH-HNT:scheduler_hints", "scheduler_hints")
HINT = Nullable(build_record({"same_host": ListOf(Id(), 100), "different_host": ListOf(Id(), 100)}))
#: Statuses that an administrator may set.
STATUSES = ("creating", "available", "deleting", "error", "error_deleting", "error_extending", "attaching", "detaching",
            "in-use", "reserved", "maintenance", "error_managing", "error_unmanaging")
#: The first microversion with the action that images a volume again.
REIMAGE = (3, 68)
#: Actions of Cinder that hosts' own disks do not support, and the reasons.
NO_ACTIONS = {
    "revert": "its content is not replaced; make a new volume from the snapshot",
    "os-migrate_volume_completion": "a migration completes by itself; openstack volume migrate begins one",
    "os-extend_volume_completion": "a volume that grows does so by itself; openstack volume show has its status",
    "os-force_detach": "openstack server remove volume unplugs it; openstack volume set --detached drops what is left",
    "os-initialize_connection": "attachments say who connects it (3.27); hosts connect it by themselves"}


class Status(Choices):
    """A validator of a volume status, in upper or lower case. The empty text and null mean no status."""

    def check(self, value: object, path: str, version: object = None) -> str | None:
        """Return the status *value* in lower case; ``None`` for the empty text and null. Raises ``InvalidField``."""
        status = str(value or "").lower()
        return super().check(status, path) if status else None


@dataclass(frozen=True)
class VolumeAction:
    """An action in the body of POST /volumes/{id}/action. *act*: the function that runs it. *body*: the validator of
    its fields. *status*: the HTTP status of the answer."""

    act: Callable[..., Document | None]
    body: Record
    status: int = 202


ACTIONS = {
    "os-extend": VolumeAction(actions.extend_volume, build_record({"new_size": SIZE}, "new_size")),
    "os-reimage": VolumeAction(actions.reimage_volume, build_record({"image_id": Id(), "reimage_reserved": TRUTH},
                                                                    "image_id")),
    "os-set_bootable": VolumeAction(actions.set_bootable, build_record({"bootable": TRUTH}, "bootable"), 200),
    "os-reset_status": VolumeAction(actions.reset_status, build_record({
        "status": Status(*STATUSES), "attach_status": Status("attached", "detached"),
        "migration_status": Nullable(Choices("none", ""))})),
    "os-force_delete": VolumeAction(actions.force_delete_volume, build_record({})),
    "os-reserve": VolumeAction(actions.reserve_volume, build_record({})),
    "os-unreserve": VolumeAction(actions.unreserve_volume, build_record({})),
    "os-attach": VolumeAction(actions.attach_volume, build_record({
        "instance_uuid": Id(), "mountpoint": NAME, "mode": MODE, "host_name": NAME}, "instance_uuid")),
    "os-begin_detaching": VolumeAction(actions.begin_volume_detaching, build_record({})),
    "os-roll_detaching": VolumeAction(actions.roll_volume_detaching, build_record({})),
    "os-detach": VolumeAction(actions.detach_volume, build_record({"attachment_id": ID})),
    "os-update_readonly_flag": VolumeAction(actions.set_readonly, build_record({"readonly": TRUTH})),
    "os-terminate_connection": VolumeAction(
        actions.terminate_connection, build_record({"connector": IGNORED}, "connector")),
    "os-show_image_metadata": VolumeAction(actions.show_image_metadata, build_record({}), 200),
    "os-set_image_metadata": VolumeAction(actions.set_image_metadata, build_record({"metadata": METADATA}), 200),
    "os-unset_image_metadata": VolumeAction(actions.unset_image_metadata, build_record({"key": Stripped()}), 200)}


UPLOAD = "os-volume_upload_image"
UPLOAD_BODY = build_record({
    "image_name": Text(1, 255), "force": TRUTH, "container_format": Nullable(Choices("bare")),
    "disk_format": Nullable(Choices("raw", "qcow2")), "visibility": Choices("public", "private", "shared", "community"),
    "protected": TRUTH}, "image_name")
#: Bodies of the actions that move or release a volume.
MOVE_BODIES = {MIGRATE: MIGRATE_BODY, RETYPE: RETYPE_BODY, UNMANAGE: UNMANAGE_BODY}
#: The first microversion that sets the image's visibility.
VISIBILITY = (3, 1)


class VolumeRoutes(VolumeResourceRoutes):
    name = "volume"
    filters = ("name", "status", "bootable", "multiattach", "availability_zone", "size", "user_id", "id", "snapshot_id",
               "source_volid", "metadata", "glance_metadata", "volume_type", "encryption_key_id", *MOMENTS)

    def __init__(self, service: EmbeddedVolumes) -> None:
        super().__init__(service)
        #: Functions of actions that need more than the volume's row.
        self.special: dict[str, Callable[[Request, Any], Answer]] = {
            UPLOAD: self._upload, UNMANAGE: partial(unmanage_volume, service),
            **migration_actions(service.migrations)}

    def routes(self) -> list[Guarded]:
        return [*super().routes(), guarded_route("GET volumes/summary", self.summary),
                guarded_route("POST volumes/{id}/action", self.act)]

    def page(self, request: Request, listing: VolumeListing, detailed: bool) -> tuple[Documents, int | None]:
        return self.service.volumes.list(request.context, listing, attached=detailed)

    def view(self, request: Request, row: Any, detailed: bool = True, extended: bool = True) -> Document:
        return views.volume_view(request, row, extended) if detailed else views.brief_volume_view(request, row)

    def summary(self, request: Request) -> Document:
        """Return the number and the total size of the project's volumes (3.12), and since 3.36 the values of each
        metadata key."""
        check_known(request, ("all_tenants", "project_id"))
        count, size, values = self.service.volumes.summary(request.context, parse_volume_listing(request, ()))
        more = {"metadata": {key: sorted(each) for key, each in values.items()}}
        return {"volume-summary": {"total_count": count, "total_size": size,
                                   **(more if request.extra["version"] >= (3, 36) else {})}}

    def create(self, request: Request) -> Document:
        """Create the database row of a new volume, and return it. A background worker then creates the volume."""
        check_volume_writer(request.context)
        outer = request.json()
        if isinstance(outer, dict) and (unknown := sorted(set(outer) - {"volume", *HINTS})):
            raise InvalidRequest(f"Additional properties are not allowed ({unknown}).")
        requested = checked_body(request, "volume", CREATE)
        if wrong := next((name for name in NOT_HERE if requested.get(name)), None):
            raise InvalidField(wrong, "must be left out: volumes are not made from it here, and belong to no groups")
        so = dict(zip(SAID, (request.context.user_id, request.context.project_id, "creating", "detached"), strict=True))
        if wrong := next((name for name in SAID if requested.get(name) not in (None, "", so[name])), None):
            raise InvalidField(wrong, f"of a new volume is {so[wrong]}; leave it out", requested[wrong])
        zone = requested.get("availability_zone")
        if zone not in (None, "", self.service.zone):
            raise InvalidRequest(f"Invalid input received: Availability zone '{zone}' is invalid; there is "
                                 f"'{self.service.zone}'.")
        arguments = {**name_fields(requested), **{name: requested[name] for name in (
            "volume_type", "snapshot_id", "metadata", "multiattach") if requested.get(name)}}
        made = self.service.create(
            request.context, requested.get("size") or 0, image_id=requested.get("imageRef")
            or requested.get("image_id"),
            source_volume_id=requested.get("source_volid"), hints=_hints(outer), **arguments)
        request.params["id"] = made["id"]
        return self.changed(request)

    def delete(self, request: Request) -> None:
        self.store.delete(*request.service_arguments(is_set(request, "cascade"), is_set(request, "force")))

    def _upload(self, request: Request, arguments: Any) -> Answer:
        return Answer({UPLOAD: self._image_of(request, UPLOAD_BODY.check(arguments or {}, UPLOAD))}, 202)

    def _image_of(self, request: Request, options: Document) -> Document:
        """Handle os-volume_upload_image: create an image from the volume, and return fields of the image and of the
        volume for the answer. ``force`` has no effect, as with Cinder's default settings. Raises ``InvalidField`` for
        ``visibility`` and ``protected`` before 3.1."""
        named = {"disk_format": options.get("disk_format") or "raw", "container_format": "bare"}
        since = request.extra["version"] >= VISIBILITY
        access_fields = {name: options[name] for name in ("visibility", "protected") if name in options}
        if access_fields and not since:
            raise InvalidField(next(iter(access_fields)), "is there since microversion 3.1; ask for that in the header "
                               "OpenStack-API-Version")
        made = self.service.upload_image(request.context, request.params["id"], options["image_name"], **named,
                                         **access_fields)
        volume, image = made["volume"], made["image"]
        return {**{name: volume[name] for name in ("id", "status", "size", "updated_at")},
                "display_description": volume["description"], "image_id": image["id"], "image_name": image["name"],
                "volume_type": views.volume_type_view(request, self.service.types.of(volume["volume_type"])), **named,
                **({name: image[name] for name in ("visibility", "protected")} if since else {})}

    def act(self, request: Request) -> Answer:
        """Run the volume action in the body, such as os-extend, and return its answer."""
        outer = request.json()
        if not isinstance(outer, dict) or len(outer) != 1:
            raise InvalidRequest("The body must hold one action, such as {\"os-extend\": {\"new_size\": 2}}.")
        (name, arguments), = outer.items()
        if name in self.special:
            return self.special[name](request, arguments)
        if name in NO_ACTIONS:
            raise InvalidRequest(f"Embedded volumes have no {name}: {NO_ACTIONS[name]}.")
        if name not in ACTIONS:
            raise InvalidRequest(f"There is no such action: {name[:80]}.")
        if name == "os-reimage" and request.extra["version"] < REIMAGE:
            raise NotFound(f"{name} is there since microversion {'.'.join(map(str, REIMAGE))}.")
        action = ACTIONS[name]
        # gophercloud's os-force_delete sends ""
        values = action.body.check({} if arguments in (None, "") else arguments, name)
        if name == "os-extend":
            values["in_use"] = request.extra["version"] >= (3, 42)
        elif name == "os-attach":
            values["mode"] = values.get("mode") or "rw"
        elif name == "os-reset_status":
            _check_reset(values)
        return Answer(self.service.act(*request.service_arguments(action.act), **values), action.status)


def _check_reset(values: Document) -> None:
    """Raise ``InvalidField`` if *values*, the fields of os-reset_status, do not contain a status."""
    if not any(values.values()):
        raise InvalidField("status", "or attach_status or migration_status is required")


def _hints(outer: Document) -> Document:
    """Return the scheduler hints in *outer*, the whole body of a request for a new volume. The hints same_host and
    different_host contain uuids of volumes; a single uuid is converted to a list. Raises ``InvalidField``."""
    hints: Document = {}
    for name in HINTS:
        requested = outer.get(name)
        if isinstance(requested, dict):
            requested = {key: [value] if isinstance(value, str) else value for key, value in requested.items()}
        hints |= HINT.check(requested, name) or {}
    return hints
