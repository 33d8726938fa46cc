# SPDX-License-Identifier: GPL-3.0-or-later
"""Images that are made of servers: what they have of the image that a server was made from, as in Nova."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, enqueue, of_server
from magnetar_control.services.image.fields import SIGNATURE, is_property
from magnetar_control.store.servers import servers
from magnetar_core.actions import rule_of
from magnetar_core.errors import Forbidden, MagnetarError, TooLarge
from magnetar_core.hardware import machines

from .block_devices import snapshots

#: Properties that no image inherits, whatever the settings say: a signature is of one content, and a key of one owner.
NEVER = (*SIGNATURE, "cinder_encryption_key_id", "cinder_encryption_key_deletion_policy")


@of_server("createImage")
def create_image(caller: Caller, target: Target, name: str, properties: Mapping[str, str] | None = None) -> str:
    """An image of the server's root disk: it is there at once, queued, and active when the copy is done. Returns its
    uuid."""
    server, id = target.row, str(uuid.uuid4())
    mapping, taken = snapshots(caller, server, id)
    if taken:
        caller.check_policy(f"{rule_of('createImage')}:allow_volume_backed", server)
    return make_image(caller, target, "createImage", id, {
        "name": name, **image_fields(caller, server, properties, mapping if taken else None)}, snapshots=taken)


def make_image(caller: Caller, target: Target, key: str, id: str, fields: Mapping[str, Any], **args: Any) -> str:
    """Make the image *id* of these *fields*, queued, and ask for the action *key* that gives it its content, with these
    *args* besides. Returns its uuid. Raises ``Forbidden`` where the project may have no more images."""
    images = caller.cloud.services.image
    try:
        images.create(caller.context, id=id, **fields)
    except TooLarge as error:  # what is over quota at Glance is forbidden at Nova
        raise Forbidden(error.message) from None
    try:
        enqueue(caller, target, key, {"image": id, "name": fields["name"], **args})
    except MagnetarError:
        images.delete(caller.context, id)
        raise
    return id


def image_fields(caller: Caller, server: servers.Found, properties: Mapping[str, str] | None = None,
                 mapping: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """What an image of the server's root disk is made with, beside name and id. *mapping*: it stands for these
    snapshots of volumes instead."""
    kept = orjson.loads(server.image)
    found = {**_inherited(kept, caller.settings.non_inheritable_image_properties),
             "image_type": "snapshot", "instance_uuid": server.id, "user_id": caller.context.user_id,
             "base_image_ref": server.image_id or "", **(properties or {})}
    if mapping is not None:
        found.update(block_device_mapping=servers.text(mapping), bdm_v2=True, root_device_name=server.root_device_name)
    # Whose the server is sees what an admin makes of it, which is the admin's.
    others = caller.context.project_id != server.project_id
    return {"disk_format": "qcow2" if mapping is None else "raw", "container_format": "bare",
            **({"visibility": "shared", "share_with": server.project_id} if others else {"visibility": "private"}),
            "properties": {key: str(value) for key, value in found.items()}, "min_ram": kept.get("min_ram") or 0,
            "min_disk": 0 if mapping is not None else orjson.loads(server.flavor)["disk"]}


def _inherited(kept: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    """The properties that an image has of a server's, of which the row has *kept* this: those of the image that the
    server was made from, but for those *without*, and the machine type that its host has chosen, which its system
    knows."""
    own = machines.inherited(kept.get("properties") or {}, machines.machine_of(kept))
    return {name: value for name, value in own.items()
            if is_property(name) and name not in NEVER and name not in without}
