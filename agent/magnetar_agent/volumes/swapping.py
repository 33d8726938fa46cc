# SPDX-License-Identifier: GPL-3.0-or-later
"""The replacement of a volume by another one in a running server (``replaces`` of the new attachment).

QEMU copies the old volume to the new one, together with all writes of the guest meanwhile, and then continues with the
new one (``pivot``). ``attaching.is_current`` tells which of the two volumes the server has: the old one until the state
field ``SWAPPED`` is written in the new attachment. Between ``PIVOTING`` and ``SWAPPED`` libvirt's definition decides,
which ``pivot`` changes: so the answer is clear after a crash at any line, and when the guest ends meanwhile. QEMU goes
on copying while no agent runs; the next agent finds the copy and waits until it is complete.

Locks are always taken in this order: the new attachment, the old one, the server, the new volume.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from magnetar_agent.migrations import refuse_while_it_moves
from magnetar_agent.reconcile.task import NotRemovable
from magnetar_agent.servers import spec
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound, Unreachable
from magnetar_core.kinds import VolumeAttachment
from magnetar_core.power import PAUSED, RUNNING
from magnetar_core.reconcile import refuse_missing

from . import GIB, attaching, content, pools, remote
from .attaching import GIVES_WAY, PIVOTING, REPLACED, SWAPPED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

#: Seconds between two checks of a copy, at first and at most.
SOON, POLL_INTERVAL = 0.02, 1.0
#: Fields that the new attachment takes from the old one.
COPIED_FIELDS = ("device", "bus", "tag", "boot_index")


def complete_swap(host: LocalHost, desired: Fields, server: Document, old: Document | None, volume: Document) -> None:
    """Complete *desired*, the requested attachment of the new *volume*, with fields of *old*, the attachment to
    replace, such as the device name. Raises ``InvalidField`` and ``Conflict`` for volumes that cannot be swapped."""
    if old is None or old.deleting or not attaching.is_current(host, old):
        refuse_missing(InvalidField("replaces", f"must name a volume that server {server.name!r} has",
                                    desired["replaces"]),
                       "volume_attachment", f"{server.name}:{desired['replaces']}")
        desired.setdefault("device", attaching.draw_device_name(desired["bus"], set()))
        return
    if old.want["boot_index"] == 0:
        raise Conflict("The volume to be replaced is the root disk of its server, which stays the one that the server "
                       "was made with.", field="replaces")
    desired["replaces"] = old.want["volume"]
    defaults = VolumeAttachment.defaults()
    for name in COPIED_FIELDS:
        if desired.get(name, defaults.get(name)) not in (defaults.get(name), old.want[name]):
            raise InvalidField(name, "cannot differ from that of the volume that is replaced", desired[name])
        desired[name] = old.want[name]
    desired["serial"] = attaching.disk_serial(old)
    if old.want["readonly"] or desired["readonly"]:
        raise Conflict("A volume that the guest may only read cannot be swapped. Detach it, and attach the other one.",
                       field="readonly")
    _check_volumes(host, server, old, volume, desired)
    if host.documents.get("server", server.id):
        _check_state(host, server)


def _check_volumes(host: LocalHost, server: Document, old: Document, volume: Document, desired: Fields) -> None:
    other = host.documents.get("volume", old.want["volume"])
    for swapped_volume in (volume, other):
        if swapped_volume is not None:
            content.refuse_while_moving(swapped_volume)
            content.refuse_encrypted(swapped_volume, "it cannot be swapped: stop the server, and attach a copy of it "
                                     "(source_volume) in its place")
    origin = old.want.get("origin") or {}
    several = origin.get("multiattach") or (other and other.want["multiattach"])
    if several or volume.want["multiattach"]:
        raise Conflict("A volume with multiattach cannot be swapped: other servers may write to it.", field="replaces")
    has = origin.get("size") or _size(other) // GIB
    real = host.documents.get("volume", volume.id)  # a dry run may assume it
    gets = (desired.get("origin") or {}).get("size") or _size(real) // GIB
    if gets and gets < has:
        raise InvalidField("volume", f"must not be smaller than the volume that it replaces: it has {gets} GiB, and "
                                     f"that one {has} GiB", volume.name)
    if next(active_swaps(host, server.id), None):
        raise Conflict(f"A volume of server {server.name!r} is being swapped already. Wait until that has ended.")


def _size(volume: Document | None) -> int:
    return int(volume.state.get("bytes") or (volume.want.get("size") or 0) * GIB) if volume else 0


def _check_state(host: LocalHost, server: Document) -> None:
    domain = host.hypervisor.domain(server.id)
    if domain is None or domain.state not in (RUNNING, PAUSED):
        raise Conflict(f"Server {server.name!r} does not run, and QEMU swaps volumes of servers that run. Start it; or "
                       "detach the volume, and attach one that was made from it (source_volume).")


def active_swaps(host: LocalHost, server: str) -> Iterator[Document]:
    """Return the attachments of *server* (a uuid) that are now replacing another attachment."""
    return (attachment for attachment in host.documents.list("volume_attachment")
            if attachment.want["server"] == server and attachment.want.get("replaces") and not attachment.deleting)


# Verbs ------------------------------------------------------------------------------------------------------------
def swap_volume(task: Task) -> None:
    """Replace the old volume by the new one in the running guest, then remove the attachment of the old volume. The
    task's document is the new attachment."""
    if not attaching.is_swapped(task.host, task.document):
        try:
            _begin(task)
            _wait(task)
            _pivot(task)
        except BaseException:
            if not attaching.is_swapped(task.host, task.document):
                _end(task)
            raise
    _settle(task)


