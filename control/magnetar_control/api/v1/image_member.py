# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type image_member: projects with which images are shared; their key is PROJECT:IMAGE."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import to_second
from magnetar_control.compute.accounts.projects import resolve_project_id
from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound
from magnetar_core.kinds import ImageMember
from magnetar_core.operations import Operation
from magnetar_core.reconcile import is_uuid_key

from .driver import NAMESPACE, CloudDriver
from .flavor_access import split_access_key
from .image import CloudImages

IMAGES = CloudImages()


class ImageMembers(CloudDriver):
    """The driver of the v1 API for image members (projects that share an image). The owner of the image adds and
    removes members; each member project accepts or rejects the image."""

    kind = ImageMember
    takes_id = False

    def every(self, caller: Caller) -> list[Document]:
        return [_member(row) for row in _members(caller).list_all(caller.context)]

    def given(self, key: str, want: Document) -> Document:
        project, image = split_access_key(key, "IMAGE")
        return self.kind.check({**({"project": project} if project else {}), "image": image, **want}, partial=True)

    def find(self, caller: Caller, key: str) -> Document | None:
        """Return the image member with the key PROJECT:IMAGE; an empty PROJECT means the caller's project. Return
        ``None`` if there is none."""
        project, key = split_access_key(key, "IMAGE")
        image = self._image(caller, key)
        if image is None:
            return None
        try:
            return _member(_members(caller).show(caller.context, image, _project(caller, project)))
        except NotFound:
            return None

    def _image(self, caller: Caller, key: str) -> str | None:
        """Return the uuid of the image with the uuid or name *key*; ``None`` if there is none. An image that another
        project shares is found by name only after the caller's project has accepted it."""
        if is_uuid_key(key):
            image = caller.cloud.services.image.show(caller.context, key.lower())
        else:
            image = IMAGES.find(caller, key)
        return str(image["id"]) if image else None

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the uuid of the image, the id of the project, and the status (by default
        the current one, ``pending`` for a new member). Raises ``InvalidField`` for an unknown image or project."""
        image = self._image(caller, str(want["image"]))
        if image is None and is_uuid_key(str(want["image"])):
            raise InvalidField("image", "must be one that you may see", want["image"])
        if image is None:
            IMAGES.referred(caller, str(want["image"]), "image")
        project = _project(caller, want.get("project") or "")
        name = f"{project}:{image or want['image']}"
        return {**want, "image": image or want["image"], "project": project, "name": name,
                "status": want.get("status") or (have["status"] if have else "pending")}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Raise ``Forbidden`` unless the caller may set the status in *want*: only the member project and
        administrators may accept or reject an image."""
        context = caller.context
        if want["status"] != "pending" and not context.is_admin and want["project"] != context.project_id:
            raise Forbidden("Only the project with which it is shared accepts or rejects an image.")

    def check_change(self, caller: Caller, want: Document, have: Document) -> None:
        self.check_make(caller, {**want, "status": "answered"}, have)

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        self.check_make(caller, want, None)
        _members(caller).add(caller.context, want["image"], want["project"])
        if want["status"] != "pending":
            _members(caller).answer(caller.context, want["image"], want["project"], want["status"])
        return str(want["name"])

    def change(self, caller: Caller, have: Document, want: Document, names: list[str], operation: Operation) -> None:
        _members(caller).answer(caller.context, have["image"], have["project"], want["status"])

    def one(self, caller: Caller, key: str) -> Document:
        """Override ``CloudDriver.one``: return the image member with the key PROJECT:IMAGE or the uuid *key*. Raises
        ``NotFound``."""
        if is_uuid_key(key):
            member = next((member for member in self.every(caller) if member["id"] == key.lower()), None)
            if member is not None:
                return member
            raise NotFound(f"There is no image_member {key!r} in this cloud that you may see.", kind=self.kind.noun)
        return super().one(caller, key)

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        _members(caller).remove(caller.context, have["image"], have["project"])


def _members(caller: Caller) -> Any:
    """Return the store of image members in the embedded image service. Raises ``InvalidRequest`` for a cloud with a
    remote image service."""
    members = getattr(caller.cloud.services.image, "members", None)
    if members is None:
        raise InvalidRequest("The cloud has an image service of its own. Share images there, with `openstack image add "
                             "project`.")
    return members


def _project(caller: Caller, key: str) -> str:
    return resolve_project_id(caller, key, "project") if key else caller.project


def _member(row: Mapping[Any, Any]) -> Document:
    image, project = row["image_id"], row["member"]
    return {"id": str(uuid.uuid5(NAMESPACE, f"{project} {image}")), "name": f"{project}:{image}", "image": image,
            "project": project, "status": row["status"], "created_at": to_second(row["created_at"]),
            "updated_at": to_second(row["updated_at"] or row["created_at"])}
