# SPDX-License-Identifier: GPL-3.0-or-later
"""The move of a volume's content to another pool of the same host (``move_to``).

The state field ``MOVING`` of the document is written first. It names the other pool that may have content of the
volume: the new pool while the content is copied; the old one once the document names the new pool. A later attempt
removes content in that other pool, or writes it again.

The agent copies the content of a volume that no running guest has, while it holds the locks of the servers that have
it. For a running guest QEMU copies (``begin_mirror``), without locks and without the agent. Each request checks the
copy once; if it is complete, QEMU continues in the new pool. Between the note ``pivoting`` and the change of the
document, libvirt's definition decides which pool has the content, as for a swap (``swapping``).

Locks: the caller holds the volume's. Those of servers come before it everywhere else, so they are taken only if they
are free.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.servers import spec
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from magnetar_core.power import LIVE, PAUSED, RUNNING, SUSPENDED

from . import attaching, attachments_of_volume, content, holders_of_volume, is_content_complete, keys, pools
from .content import MOVING

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Disk
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

    from .pools import Pool

log = logging.getLogger(__name__)
#: Number of times that QEMU may end a copy before the move fails.
MIRRORS = 3


def complete_move(host: LocalHost, desired: Fields, document: Document | None) -> None:
    """Check the field ``move_to`` (the name of a pool) of *desired*, the requested state of a volume. Set the field to
    ``None`` if the volume is already in this pool. *document*: the stored volume, ``None`` for a new one. Raises
    ``InvalidField`` for a pool that cannot hold the volume, and ``Conflict`` for a volume that cannot be moved now."""
    target = desired.get("move_to")
    if target in (None, desired["pool"]):
        desired["move_to"] = None
        return
    if document is None:
        raise InvalidField("move_to", "is for a volume that exists; make a new one in its pool")
    pool = pools.find_pool(host, target, "move_to")
    pool.check_usable()
    if not is_content_complete(document):
        raise Conflict(f"Volume {document.name!r} is still being made. Wait until it is available.")
    if document.want["format"] == keys.LUKS and keys.LUKS not in pool.formats:
        raise InvalidField("move_to", f"must be a pool with the format {keys.LUKS}: the volume is encrypted", target)
    if (document.want.get("move_to"), MOVING in document.state) != (target, True):
        attaching.refuse_while_swapped(host, document.id)
        _check_holders(host, document)


def format_in_pool(pool: Pool, format: str) -> str:
    """Return the format that content of *format* has after a copy to *pool*: *format* itself if the pool supports it,
    otherwise the pool's default format."""
    return format if format in pool.formats else pool.formats[0]


def _check_holders(host: LocalHost, document: Document) -> None:
    for holder in holders_of_volume(host, document.id):
        if holder.kind == "volume_export":
            raise Conflict(f"Volume {document.name!r} is attached to server {attaching.server_name(host, holder)!r} of "
                           "another host, so its content cannot move. Detach it first.")
        refuse_while_it_moves(host, host.documents.get("server", holder.want["server"]))
        domain = host.hypervisor.domain(holder.want["server"])
        if domain and domain.state == SUSPENDED:
            raise Conflict(f"Server {attaching.server_name(host, holder)!r} has volume {document.name!r} and is "
                           "suspended: it would wake up without its disk. Start or stop it, then repeat the call.")
        if domain and domain.state in LIVE:
            content.refuse_encrypted(document, "QEMU does not move it. Stop server "
                                     f"{attaching.server_name(host, holder)!r}, then repeat the call")


def move_content(task: Task) -> None:
    """Move the content of the task's volume to the pool in its field ``move_to``, or clean up after a cancelled move.
    Return early if a server with the volume is being changed, or if the copy of a running guest's disk is not complete
    yet; the next call continues."""
    host, document = task.host, task.document
    settle_pivot(host, document)
    target, note = document.want.get("move_to"), document.state.get(MOVING)
    if note and note["pool"] != target:
        _remove_other(task)
    if target is None:
        return
    pool = pools.find_pool(host, target, "move_to")
    if MOVING not in document.state:
        _begin(task, pool)
    with ExitStack() as locks:
        if not _hold_servers(locks, host, document.id):
            return  # a server is being changed; the next request finds it free
        _check_holders(host, document)
        running = _running_attachments(host, document)
        if not running:
            _copy(task, pool)
        elif not _mirror(task, pool, running):
            return
        _switch(task, pool)
    _remove_other(task)
    pool.remove_reservation(document.id)


def _begin(task: Task, pool: Pool) -> None:
    """Record in the volume's document that *pool* may have content of the volume, and reserve the volume's name in the
    pool. Raises ``Conflict`` if the pool has content with this name already."""
    document = task.document
    if pool.has(document.id):
        raise pool.taken(document.id)
    document.state[MOVING] = {"pool": pool.name, "format": format_in_pool(pool, document.want["format"])}
    task.keep()
    try:
        pool.claim(document.id, document.state["bytes"])
    except Conflict:
        del document.state[MOVING]
        task.keep()
        raise


def _hold_servers(locks: ExitStack, host: LocalHost, volume: str) -> bool:
    """Lock the servers that have *volume* (a uuid) attached, until *locks* is closed. Return ``False`` if another
    thread holds one of these locks."""
    return all(locks.enter_context(host.locks.hold_if_free("server", server)) for server in sorted(
        {attachment.want["server"] for attachment in attachments_of_volume(host, volume)}))


