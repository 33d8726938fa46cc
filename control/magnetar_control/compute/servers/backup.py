# SPDX-License-Identifier: GPL-3.0-or-later
"""createBackup: an image of a server that is one of several of its kind, of which old ones go."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, of_server, on_volume
from magnetar_core.errors import InvalidRequest

from .server_images import image_fields, make_image


@of_server("createBackup")
def create_backup(caller: Caller, target: Target, name: str, backup_type: str, rotation: int,
                  properties: Mapping[str, str] | None = None) -> str:
    """An image of the server's root disk, queued at once. When it has its content, the oldest of the server's backups
    of this *backup_type* that are more than *rotation* are deleted; with 0 it is deleted itself. Returns its uuid.
    Raises ``InvalidRequest`` for a server on a volume, of which Nova makes no backups either."""
    server, id = target.row, str(uuid.uuid4())
    if on_volume(server):
        raise InvalidRequest("Backup is not supported for volume-backed instances. Make snapshots of its volumes, or "
                             "an image of it (createImage), which names such snapshots.")
    # What backups are found by is not the caller's to say.
    told = {**(properties or {}), "image_type": "backup", "backup_type": backup_type, "instance_uuid": server.id}
    return make_image(caller, target, "createBackup", id, {"name": name, **image_fields(caller, server, told)},
                      rotation=rotation)
