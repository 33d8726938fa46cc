# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions of a volume: ``POST /volumes/{id}/action`` with one key, the action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar_control.api.values import Id, record
from magnetar_control.services import Document
from magnetar_control.services.volume import Embedded, actions
from magnetar_control.web import Answer, Request
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.fields import Record
from magnetar_core.values import Choices, Nullable

from .values import ID, IGNORED, METADATA, NAME, SIZE, TRUTH, Stripped

#: What an admin may set a status to.
STATUSES = ("creating", "available", "deleting", "error", "error_deleting", "error_extending", "attaching", "detaching",
            "in-use", "reserved", "maintenance")
#: Actions of Cinder that hosts' own disks do not offer, and why.
NOT_HERE = {
    "os-volume_upload_image": "the agents do not read volumes out; copy it to a volume, or make an image of a server",
    "os-retype": "content stays in its pool; make a new volume of the other type with source_volid",
    "os-migrate_volume": "content stays on its host; servers of other hosts reach it there",
    "os-reimage": "its content is not replaced; make a new volume from the image",
    "revert": "its content is not replaced; make a new volume from the snapshot"}


class Status(Choices):
    """A status, in any case; the empty text is none."""

    def check(self, value: object, path: str, version: object = None) -> str | None:
        """In lower case."""
        word = str(value or "").lower()
        return super().check(word, path) if word else None


@dataclass(frozen=True)
class Action:
    """What is done, the fields of the action, and the status of the answer."""

    act: Callable[..., Document | None]
    body: Record
    status: int = 202


ACTIONS = {
    "os-extend": Action(actions.extend, record({"new_size": SIZE}, "new_size")),
    "os-set_bootable": Action(actions.set_bootable, record({"bootable": TRUTH}, "bootable"), 200),
    "os-reset_status": Action(actions.reset_status, record({
        "status": Status(*STATUSES), "attach_status": NAME, "migration_status": IGNORED})),
    "os-force_delete": Action(actions.force_delete, record({})),
    "os-reserve": Action(actions.reserve, record({})), "os-unreserve": Action(actions.unreserve, record({})),
    "os-attach": Action(actions.attach, record({
        "instance_uuid": Id(), "mountpoint": NAME, "mode": Nullable(Choices("rw", "ro", "")), "host_name": NAME},
        "instance_uuid")),
    "os-begin_detaching": Action(actions.begin_detaching, record({})),
    "os-roll_detaching": Action(actions.roll_detaching, record({})),
    "os-detach": Action(actions.detach, record({"attachment_id": ID})),
    "os-update_readonly_flag": Action(actions.set_readonly, record({"readonly": TRUTH})),
    "os-show_image_metadata": Action(actions.show_image_metadata, record({}), 200),
    "os-set_image_metadata": Action(actions.set_image_metadata, record({"metadata": METADATA}), 200),
    "os-unset_image_metadata": Action(actions.unset_image_metadata, record({"key": Stripped()}), 200)}


class ActionRoute:
    """Does the action that the body names."""

    def __init__(self, service: Embedded) -> None:
        self.service = service

    def act(self, request: Request) -> Answer:
        """Do it."""
        body = request.json()
        if not isinstance(body, dict) or len(body) != 1:
            raise InvalidRequest("The body must hold one action, such as {\"os-extend\": {\"new_size\": 2}}.")
        (name, given), = body.items()
        if name in NOT_HERE:
            raise InvalidRequest(f"Embedded volumes have no {name}: {NOT_HERE[name]}.")
        if name not in ACTIONS:
            raise InvalidRequest(f"There is no such action: {name[:80]}.")
        action = ACTIONS[name]
        values = action.body.check({} if given is None else given, name)
        if name == "os-extend":
            values["in_use"] = request.extra["version"] >= (3, 42)
        elif name == "os-attach":
            values["mode"] = values.get("mode") or "rw"
        elif name == "os-reset_status":
            values.pop("migration_status", None)
            if not any(values.values()):
                raise InvalidField("status", "or attach_status is required")
        return Answer(self.service.act(request.context, request.params["id"], action.act, **values), action.status)
