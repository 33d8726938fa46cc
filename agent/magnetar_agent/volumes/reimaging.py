# SPDX-License-Identifier: GPL-3.0-or-later
"""The replacement of a volume's content by an image (Cinder's reimage) or a backup (its restore), while no running
guest has the volume.

``want["reimage"]`` has the image or the backup, and the id of the request; ``document.state["reimaged"]`` is the last
completed request. From the time when the state field ``renewed`` is written until completion the content is incomplete:
``made`` is missing, and no server starts with the volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.reconcile.documents import CLOUD
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from magnetar_core.power import LIVE, SUSPENDED

from . import attaching, backups, content, holders_of_volume

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task


def complete_reimage(host: LocalHost, desired: Fields, document: Document | None) -> int:
    """Complete the field ``reimage`` of *desired*, the requested state of a volume: replace the name of the image by
    its uuid. Return the bytes that the image or backup needs; 0 if nothing new is requested. *document*: the stored
    volume, ``None`` for a new one. Raises ``InvalidField`` for an image or backup that cannot be used, and ``Conflict``
    if a running guest has the volume."""
    requested, old = desired.get("reimage"), document.want.get("reimage") if document else None
    if requested is None or (old and old["request"] == requested["request"]):
        desired["reimage"] = old
        return 0
    if bool(requested.get("image")) == bool(requested.get("backup")):
        raise InvalidField("reimage", "must name an image or a backup")
    if requested.get("backup"):
        least = backups.restored_bytes(host, requested["backup"], desired, document)
        desired["reimage"] = requested
    else:
        standing = host.documents.standing("image", requested["image"])
        least = content.source_bytes("image", standing, requested["image"], "reimage.image")
        desired["reimage"] = {**requested, "image": standing.id if standing else requested["image"]}
    if document:
        _check_unused(host, document)
    return least


def requests_reimage(want: Fields, have: Fields) -> bool:
    """Return whether *want*, the desired state of a volume, requests a reimage that is not completed yet. *have*: the
    volume's present state, which records the last completed reimage."""
    return want.get("reimage") not in (None, have.get("reimaged"))


def begin_reimage(task: Task) -> None:
    """Record in the volume's document that its content is no longer valid, before a reimage replaces the content.
    Raises ``Conflict`` if a server with the volume was started since the last check, and another error if the backup
    cannot be read. In case of an error the content stays valid, and the request is removed from the document."""
    document, state = task.document, task.document.state
    try:
        backups.prepare_restore(task)
    except MagnetarError:
        if state.get("made"):
            document.want["reimage"] = state.get("reimaged")
            task.keep()
        raise
    if state.pop("made", None):
        state.update(renewed=True, begun=True)
        task.keep()
    try:
        _check_unused(task.host, document)
    except Conflict:
        for name in ("renewed", "begun"):
            del state[name]
        state["made"], document.want["reimage"] = True, state.get("reimaged")
        task.keep()
        backups.remove_temporary_files(task.host)
        raise


def _check_unused(host: LocalHost, document: Document) -> None:
    attaching.refuse_while_swapped(host, document.id)
    for holder in holders_of_volume(host, document.id):
        name, volume_label = attaching.server_name(host, holder), f"Volume {document.name!r}"
        if holder.kind == "volume_export":
            if not document.state.get(CLOUD):  # a cloud ensures that the server is off
                raise Conflict(
                    f"{volume_label} is attached to server {name!r} of another host, which may be running. Detach "
                               "it first.")
            continue
        refuse_while_it_moves(host, host.documents.get("server", holder.want["server"]))
        domain = host.hypervisor.domain(holder.want["server"])
        if domain and domain.state in (*LIVE, SUSPENDED):
            raise Conflict(f"{volume_label} is in use: server {name!r} is {domain.state}. Stop it first.")


def check_whole(host: LocalHost, server: str) -> None:
    """Raise ``Conflict`` if a volume of the server has incomplete content, because a reimage has begun and not ended.
    """
    for attachment in attaching.server_attachments(host, server):
        volume = host.documents.get("volume", attachment.want["volume"])
        if volume and volume.state.get("renewed"):
            raise Conflict(f"The content of volume {volume.name!r} is being recreated. Start the server when that is "
                           "done; where it has failed, repeat it, or detach the volume.")
