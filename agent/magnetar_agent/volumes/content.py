# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of volumes and snapshots: its possible sources, and its removal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.reconcile import refuse_missing

from . import is_content_complete, keys, pools

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document, Fields

#: Fields of a volume that name its source, each with the kind of the source.
SOURCES = {"image": "image", "source_volume": "volume", "snapshot": "volume_snapshot"}
DISKS = ("raw", "qcow2", "iso")
#: Note of a volume whose content moves to another pool (``moving``): {pool, format} of the other pool that may have
#: content, and {pivoting}: the server whose QEMU is about to continue there.
MOVING = "moving"


def source_bytes(source: str, source_document: Document | None, name: str, field: str) -> int:
    """Return the size in bytes of the source from which a new volume is created. Raises ``InvalidField`` naming *field*
    if the source is missing or incomplete.

    - *source*: kind of source: ``image``, ``source_volume`` or ``snapshot``.
    - *source_document*: the source's document; ``None`` if it was not found.
    - *name*: name or uuid in the request."""
    kind = SOURCES[source]
    if source_document is None:
        refuse_missing(InvalidField(field, f"must name a {kind.replace('_', ' ')} of this host", name), kind, name)
        return 1
    if kind == "image":
        state = source_document.state
        if state.get("status") != "active" or state["disk_format"] not in DISKS:
            raise InvalidField(field, "must be an active image of format raw, qcow2 or iso", name)
        return int(state.get("virtual_size") or state["size"])
    if not is_content_complete(source_document):
        raise InvalidField(field, "must be complete, and this one is still being made", name)
    return int(source_document.state["bytes"])


def source_of(want: Fields) -> tuple[str | None, str]:
    """Return the source of the volume with the fields *want* as (kind, uuid or name), where the kind is ``image``,
    ``source_volume`` or ``snapshot``; (``None``, "") for an empty volume. If the volume is being reimaged, return
    ("image", uuid) or ("backup", uuid)."""
    if reimage := want.get("reimage"):
        return ("backup", reimage["backup"]) if reimage.get("backup") else ("image", reimage["image"])
    return next(((name, want[name]) for name in SOURCES if want.get(name)), (None, ""))


def content_disk(host: LocalHost, document: Document) -> Disk:
    """Return the disk with the content of *document*, a volume or snapshot, for QEMU. The disk includes the key of
    encrypted content."""
    place = document.want if document.kind == "volume" else document.state
    if document.kind == "volume" and is_pivoted(host, document):
        place = document.state[MOVING]
    pool, format = place["pool"], place["format"]
    return replace(pools.find_pool(host, pool).disk(document.id, format), key=keys.document_key(host, document))


def is_pivoted(host: LocalHost, document: Document) -> bool:
    """Return whether the guest already uses the volume *document* in its new storage pool, to which the content is
    being moved. After a crash, the document may still name the old pool, so this is read from the libvirt domain."""
    note = document.state.get(MOVING) or {}
    domain = host.hypervisor.domain(note["pivoting"]) if "pivoting" in note else None
    if domain is None:
        return False
    path = pools.find_pool(host, note["pool"]).disk(document.id, note["format"]).path
    return any(disk.path == path for disk in domain.disks)


def refuse_while_moving(document: Document) -> None:
    """Raise ``Conflict`` if the content of the volume *document* is being moved to another storage pool."""
    if document.state.get(MOVING) and document.want.get("move_to"):
        raise Conflict(f"The content of volume {document.name!r} is moving to pool {document.want['move_to']!r}. Wait "
                       "until that has ended, or end it.")


def refuse_encrypted(document: Document, reason: str) -> None:
    """Raise ``Conflict`` if the volume *document* is encrypted. *reason*: end of the error message "is encrypted, so
    …"."""
    if document.state.get(keys.SEALED):
        raise Conflict(f"Volume {document.name!r} is encrypted, so {reason}.")


def is_content_begun(state: Fields) -> bool:
    """Return whether the creation of a volume's or snapshot's content has started or is complete. *state*: the state
    fields of its document."""
    return any(name in state for name in ("made", "begun", "source_name", "pool"))


def remove_volume_content(host: LocalHost, document: Document) -> None:
    """Remove the content of *document*, a volume or snapshot, from its storage pool, and from the pool to which it is
    being moved. If the agent never started to create the content, do nothing: content with this name then belongs to
    another volume."""
    pool = document.want.get("pool") or document.state.get("pool")
    note = document.state.get(MOVING)
    if note:
        pools.find_pool(host, note["pool"]).remove(document.id)
    if pool and is_content_begun(document.state):
        pools.find_pool(host, pool).remove(document.id)
