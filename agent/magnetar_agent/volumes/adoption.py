# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in shared pools that change their host: the new host takes over the content (the field ``adopt``), and the
old one forgets the volume (the event ``release``). The content stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_core.errors import Conflict, InUse, InvalidField, NotFound

from . import attaching, content, holders_of_volume, keys, pools, remote

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

    from .pools import Pool

#: The event of a volume.
RELEASE = "release"


def check_adoptable(want: Fields, pool: Pool) -> None:
    """Raise ``InvalidField`` unless the new volume *want* may take over existing content that another host created:
    *pool* must be shared between hosts, and *want* must have a size and no source such as an image."""
    if not pool.shared:
        raise InvalidField("adopt", f"is for pools that other hosts reach, and {pool.name!r} is not one")
    if want.get("size") is None or content.source_of(want)[0]:
        raise InvalidField("adopt", "needs the size of the content, and no source")


def adopt_content(task: Task, pool: Pool, size: int) -> None:
    """Make the *task*'s volume the owner of content (a file, logical volume or RBD image) in *pool* that another host
    created, by recording this in the volume's document. The content's name is the volume's uuid. *size*: bytes. Raises
    ``Conflict`` if *pool* has no such content."""
    document = task.document
    if not pool.has(document.id):
        raise Conflict(f"Pool {pool.name!r} has no content called {document.id} that could be taken over. Look whether "
                       "this host reaches the same storage as the host that had the volume.")
    if document.want.get("key"):
        document.state[keys.SEALED] = document.want["key"]
    document.state.update(made=True, bytes=size)
    task.keep()


def release_volume(host: LocalHost, key: str) -> None:
    """Remove the document, but not the content, of the volume *key* (name or uuid), which another host has taken over.
    Raises ``NotFound``; ``Conflict`` if no other host can reach the volume's pool; ``InUse`` if the volume is
    attached."""
    document = host.documents.find("volume", key)
    if document is None:
        raise NotFound(f"There is no volume {key!r} on this host.", kind="volume", key=key)
    with host.locks.hold("volume", document.id):
        current = host.documents.get("volume", document.id)
        if current is None:
            return
        if not pools.find_pool(host, current.want["pool"]).shared:
            raise Conflict(f"Volume {current.name!r} lies in a pool of this host only, so no other host can have taken "
                           "it over. Delete it if it is not needed.")
        check_unused(host, current)
        host.documents.remove(current)


def check_unused(host: LocalHost, volume: Document) -> None:
    """Raise ``InUse`` if *volume* is attached to a server. An attachment that is being removed is ignored if its server
    has been deleted and this host has taken over *volume* since it was attached."""
    users = sorted(attaching.server_name(host, holder) for holder in holders_of_volume(host, volume.id)
                   if not (holder.deleting and remote.is_taken_over(host, holder)
                           and host.documents.get("server", holder.want["server"]) is None))
    if users:
        raise InUse(f"Volume {volume.name!r} is attached to {', '.join(users)}. Detach it first.", users=users)
