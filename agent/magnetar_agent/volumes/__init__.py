# SPDX-License-Identifier: GPL-3.0-or-later
"""What the drivers of volumes share: where content lies (``pools``), and copying it (``copying``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_core.device_names import device_order

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document

GIB = 2**30


def gib(size: int) -> int:
    """*size* bytes in GiB, rounded up; 1 at least."""
    return max(1, -(-size // GIB))


def ours(name: str) -> bool:
    """Whether a file in a pool has the name of a volume; others do not belong to Magnetar."""
    stem = name.partition(".")[0]
    return len(stem) == 36 and stem.count("-") == 4


def by_device(attachment: Document) -> tuple[tuple[int, str], str, str]:
    """What a server's attachments are sorted by; two have one device while one takes the place of the other."""
    return device_order(str(attachment.want["device"])), attachment.name, attachment.id


def attachments(host: LocalHost, volume: str) -> list[Document]:
    """The attachments of the volume with this uuid."""
    return [one for one in host.documents.list("volume_attachment") if one.want["volume"] == volume]


def holders(host: LocalHost, volume: str) -> list[Document]:
    """The attachments of the volume on this host, and its exports to others, one for each server."""
    found = {one.want["server"]: one for one in host.documents.list("volume_export") if one.want["volume"] == volume}
    found.update((one.want["server"], one) for one in attachments(host, volume))
    return list(found.values())


def finished(document: Document) -> bool:
    """Whether the content of a volume or snapshot is there in full."""
    return bool(document.state.get("made"))


def status(document: Document, have: dict[str, Any] | None, used: bool) -> str:
    """Cinder's status word for what *have* shows."""
    if not finished(document):
        return "error" if document.state.get("fault") else "creating"
    if not (have or {}).get("there"):
        return "error"
    return "in-use" if used else "available"
