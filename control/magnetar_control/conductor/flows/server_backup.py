# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``createBackup``: create an image as ``createImage`` does, then delete old backups. They are deleted only
after the new one has its content, so a failed backup deletes none."""

from __future__ import annotations

import logging
from functools import partial

from magnetar_control.conductor.worker.work import RunningAction
from magnetar_core.document import Documents
from magnetar_core.errors import MagnetarError

from . import server_create_image

log = logging.getLogger(__name__)


def run_backup(work: RunningAction) -> None:
    """Upload the content of the backup image ``work.args["image"]`` of the action *work*, then delete old backups of
    the server. ``work.args["rotation"]``: the number of backups of the same type that remain."""
    if not work.args["rotation"] and server_create_image.image_of_server(work, work.args["image"]) is None:
        work.done()  # none is kept: the new one was deleted already, as the last
    else:
        server_create_image.run_image_creation(work, partial(_rotate, work))


def _rotate(work: RunningAction) -> None:
    """Delete the server's oldest backups so that at most ``work.args["rotation"]`` remain. If a backup cannot be
    deleted, the next backup action tries again."""
    rotation, images, context = work.args["rotation"], work.conductor.services.image, work.context()
    for backup in [*_older(work)[max(rotation - 1, 0):], *([] if rotation else [{"id": work.args["image"]}])]:
        work.confirm_lease()
        try:
            images.delete(context, backup["id"])
        except MagnetarError as error:
            log.warning("backup %s of server %s stays: %s", backup["id"], work.id, error.message)


def _older(work: RunningAction) -> Documents:
    """Return the server's other active backups of the same type as the new image, newest first. Return an empty list if
    the new image was deleted. Images with another owner do not count, because every project can set any properties on
    its images."""
    new = server_create_image.image_of_server(work, work.args["image"])
    if new is None:  # another client has deleted it meanwhile
        return []
    backups = work.conductor.services.image.list(work.context(), properties={
        name: new["properties"][name] for name in ("image_type", "backup_type", "instance_uuid")})
    return sorted((backup for backup in backups if backup["id"] != new["id"] and backup["status"] == "active"
                   and backup["owner"] == new["owner"]), key=lambda backup: (backup["created_at"], backup["id"]),
                  reverse=True)
