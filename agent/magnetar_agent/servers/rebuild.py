# SPDX-License-Identifier: GPL-3.0-or-later
"""Rebuild: the disks of a server are made again from an image.

``document.state["rebuild"]`` has the request until it is done, and ``rebuilt`` then the id of that request.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from magnetar_agent.servers.disks import image_links
from magnetar_agent.volumes import keys
from magnetar_core.kinds import Volume
from magnetar_core.local_disks import SWAP
from magnetar_core.server_plan import ROOT, disk_sizes, root_block_device

from . import admin_password, resize, server_folder

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task


def missing_image(host: LocalHost, document: Document) -> str | None:
    """Return the uuid of the image that a rebuild needs for the root disk or root volume, if this host lacks the
    image's content; otherwise ``None``. Also return ``None`` if the image was removed, but the server's folder still
    has its content."""
    image, root = document.want["image"], root_block_device(document.want)
    if root is not None:
        return root["uuid"] if root["source_type"] == "image" and not image_links.is_complete(
            host, root["uuid"]) else None
    if image is None or image_links.is_complete(host, image):
        return None
    return None if host.documents.standing("image", image) is None and _holds_image(host, document) else str(image)


def _holds_image(host: LocalHost, document: Document) -> bool:
    """Return whether the server's folder still has a hard link to the image's content."""
    base, place = document.state.get("base"), server_folder(host, document.id)
    if base is None or base.get("image", document.want["image"]) != document.want["image"]:
        return False
    return (place / ("kernel" if base["format"] == "aki" else "base")).exists()


def wipe(task: Task) -> None:
    """Remove everything that a rebuild creates again: disks, config drive, random seed, and the hard links to the
    previous image's content. Ephemeral disks stay if the rebuild has ``preserve_ephemeral``. The hard links stay if
    they have the content of the rebuild's image and this image was removed from the host."""
    document, state = task.document, task.document.state
    own_files = {*disk_sizes(document.want), *resize.recorded_sizes(document)["sizes"], SWAP}
    names = [ROOT, "disk.new", "config.iso"]
    names += [SWAP] if state["rebuild"]["preserve_ephemeral"] else sorted(own_files)
    image = document.want["image"]
    if not (image and task.host.documents.standing("image", image) is None and _holds_image(task.host, document)):
        names += ["base", "kernel", "ramdisk"]
        for note in ("base", "boot", "iso"):
            state.pop(note, None)
    for note in ("root_bytes", "seed", "keys"):  # a new guest gets another random seed, as in Nova
        state.pop(note, None)
    admin_password.forget_admin_password(document)
    if not state["rebuild"]["preserve_ephemeral"]:  # the old disks will not be read again
        state.pop(keys.SEALED, None)
    resize.forget_files(task, names)


def is_volume_away(host: LocalHost, document: Document) -> bool:
    """Return whether the server has a root volume and another host stores it."""
    root = root_block_device(document.want)
    return root is not None and host.documents.get("volume", root["volume"]) is None


def reimage(task: Task) -> None:
    """Overwrite the server's root volume with the content of its image (rebuild of a server that boots from a volume).
    A repetition after a crash does not overwrite it a second time."""
    note, root = task.document.state["rebuild"], root_block_device(task.document.want)
    if root is None:
        return
    if "reimage" not in note:
        note["reimage"] = str(uuid.uuid4())
        task.keep()
    task.host.ensure(Volume, root["volume"], {"reimage": {"image": root["uuid"], "request": note["reimage"]}},
                     task.operation)


def rebuilt(task: Task) -> None:
    """Record in the server's document that the rebuild is complete. From now on the server's disks contain data of the
    guest."""
    done = task.document.state.pop("rebuild", None)
    if done:
        task.document.state["rebuilt"] = done["request"]
        task.keep()


def discard(task: Task) -> None:
    """Delete the saved memory of a suspended guest, because it does not match the rebuilt disk."""
    task.host.hypervisor.discard_save(task.document.id)