def abandon_swap(task: Task) -> None:
    """Abort the swap, the replacement of an attached volume by the volume of the task's document (an attachment): the
    guest keeps the old volume. Raises ``NotRemovable`` if the guest uses the new volume already.
    """
    if attaching.is_swapped(task.host, task.document):
        raise NotRemovable("The guest is on the new volume already. Repeat the call that swaps it, then detach that "
                           "volume.")
    _end(task)
    host, want = task.host, task.document.want
    with host.locks.hold("volume_attachment", _old_id(task.document)):
        old = host.documents.get("volume_attachment", _old_id(task.document))
        if old and old.state.pop(GIVES_WAY, None):
            host.documents.write(old)
    volume = host.documents.get("volume", want["volume"])
    if volume and not want.get("origin") and volume.want["format"] == "qcow2" and volume.state.get("bytes"):
        with host.locks.hold("volume", volume.id):  # it had the size of the old one
            pools.find_pool(host, volume.want["pool"]).grow(volume.id, "qcow2", volume.state["bytes"])


def _old_id(document: Document) -> str:
    return attaching.attachment_id(document.want["server"], document.want["replaces"])


def _hold_all(locks: ExitStack, task: Task) -> tuple[Document, Document]:
    """Lock everything that the replacement of an attached volume changes, until *locks* is closed. Return the documents
    (stored states) of the server and of the old attachment. Raises ``Conflict`` if either is missing or being deleted,
    or if the server is migrating.
    """
    host, want = task.host, task.document.want
    locks.enter_context(host.locks.hold("volume_attachment", _old_id(task.document)))
    locks.enter_context(attaching.hold_server_volume(host, want["server"], want["volume"]))
    server = host.documents.get("server", want["server"])
    old = host.documents.get("volume_attachment", _old_id(task.document))
    if server is None or server.deleting or old is None or old.deleting:
        raise Conflict("The server or its volume was removed while the volume was swapped.")
    refuse_while_it_moves(host, server)
    return server, old


