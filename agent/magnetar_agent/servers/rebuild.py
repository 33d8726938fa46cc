# SPDX-License-Identifier: GPL-3.0-or-later
"""Rebuild: the disks of a server are made again from an image.

``document.state["rebuild"]`` has what the caller asked for until it is done, and ``rebuilt`` the id of that request.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from magnetar_agent.servers.disks import image_links
from magnetar_agent.volumes import keys
from magnetar_core.kinds import Volume
from magnetar_core.local_disks import SWAP
from magnetar_core.server_plan import ROOT, disk_sizes, root_volume

from . import admin_password, folder, resize

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task


def missing_image(host: LocalHost, document: Document) -> str | None:
    """The uuid of the server's image when its root disk cannot be made from it again; else ``None``."""
    image, root = document.want["image"], root_volume(document.want)
    if root is not None:
        return root["uuid"] if root["source_type"] == "image" and not image_links.is_complete(
            host, root["uuid"]) else None
    if image is None or image_links.is_complete(host, image):
        return None
    return None if host.documents.standing("image", image) is None and _holds_image(host, document) else str(image)


def _holds_image(host: LocalHost, document: Document) -> bool:
    """Whether the image's content is still held by the server's own links."""
    base, place = document.state.get("base"), folder(host, document.id)
    if base is None or base.get("image", document.want["image"]) != document.want["image"]:
        return False
    return (place / ("kernel" if base["format"] == "aki" else "base")).exists()


def wipe(task: Task) -> None:
    """Remove what a rebuild makes again: disks, config drive, and the links to the image's content."""
    document, state = task.document, task.document.state
    own = {*disk_sizes(document.want), *resize.seen(document)["sizes"], SWAP}
    names = [ROOT, "disk.new", "config.iso"]
    names += [SWAP] if state["rebuild"]["preserve_ephemeral"] else sorted(own)
    image = document.want["image"]
    if not (image and task.host.documents.standing("image", image) is None and _holds_image(task.host, document)):
        names += ["base", "kernel", "ramdisk"]
        for note in ("base", "boot", "iso"):
            state.pop(note, None)
    for note in ("root_bytes", "seed", "keys"):  # it is a new guest: as in Nova it gets another random seed
        state.pop(note, None)
    admin_password.forget(document)
    if not state["rebuild"]["preserve_ephemeral"]:  # what was written before is read by nobody any more
        state.pop(keys.SEALED, None)
    resize.forget_files(task, names)


def is_volume_away(host: LocalHost, document: Document) -> bool:
    """Whether the volume that is its root disk is not on this host."""
    root = root_volume(document.want)
    return root is not None and host.documents.get("volume", root["volume"]) is None


def reimage(task: Task) -> None:
    """Make the root volume anew, once for each rebuild."""
    note, root = task.document.state["rebuild"], root_volume(task.document.want)
    if root is None:
        return
    if "reimage" not in note:
        note["reimage"] = str(uuid.uuid4())
        task.keep()
    task.host.ensure(Volume, root["volume"], {"reimage": {"image": root["uuid"], "request": note["reimage"]}},
                     task.operation)


def rebuilt(task: Task) -> None:
    """The rebuild is done: from here on the disks hold what the guest writes."""
    done = task.document.state.pop("rebuild", None)
    if done:
        task.document.state["rebuilt"] = done["request"]
        task.keep()


def discard(task: Task) -> None:
    """Drop the memory of a suspended guest, which does not fit its new disk."""
    task.host.hypervisor.discard_save(task.document.id)
