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
    """Convert *size* from bytes to GiB, rounded up and at least 1."""
    return max(1, -(-size // GIB))


def is_volume_name(name: str) -> bool:
    """Return whether *name*, the name of a file, logical volume or RBD image in a storage pool, begins with a uuid. If
    it does not, the file, logical volume or RBD image does not belong to Magnetar."""
    stem = name.partition(".")[0]
    return len(stem) == 36 and stem.count("-") == 4


def by_device(attachment: Document) -> tuple[tuple[int, str], str, str]:
    """Return a sort key for *attachment*, a volume attachment of a server: by device name, then by name and uuid."""
    return device_order(str(attachment.want["device"])), attachment.name, attachment.id


def attachments_of_volume(host: LocalHost, volume: str) -> list[Document]:
    """Return the attachments of the volume with the uuid *volume* to servers on this host."""
    return [attachment for attachment in host.documents.list("volume_attachment")
            if attachment.want["volume"] == volume]


def holders_of_volume(host: LocalHost, volume: str) -> list[Document]:
    """Return one document for each server that the volume with the uuid *volume* is attached to: the attachment if the
    server is on this host, otherwise the volume export, which makes the volume available to the server's host."""
    by_server = {export.want["server"]: export for export in host.documents.list("volume_export")
                 if export.want["volume"] == volume}
    by_server.update((attachment.want["server"], attachment) for attachment in attachments_of_volume(host, volume))
    return list(by_server.values())


def is_content_complete(document: Document) -> bool:
    """Return whether the content of *document*, a volume or snapshot, is complete."""
    return bool(document.state.get("made"))


def cinder_status(document: Document, have: dict[str, Any] | None, used: bool) -> str:
    """Return the Cinder status (creating, available, in-use, error) of *document*, a volume or snapshot. *have*: its
    observed state. *used*: whether it is attached."""
    if not is_content_complete(document):
        return "error" if document.state.get("fault") else "creating"
    if not (have or {}).get("there"):
        return "error"
    return "in-use" if used else "available"
