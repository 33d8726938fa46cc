# SPDX-License-Identifier: GPL-3.0-or-later
"""Functions that the drivers of volumes share. ``pools`` stores content, ``copying`` copies it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.hardware.device_names import device_order

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

GIB = 2**30


def round_up_gib(size: int) -> int:
    """Return *size* bytes in GiB, rounded up; 1 at least."""
    return max(1, -(-size // GIB))


def is_volume_name(name: str) -> bool:
    """Return whether *name*, of a file in a pool, begins with a uuid; other files do not belong to Magnetar."""
    stem = name.partition(".")[0]
    return len(stem) == 36 and stem.count("-") == 4


def by_device(attachment: Document) -> tuple[tuple[int, str], str, str]:
    """Return the key that sorts *attachment* among the attachments of a server, by device name. While one attachment
    replaces another, both have the same device, so the name is not the whole key."""
    return device_order(str(attachment.want["device"])), attachment.name, attachment.id


def attachments_of_volume(host: LocalHost, volume: str) -> list[Document]:
    """Return the attachments of the volume with this uuid."""
    return [attachment for attachment in host.documents.list("volume_attachment")
            if attachment.want["volume"] == volume]


def holders_of_volume(host: LocalHost, volume: str) -> list[Document]:
    """Return a document for each server that has the *volume* (uuid) of this host: its attachment for a server on this
    host, otherwise the export to the server's host."""
    by_server = {export.want["server"]: export for export in host.documents.list("volume_export")
                 if export.want["volume"] == volume}
    by_server.update((attachment.want["server"], attachment) for attachment in attachments_of_volume(host, volume))
    return list(by_server.values())


def is_content_complete(document: Document) -> bool:
    """Return whether the content of a volume or snapshot is complete."""
    return bool(document.state.get("made"))


def cinder_status(document: Document, have: dict[str, Any] | None, used: bool) -> str:
    """Return Cinder's status of a volume or snapshot from its *document* and its observed state *have*. *used*: whether
    a server has the volume."""
    if not is_content_complete(document):
        return "error" if document.state.get("fault") else "creating"
    if not (have or {}).get("there"):
        return "error"
    return "in-use" if used else "available"
