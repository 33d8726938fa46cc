# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of volumes and snapshots: what it may be made from, and removing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.reconcile import missing

from . import finished, keys, pools

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document, Fields

#: Field of a volume that names what it is made from, and the kind of that.
SOURCES = {"image": "image", "source_volume": "volume", "snapshot": "volume_snapshot"}
DISKS = ("raw", "qcow2", "iso")


def source_bytes(source: str, standing: Document | None, name: str, field: str) -> int:
    """Bytes of a source, which must be there in full. Raises ``InvalidField`` naming *field*."""
    kind = SOURCES[source]
    if standing is None:
        missing(InvalidField(field, f"must name a {kind.replace('_', ' ')} of this host", name), kind, name)
        return 1
    if kind == "image":
        state = standing.state
        if state.get("status") != "active" or state["disk_format"] not in DISKS:
            raise InvalidField(field, "must be an active image of format raw, qcow2 or iso", name)
        return int(state.get("virtual_size") or state["size"])
    if not finished(standing):
        raise InvalidField(field, "must be complete, and this one is still being made", name)
    return int(standing.state["bytes"])


def source_of(want: Fields) -> tuple[str | None, str]:
    """The field of ``SOURCES`` that names what a volume is made from, or is made anew from, and what it names; ``None``
    for an empty one."""
    if want.get("reimage"):
        return "image", want["reimage"]["image"]
    return next(((name, want[name]) for name in SOURCES if want.get(name)), (None, ""))


def disk(host: LocalHost, document: Document) -> Disk:
    """The content of a volume or snapshot as QEMU reaches it, with its key where it is encrypted."""
    pool, format = (document.want["pool"], document.want["format"]) if document.kind == "volume" else (
        document.state["pool"], document.state["format"])
    return replace(pools.named(host, pool).disk(document.id, format), key=keys.of(host, document))


def refuse_encrypted(document: Document, what: str) -> None:
    """Raise ``Conflict`` for an encrypted volume, with *what* cannot be done with it."""
    if document.state.get(keys.SEALED):
        raise Conflict(f"Volume {document.name!r} is encrypted, so {what}.")


def begun(state: Fields) -> bool:
    """Whether content was made, or begun, for a document with this state. Older agents noted only the source, or the
    pool, when they began."""
    return any(name in state for name in ("made", "begun", "source_name", "pool"))


def remove(host: LocalHost, document: Document) -> None:
    """Remove the content of a volume or snapshot, complete or not. Content that had its name before belongs to somebody
    else and stays."""
    pool = document.want.get("pool") or document.state.get("pool")
    if pool and begun(document.state):
        pools.named(host, pool).remove(document.id)
