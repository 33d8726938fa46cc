# SPDX-License-Identifier: GPL-3.0-or-later
"""An image made from a volume that no server has (Cinder's ``os-volume_upload_image``).

The copy is in the folder of the image's content until it becomes that content. After a crash the copy is made again; a
sweep removes it when the image is gone. Content that is lost later is not copied again: the volume may have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.volumes import attaching, content, holders_of_volume, is_content_complete
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.reconcile import refuse_missing

from . import importing

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

#: Formats of an image made from a volume, the default first.
FORMATS = ("qcow2", "raw")


def complete_volume_source(host: LocalHost, want: Fields) -> Fields:
    """Return the fields ``source`` (with the volume's uuid) and ``disk_format`` for an image to be made from a volume.
    *want*: the image's requested fields. Raises ``InvalidField`` or ``Conflict`` if the volume cannot be used for an
    image."""
    reference, format = want["source"]["volume"], want.get("disk_format") or FORMATS[0]
    if format not in FORMATS:
        raise InvalidField("disk_format", f"must be {' or '.join(FORMATS)} for an image of a volume", format)
    if want.get("checksum"):
        raise InvalidField("checksum", "cannot be given with source.volume: the copy decides", want["checksum"])
    volume = host.documents.standing("volume", reference)
    if volume is None:
        refuse_missing(InvalidField("source.volume", "must name a volume of this host", reference), "volume", reference)
        return {"disk_format": format}
    _check(host, volume)
    content.refuse_encrypted(volume, "no image is made of it: the image would hold its content in clear text. In a "
                             "server, copy what is needed to another volume, and make the image of that")
    return {"source": {"volume": volume.id}, "disk_format": format}


def _check(host: LocalHost, volume: Document) -> None:
    if not is_content_complete(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")
    if users := sorted(attaching.server_name(host, holder) for holder in holders_of_volume(host, volume.id)):
        raise Conflict(f"Volume {volume.name!r} is attached to {', '.join(users)}, which may write to it. Detach it, "
                       "or make a volume_snapshot of it, of that a volume, and of that the image.")
    size, most = int(volume.state["bytes"]), host.settings.image_max_virtual_bytes
    if size > most:
        raise Conflict(f"Volume {volume.name!r} has {size} bytes, and the agent's setting image_max_virtual_bytes "
                       f"allows {most} for an image.")


def take_volume_image(task: Task, id: str) -> None:
    """Copy the content of the volume with the uuid *id*, and make the copy the content of the image that *task*
    creates."""
    host, image = task.host, task.document
    path, part = importing.copy_paths(host, image.id)
    format = image.want["disk_format"]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with host.locks.hold("volume", id):
            volume = host.documents.get("volume", id)
            if volume is None or volume.deleting:
                raise Conflict(f"Volume {id} was removed before the image had its content.")
            _check(host, volume)
            disk = content.content_disk(host, volume)
            path.unlink(missing_ok=True)
            host.hypervisor.copy_disk(disk.remote or disk.path, disk.format, path, format, task.operation.advance)
        importing.adopt_disk(host, image, path, task.operation)
    finally:
        for leftover in (path, part):
            leftover.unlink(missing_ok=True)
