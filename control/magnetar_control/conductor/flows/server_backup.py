# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``createBackup``: an image as ``createImage`` makes it, then the rotation. A backup is deleted only when
the new one has its content, so one that fails costs none of those before."""

from __future__ import annotations

import logging
from functools import partial

from magnetar_control.conductor.worker.work import Work
from magnetar_control.services import Documents
from magnetar_core.errors import MagnetarError

from . import server_create_image

log = logging.getLogger(__name__)


def create_backup(work: Work) -> None:
    """``args``: the image, and how many of its kind are kept."""
    if not work.args["rotation"] and server_create_image.image(work, work.args["image"]) is None:
        work.done()  # none is kept: the new one has gone already, as the last of them
    else:
        server_create_image.create_image(work, partial(_rotate, work))


def _rotate(work: Work) -> None:
    """Delete the oldest backups, beyond those that are kept. One that cannot be deleted stays, and is tried again with
    the next backup."""
    kept, images, context = work.args["rotation"], work.conductor.services.image, work.context()
    for one in [*_older(work)[max(kept - 1, 0):], *([] if kept else [{"id": work.args["image"]}])]:
        work.confirm_lease()
        try:
            images.delete(context, one["id"])
        except MagnetarError as error:
            log.warning("backup %s of server %s stays: %s", one["id"], work.id, error.message)


def _older(work: Work) -> Documents:
    """The server's other backups of that type that have their content, newest first. Those of the new one's owner:
    other projects may say of their images what they like."""
    new = server_create_image.image(work, work.args["image"])
    if new is None:  # somebody has deleted it meanwhile
        return []
    found = work.conductor.services.image.list(work.context(), properties={
        name: new["properties"][name] for name in ("image_type", "backup_type", "instance_uuid")})
    return sorted((one for one in found if one["id"] != new["id"] and one["status"] == "active"
                   and one["owner"] == new["owner"]), key=lambda one: (one["created_at"], one["id"]), reverse=True)