def _begin(task: Task) -> None:
    host, document = task.host, task.document
    uuid, target = document.want["server"], document.want["device"]
    with ExitStack() as locks:
        server, _old = _hold_all(locks, task)
        _check_state(host, server)
        disk = attaching.attached_disk(host, document)
        if disk is None:
            raise Conflict("The volume was removed meanwhile.")
        if document.want.get("origin"):
            remote.open_volume_socket(host, document)
        mirror = host.hypervisor.mirror(uuid, target)
        if mirror is not None and mirror.path == disk.path:
            return  # an agent before this one has begun it
        volume, size = host.documents.get("volume", document.want["volume"]), host.hypervisor.capacity(uuid, target)
        if volume and disk.format == "qcow2" and not document.want.get("origin"):
            # QEMU copies between disks of one size. It grows afterwards.
            pools.find_pool(host, volume.want["pool"]).make(volume.id, "qcow2", size)
        host.hypervisor.begin_mirror(uuid, target, disk)


def _wait(task: Task) -> None:
    """Wait until QEMU has copied the old volume completely to the new one. Raises ``Conflict`` if QEMU has aborted the
    copy."""
    host, want, pause = task.host, task.document.want, SOON
    with task.operation.waiting():
        while True:
            mirror = host.hypervisor.mirror(want["server"], want["device"])
            if mirror is None:
                raise Conflict("QEMU has stopped to copy the volume: the server was stopped or restarted meanwhile, or "
                               "the storage of one of the two failed (the log of the server's QEMU says more). The "
                               "guest has its old volume as before. Repeat the call.")
            if mirror.ready:
                return
            task.operation.advance(mirror.done, mirror.total)
            host.changes.wait(want["server"], pause)
            pause = min(2 * pause, POLL_INTERVAL)


def _pivot(task: Task) -> None:
    host, document = task.host, task.document
    task.operation.raise_if_cancelled()
    with ExitStack() as locks:
        _server, old = _hold_all(locks, task)
        old.state[GIVES_WAY] = document.id
        host.documents.write(old)
        document.state[PIVOTING] = True
        task.keep()
        host.hypervisor.pivot(document.want["server"], document.want["device"])
        document.state[SWAPPED] = True
        task.keep()


def _end(task: Task) -> None:
    """Abort QEMU's copy of the old volume to the new one."""
    want, disk = task.document.want, None
    with suppress(MagnetarError):
        disk = attaching.attached_disk(task.host, task.document)
    if disk:
        task.host.hypervisor.end_mirror(want["server"], want["device"], disk.path)


def _settle(task: Task) -> None:
    """Complete the swap after the guest has switched to the new volume: update the libvirt domain, and remove the old
    attachment."""
    host, document = task.host, task.document
    uuid, target = document.want["server"], document.want["device"]
    document.state[SWAPPED] = True
    task.keep()
    with host.locks.hold("volume_attachment", _old_id(document)):
        old = host.documents.get("volume_attachment", _old_id(document))
        if old and not old.state.get(REPLACED):
            old.state[REPLACED] = True
            old.want["delete_on_termination"] = False
            host.documents.write(old)
    with attaching.hold_server_volume(host, uuid, document.want["volume"]):
        server, domain = host.documents.get("server", uuid), host.hypervisor.domain(uuid)
        volume = host.documents.get("volume", document.want["volume"])
        if server and not server.deleting and domain and domain.owned:
            host.hypervisor.define(spec.domain_spec(host, server))
        if volume and not document.want.get("origin") and volume.want["format"] == "qcow2":
            _grow(host, uuid, target, volume)
    with suppress(Unreachable, NotFound):  # ``RemoteVolumes`` tells the old one's host when it answers
        host.ensure(VolumeAttachment, _old_id(document), None, task.operation)
    document.want["replaces"] = None
    for note in (PIVOTING, SWAPPED):
        document.state.pop(note, None)
    task.keep()


def _grow(host: LocalHost, uuid: str, target: str, volume: Document) -> None:
    """Grow the new *volume* to its requested size. During the swap the new volume had the size of the old one.
    *target*: the volume's device name (such as vdb) in the domain *uuid*, which may be running."""
    size = _size(volume)
    if host.hypervisor.running(uuid) is None:
        pools.find_pool(host, volume.want["pool"]).grow(volume.id, "qcow2", size)
    elif host.hypervisor.capacity(uuid, target) < size:
        host.hypervisor.resize(uuid, target, size)
