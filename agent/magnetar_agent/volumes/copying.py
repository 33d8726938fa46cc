# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of the source of a new volume or snapshot: an image, another volume, a snapshot.

A volume in use is copied as of one moment: offline if no running server has it, otherwise by QEMU's backup job
(libvirt's ``virDomainBackupBegin``).

Locks are always taken in this order: the new volume or snapshot, servers by uuid, the volume that is copied, the right
to copy a disk of a running server.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import Disk
from magnetar_agent.images import importing
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.servers.quiesce import quiesced_guest
from magnetar_core.errors import Conflict

from . import attaching, attachments_of_volume, content, exports, holders_of_volume, keys, remote

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

    from .pools import Pool


def from_image(task: Task, pool: Pool, size: int, format: str, image: str) -> None:
    """Create the content of the *task*'s volume in *pool* from *image* (a uuid). *size*: bytes. *format*: the volume's
    format."""
    importing.check_not_encrypted(task.host.documents.get("image", image))
    path, image_format = importing.content_by_id(task.host, image)
    source = Disk(path, "", "qcow2" if image_format == "qcow2" else "raw")
    pool.fill(task.document.id, format, size, source, task.operation.advance,
              keys.document_key(task.host, task.document))


def from_snapshot(task: Task, pool: Pool, size: int, format: str, snapshot: str) -> None:
    """Create the content of the *task*'s volume in *pool* from *snapshot* (the uuid of a volume snapshot). *size*:
    bytes. *format*: the volume's format."""
    with task.host.locks.hold("volume_snapshot", snapshot):
        source = _complete_source(task.host, "volume_snapshot", snapshot)
        disk, key = content.content_disk(task.host, source), keys.document_key(task.host, task.document)
        pool.fill(task.document.id, format, size, disk, task.operation.advance, key)


def from_export(task: Task, pool: Pool, size: int, format: str) -> None:
    """Create the content of the *task*'s volume in *pool* from a volume on another host, named in the field
    ``remote_source``. *size*: bytes. *format*: the new volume's format. Raises ``Unreachable`` if the other agent does
    not respond, and ``HypervisorError`` if the copy fails."""
    host, source = task.host, task.document.want["remote_source"]
    id = source["export"]
    address = remote.link_address(id, source, "remote_source.address")
    host.links.required()
    with Rpc(host.links.call(address, exports.REQUESTS)) as talk:  # it is served, even if that agent was just restarted
        talk.call("look")
    place = exports.make_export_folder(host, id)
    host.links.forward(address, exports.NBD, place / exports.NBD, place.stat().st_gid)
    try:
        pool.fill(task.document.id, format, size, exports.disk_at_socket(host, id, task.document.id),
                  task.operation.advance, keys.document_key(host, task.document))
    finally:
        close_source(host, id)


def close_source(host: LocalHost, export: str) -> None:
    """Close the NBD connection that was used to copy a volume from another host, and remove its folder of sockets.
    *export*: uuid of the volume export on the other host, which is also the name of the folder."""
    host.links.cut(export)
    shutil.rmtree(exports.export_folder(host, export), ignore_errors=True)


def from_volume(task: Task, pool: Pool, size: int, format: str, volume: str) -> None:
    """Create the content of the *task*'s volume or snapshot in *pool* from *volume* (a uuid), which may be in use.
    *size*: bytes. *format*: the format of the new content. Raises ``Conflict`` if a server on another host or several
    running servers use the volume, or the volume is being swapped."""
    host = task.host
    with ExitStack() as servers, ExitStack() as volume_lock:
        for server_id in sorted({a.want["server"] for a in attachments_of_volume(host, volume)}):
            servers.enter_context(host.locks.hold("server", server_id))
        volume_lock.enter_context(host.locks.hold("volume", volume))
        source = _complete_source(host, "volume", volume)
        attaching.refuse_while_swapped(host, volume)
        if any(holder.kind == "volume_export" for holder in holders_of_volume(host, volume)):
            raise Conflict(f"Volume {source.name!r} is attached to a server of another host, which writes to it, so it "
                           "cannot be copied now. Detach it first.")
        running = [(attachment, target) for attachment in attachments_of_volume(host, volume)
                   if (target := attaching.attached_device(host, attachment))]
        if len(running) > 1:
            raise Conflict(f"Volume {source.name!r} is written to by {len(running)} running servers, so there is no "
                           "one moment at which it could be copied. Stop all but one of them, then repeat the call.")
        if running:
            servers.close()  # QEMU copies; the servers need not be held
            with host.locks.hold("copy", running[0][0].want["server"]):  # QEMU makes one at a time
                _capture(task, pool, size, format, *running[0])
        else:
            running_exports = exports.running_exports(host, volume)
            disk = exports.disk_at_socket(host, running_exports[0].id,
                                          volume) if running_exports else content.content_disk(host, source)
            pool.fill(task.document.id, format, size, disk, task.operation.advance,
                      keys.document_key(host, task.document))


def _capture(task: Task, pool: Pool, size: int, format: str, attachment: Document, target: str) -> None:
    """Copy the disk *target* of a running guest by QEMU into *pool*, as content of the *task*'s volume or snapshot.
    *attachment*: the copied volume's attachment. *size*: bytes. *format*: the format of the copy. File systems are
    frozen until the copy has started, if possible. Raises ``Conflict`` if the server is stopped or rescued meanwhile.
    """
    def begun() -> None:
        frozen.close()
        if attaching.attached_device(task.host, attachment) != target:
            name = attaching.server_name(task.host, attachment)
            raise Conflict(f"Server {name!r} was stopped or rescued just when the copy began. Repeat the call.")
    server = attachment.want["server"]
    with ExitStack() as frozen:
        frozen.enter_context(quiesced_guest(task.host, task.host.documents.get("server", server)))
        pool.capture(task.document.id, format, size, server, target, begun, task.operation.advance,
                     keys.document_key(task.host, task.document))


def _complete_source(host: LocalHost, resource_type: str, id: str) -> Document:
    document = host.documents.get(resource_type, id)
    if document is None or document.deleting or not document.state.get("made"):
        raise Conflict(
            f"The {resource_type.replace('_', ' ')} {document.name if document else id!r} is not there any more, or "
                       "not in full. Choose another source.")
    return document
