# SPDX-License-Identifier: GPL-3.0-or-later
"""Images made from servers: createImage, and createBackup, whose rotation deletes old backups. The images inherit
properties of the image that the server was made from, as in Nova."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, boots_from_volume, enqueue_action, server_use_case
from magnetar_control.services.image.fields import SIGNATURE, is_property
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import policy_rule_of_action
from magnetar_core.errors import Forbidden, InvalidRequest, MagnetarError, TooLarge
from magnetar_core.hardware import machines

from .block_devices import snapshot_block_devices

#: Properties that no image inherits, regardless of the settings: a signature belongs to one content, and a key to one
#: owner.
NEVER = (*SIGNATURE, "cinder_encryption_key_id", "cinder_encryption_key_deletion_policy")


@server_use_case("createImage")
def create_server_image(caller: Caller, target: ServerTarget, name: str,
                        properties: Mapping[str, str] | None = None) -> str:
    """Create an image of the server's root disk, and return the image's uuid. The image has the status queued until a
    conductor has uploaded its content."""
    server, id = target.row, str(uuid.uuid4())
    mapping, taken = snapshot_block_devices(caller, server, id)
    if taken:
        caller.check_policy(f"{policy_rule_of_action('createImage')}:allow_volume_backed", server)
    return queue_server_image(caller, target, "createImage", id, {
        "name": name, **image_fields(caller, server, properties, mapping if taken else None)}, snapshots=taken)


def queue_server_image(caller: Caller, target: ServerTarget, key: str, id: str, fields: Mapping[str, Any],
                       **args: Any) -> str:
    """Create the image *id* with the metadata *fields* but without content, and queue the action *key* (with *args*),
    which uploads the content. Return *id*. Raises ``Forbidden`` when the project's quota of images is used up."""
    images = caller.cloud.services.image
    try:
        images.create(caller.context, id=id, **fields)
    except TooLarge as error:  # Glance answers 413 when over quota, Nova 403
        raise Forbidden(error.message) from None
    try:
        enqueue_action(caller, target, key, {"image": id, "name": fields["name"], **args})
    except MagnetarError:
        images.delete(caller.context, id)
        raise
    return id


def image_fields(caller: Caller, server: ServerRow, properties: Mapping[str, str] | None = None,
                 mapping: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Return the fields for creating an image of the server's root disk, without name and id. *properties*: further
    image properties. *mapping*: for a server that boots from a volume, the block device mapping to store with the
    image. It refers to snapshots of the server's volumes; the image itself has no content then."""
    stored_image = server.image
    image_properties = {**_inherited_properties(stored_image, caller.settings.non_inheritable_image_properties),
                        "image_type": "snapshot", "instance_uuid": server.id, "user_id": caller.context.user_id,
                        "base_image_ref": server.image_id or "", **(properties or {})}
    if mapping is not None:
        image_properties.update(block_device_mapping=servers.json_text(mapping), bdm_v2=True,
                                root_device_name=server.root_device_name)
    # An admin's image of a server belongs to the admin, and is shared with the server's project.
    other_project = caller.context.project_id != server.project_id
    return {"disk_format": "qcow2" if mapping is None else "raw", "container_format": "bare",
            **({"visibility": "shared", "share_with": server.project_id} if other_project
               else {"visibility": "private"}),
            "properties": {key: str(value) for key, value in image_properties.items()},
            "min_ram": stored_image.get("min_ram") or 0,
            "min_disk": 0 if mapping is not None else server.flavor["disk"]}


def _inherited_properties(stored_image: Mapping[str, Any], excluded_names: Collection[str]) -> dict[str, Any]:
    """Return the properties that an image of a server inherits from the server's own image: all except
    *excluded_names*, signatures and encryption keys. *stored_image*: the fields of the server's own image, as stored in
    the server's row. The guest's machine type is added, because a later server that is created from the new image needs
    the same machine type."""
    inheritable = machines.properties_with_machine(stored_image.get("properties") or {},
                                                   machines.machine_of_image(stored_image))
    return {name: value for name, value in inheritable.items()
            if is_property(name) and name not in NEVER and name not in excluded_names}


@server_use_case("createBackup")
def create_server_backup(caller: Caller, target: ServerTarget, name: str, backup_type: str, rotation: int,
                         properties: Mapping[str, str] | None = None) -> str:
    """Create a backup image of the server's root disk, and return the image's uuid. The image has the status queued
    until a conductor has uploaded its content. Then the server's oldest backups of this *backup_type* are deleted, so
    that at most *rotation* remain (0: the new backup is deleted too). Raises ``InvalidRequest`` for a server that boots
    from a volume, as Nova does."""
    server, id = target.row, str(uuid.uuid4())
    if boots_from_volume(server):
        raise InvalidRequest("Backup is not supported for volume-backed instances. Make snapshots of its volumes, or "
                             "an image of it (createImage), which names such snapshots.")
    # The caller cannot override the properties that identify backups.
    backup_properties = {**(properties or {}), "image_type": "backup", "backup_type": backup_type,
                         "instance_uuid": server.id}
    return queue_server_image(caller, target, "createBackup", id,
                              {"name": name, **image_fields(caller, server, backup_properties)}, rotation=rotation)