def _running_attachments(host: LocalHost, document: Document) -> list[Document]:
    """Return the attachments of the volume to running guests: at most one. Raises ``Conflict`` if several running
    guests have the volume."""
    running = [attachment for attachment in attachments_of_volume(host, document.id)
               if attaching.attached_device(host, attachment)]
    if len(running) > 1:
        raise Conflict(f"Volume {document.name!r} is written to by {len(running)} running servers, so QEMU cannot move "
                       "it. Stop all but one of them, then repeat the call.")
    return running


def _copy(task: Task, pool: Pool) -> None:
    """Copy the volume's content into *pool*. The caller ensures that no guest runs with the volume."""
    host, document = task.host, task.document
    disk, key = content.content_disk(host, document), keys.document_key(host, document)
    pool.fill(document.id, document.state[MOVING]["format"], document.state["bytes"], disk, task.operation.advance, key)


def _mirror(task: Task, pool: Pool, running: list[Document]) -> bool:
    """Begin or continue QEMU's copy of a running guest's disk into *pool*; switch the guest to the copy when it is
    complete. Return whether the guest uses the copy now. *running*: a list with one item, the attachment to this guest.
    Raises ``Conflict`` if QEMU has aborted the copy ``MIRRORS`` times."""
    host, document, (attachment,) = task.host, task.document, running
    server, target = attachment.want["server"], attaching.attached_device(host, attachment)
    domain = host.hypervisor.domain(server)
    if target is None or domain is None or domain.state not in (RUNNING, PAUSED):
        return False
    mirror, note = host.hypervisor.mirror(server, target), document.state[MOVING]
    if mirror is None:
        note["mirrors"] = note.get("mirrors", 0) + 1
        if note["mirrors"] > MIRRORS:
            raise Conflict(f"QEMU ended the copy of volume {document.name!r} {MIRRORS} times: a pool is full, or its "
                           "storage fails (the log of the server's QEMU says more). The guest has its disk as before.")
        task.keep()
        pool.make(document.id, note["format"], host.hypervisor.capacity(server, target))
        host.hypervisor.begin_mirror(server, target, _new_disk(host, pool, document, attachment))
        return False
    if mirror.path != _new_disk(host, pool, document, attachment).path:
        raise Conflict(f"The disk of volume {document.name!r} is being copied by other tools. Wait until that has "
                       "ended, or end it (virsh blockjob), then repeat the call.")
    task.operation.advance(mirror.done, mirror.total)
    if mirror.ready:
        note["pivoting"] = server
        task.keep()
        host.hypervisor.pivot(server, target)
    return mirror.ready


def _new_disk(host: LocalHost, pool: Pool, document: Document, attachment: Document) -> Disk:
    """Return the disk that QEMU is to use for *attachment* when the volume *document* has been moved to *pool*: the
    attached disk, with its source replaced by the content in *pool*. Raises ``Conflict`` if the volume no longer
    exists."""
    old = attaching.attached_disk(host, attachment)
    if old is None:
        raise Conflict("The volume was removed meanwhile.")
    new = pool.disk(document.id, document.state[MOVING]["format"])
    return replace(old, path=new.path, format=new.format, remote=new.remote, block_device=new.block_device)


def _switch(task: Task, pool: Pool) -> None:
    """Record in the volume's document that the content is in *pool*, and update the libvirt domains of the servers that
    have the volume."""
    _record_switch(task.host, task.document, pool.name)
    _define_servers(task.host, task.document)


def _record_switch(host: LocalHost, document: Document, pool: str) -> None:
    want, note = document.want, document.state[MOVING]
    document.state[MOVING] = {"pool": want["pool"], "format": want["format"]}
    want.update(pool=pool, format=note["format"], move_to=None)
    host.documents.write(document)
    log.info("volume %s is in pool %s now", document.name, pool)


def settle_pivot(host: LocalHost, document: Document) -> None:
    """Finish a switch of a guest's disk to another pool after a crash of the agent interrupted the switch. If QEMU uses
    the new pool already, record this pool in the volume's document; otherwise remove the document's note that the
    switch had begun."""
    note = document.state.get(MOVING)
    if not note or "pivoting" not in note:
        return
    if content.is_pivoted(host, document):
        _record_switch(host, document, note["pool"])
        _define_servers(host, document)
        return
    del note["pivoting"]
    host.documents.write(document)


def settle_pivots(host: LocalHost) -> None:
    """Call ``settle_pivot`` for every volume, when the agent starts."""
    for document in host.documents.list("volume"):
        with suppress(MagnetarError), host.locks.hold("volume", document.id):
            settle_pivot(host, document)


def _define_servers(host: LocalHost, document: Document) -> None:
    for attachment in attachments_of_volume(host, document.id):
        server, domain = (host.documents.get("server", attachment.want["server"]),
                          host.hypervisor.domain(attachment.want["server"]))
        if server and not server.deleting and domain and domain.owned:
            host.hypervisor.define(spec.domain_spec(host, server))


def _remove_other(task: Task) -> None:
    """Remove the volume's content from the pool that the state field ``MOVING`` names, then remove the field. The field
    names the old pool after a completed move, and the new pool after an aborted move."""
    host, document = task.host, task.document
    end_copies(host, document)
    _define_servers(host, document)
    pools.find_pool(host, document.state[MOVING]["pool"]).remove(document.id)
    document.state.pop(MOVING)
    task.keep()


def end_copies(host: LocalHost, document: Document) -> None:
    """Abort QEMU's block jobs that copy the volume to another storage pool: the pool that the state field ``MOVING`` of
    *document* names."""
    note = document.state[MOVING]
    pool = pools.find_pool(host, note["pool"])
    if not pool.has(document.id):
        return
    path = pool.disk(document.id, note["format"]).path
    for attachment in attachments_of_volume(host, document.id):
        with suppress(HypervisorError):
            host.hypervisor.end_mirror(attachment.want["server"], attachment.want["device"], path)
