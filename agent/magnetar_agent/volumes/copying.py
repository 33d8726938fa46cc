# SPDX-License-Identifier: GPL-3.0-or-later
"""Copying what a volume is made from: an image, another volume, a snapshot. A volume in use is copied as it is at one
moment: offline while no running server has it, else by QEMU's backup job (libvirt's ``virDomainBackupBegin``).

Locks are always taken in this order: what is being made, servers by uuid, the volume that is copied, the
right to copy a disk of a running server.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import Disk
from magnetar_agent.images import importing
from magnetar_agent.servers.quiesce import quiesced
from magnetar_core.errors import Conflict

from . import attaching, attachments, content, exports, holders, keys

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

    from .pools import Pool


def from_image(task: Task, pool: Pool, size: int, format: str, image: str) -> None:
    """A copy of the content of the image with this uuid."""
    importing.check_clear(task.host.documents.get("image", image))
    path, found = importing.content_by_id(task.host, image)
    source = Disk(path, "", "qcow2" if found == "qcow2" else "raw")
    pool.fill(task.document.id, format, size, source, task.operation.advance, keys.of(task.host, task.document))


def from_snapshot(task: Task, pool: Pool, size: int, format: str, snapshot: str) -> None:
    """A copy of a snapshot, which nobody changes."""
    with task.host.locks.hold("volume_snapshot", snapshot):
        source = _standing(task.host, "volume_snapshot", snapshot)
        disk, key = content.disk(task.host, source), keys.of(task.host, task.document)
        pool.fill(task.document.id, format, size, disk, task.operation.advance, key)


def from_volume(task: Task, pool: Pool, size: int, format: str, volume: str) -> None:
    """A copy of a volume as it is now, whoever has it."""
    host = task.host
    with ExitStack() as servers, ExitStack() as own:
        for one in sorted({a.want["server"] for a in attachments(host, volume)}):
            servers.enter_context(host.locks.hold("server", one))
        own.enter_context(host.locks.hold("volume", volume))
        source = _standing(host, "volume", volume)
        attaching.refuse_while_swapped(host, volume)
        if any(one.kind == "volume_export" for one in holders(host, volume)):
            raise Conflict(f"Volume {source.name!r} is attached to a server of another host, which writes to it, so it "
                           "cannot be copied now. Detach it first.")
        running = [(one, target) for one in attachments(host, volume) if (target := attaching.device(host, one))]
        if len(running) > 1:
            raise Conflict(f"Volume {source.name!r} is written to by {len(running)} running servers, so there is no "
                           "one moment at which it could be copied. Stop all but one of them, then repeat the call.")
        if running:
            servers.close()  # QEMU copies; the servers need not be held
            with host.locks.hold("copy", running[0][0].want["server"]):  # QEMU makes one at a time
                _capture(task, pool, size, format, *running[0])
        else:
            there = exports.served(host, volume)
            disk = exports.disk_at_socket(host, there[0].id, volume) if there else content.disk(host, source)
            pool.fill(task.document.id, format, size, disk, task.operation.advance, keys.of(host, task.document))


def _capture(task: Task, pool: Pool, size: int, format: str, attachment: Document, target: str) -> None:
    """Have QEMU copy the disk *target*, of which the guest has frozen its file systems when the copy begins, if it can.
    The server may have been stopped, or rescued, since it was looked at."""
    def begun() -> None:
        frozen.close()
        if attaching.device(task.host, attachment) != target:
            name = attaching.server_name(task.host, attachment)
            raise Conflict(f"Server {name!r} was stopped or rescued just when the copy began. Repeat the call.")
    server = attachment.want["server"]
    with ExitStack() as frozen:
        frozen.enter_context(quiesced(task.host, task.host.documents.get("server", server)))
        pool.capture(task.document.id, format, size, server, target, begun, task.operation.advance,
                     keys.of(task.host, task.document))


def _standing(host: LocalHost, noun: str, id: str) -> Document:
    found = host.documents.get(noun, id)
    if found is None or found.deleting or not found.state.get("made"):
        raise Conflict(f"The {noun.replace('_', ' ')} {found.name if found else id!r} is not there any more, or not in "
                       "full. Choose another source.")
    return found
