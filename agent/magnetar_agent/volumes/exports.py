# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of this host in servers of other hosts. qemu-nbd serves each at a unix socket, which a link makes reachable.

Export, attachment and link have the same uuid. The link's door ``nbd`` leads to the disk. Through the door ``hand`` the
other agent asks for changes of the export: also let in another host (``admit``), let in only that one (``keep``), both
while the server migrates, or remove the export since the attachment has ended (``release``).
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host import file_modes
from magnetar_agent.host.storage import Disk, Export, NetworkSource
from magnetar_agent.link import Door, Offer
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound, unforeseen
from magnetar_core.kinds import Volume, VolumeExport
from magnetar_core.operations import Operation

from . import content, gib, keys, pools

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

log = logging.getLogger(__name__)

NBD, HAND = "nbd", "hand"


def folder(host: LocalHost, id: str) -> Path:
    """Where the sockets of link *id* are; the same on every host, so that a guest may take its disks along."""
    return host.settings.socket.parent / "links" / id


def make_folder(host: LocalHost, id: str) -> Path:
    """The folder, made. QEMU may use what is in it; only root gives and takes names there."""
    place = folder(host, id)
    file_modes.make_folder(place.parent)
    file_modes.make_folder(place, 0o750)
    place.chmod(0o750)  # one that an earlier release left is writable for QEMU's group
    host.hypervisor.permit([place])
    return place


def path(host: LocalHost, id: str) -> Path:
    """The socket of export *id*: the server's own where the volume is, and one that leads to it elsewhere."""
    return folder(host, id) / NBD


def origin(host: LocalHost, volume: Document) -> Fields:
    """What the other host needs to know of the volume for its attachment."""
    shared = pools.named(host, volume.want["pool"]).shared and not volume.state.get(keys.SEALED)
    return {"host": host.name, "peer": host.links.name(), "address": None,
            "volume_name": volume.name, "size": gib(volume.state.get("bytes", 1)),
            "multiattach": volume.want["multiattach"], "format": volume.want["format"] if shared else "raw",
            "pool": volume.want["pool"] if shared else None}


def wanted(host: LocalHost, document: Document) -> Export | None:
    """What qemu-nbd is to serve for the export; ``None`` for a shared pool, which the other host reaches by itself.
    What is encrypted is read and written by qemu-nbd here, so that the key stays on this host."""
    volume = host.documents.get("volume", document.want["volume"])
    if volume is None:
        raise Conflict(f"The volume {document.want['volume']} of the export is gone from this host.")
    if volume.state.get("renewed"):
        raise Conflict(f"The content of volume {volume.name!r} is being made anew.")
    pool = pools.named(host, volume.want["pool"])
    if pool.shared and not volume.state.get(keys.SEALED):
        return None
    disk = replace(content.disk(host, volume), readonly=document.want["readonly"],
                   shareable=volume.want["multiattach"])
    return Export(document.id, volume.id, disk, path(host, document.id), bool(document.state.get("stand_in")))


def is_open(host: LocalHost, document: Document) -> bool:
    """Whether it is served as it should be, to the right peers."""
    try:
        export = wanted(host, document)
    except MagnetarError:
        return False
    offered = host.links.offered(document.id)
    let_in = frozenset() if offered is None else offered.peers
    return host.hypervisor.serving(document.id) == export and (
        let_in == frozenset(document.want["peers"]) or (export is None and host.links.name() is None))


def start(host: LocalHost, document: Document) -> None:
    """Serve it and let its peers in."""
    export = wanted(host, document)
    doors: dict[str, Door] = {HAND: partial(_answer_requests, host, document.id)}
    if export:
        make_folder(host, document.id)
        host.hypervisor.serve(export)
        doors[NBD] = export.socket
    # A peer that is no longer let in may be the one that just asked for this.
    host.links.offer(Offer(document.id, frozenset(document.want["peers"]), doors), spare=HAND)


def stop(host: LocalHost, id: str) -> None:
    """Stop serving it and close the link."""
    host.links.withdraw(id, spare=HAND)  # which may be how we are told
    host.hypervisor.unserve(id)
    shutil.rmtree(folder(host, id), ignore_errors=True)


def resume(host: LocalHost) -> None:
    """After a start of the agent; ``RemoteVolumes`` tries again what fails now."""
    for document in host.documents.list("volume_export"):
        if not document.deleting:
            _try(host, document)


def _try(host: LocalHost, document: Document) -> None:
    try:
        start(host, document)
    except MagnetarError as error:
        log.warning("the export %s cannot be opened now: %s", document.name, error)


# Its own host -----------------------------------------------------------------------------------------------------
def served(host: LocalHost, volume: str) -> list[Export]:
    """The running exports of the volume: while there is one, nobody else can open the volume's file."""
    found = [host.hypervisor.serving(one.id) for one in host.documents.list("volume_export")
             if one.want["volume"] == volume]
    return [one for one in found if one and not one.stand_in]


def disk_at_socket(host: LocalHost, id: str, volume: str) -> Disk:
    """The disk of *volume* as it is reached by the socket of export *id*."""
    place = path(host, id)
    return Disk(place, "", "raw", remote=NetworkSource("nbd", volume, place))


@contextmanager
def not_served(host: LocalHost, volume: str) -> Iterator[None]:
    """Stop serving the volume while its file is changed; clients that connect afterwards see the new size."""
    gone = served(host, volume)
    for export in gone:
        host.hypervisor.unserve(export.id)
    try:
        yield
    finally:
        for export in gone:
            document = host.documents.get("volume_export", export.id)
            if document and not document.deleting:
                _try(host, document)


# What the other agent says ----------------------------------------------------------------------------------------
def _answer_requests(host: LocalHost, id: str, sock: socket.socket, peer: str) -> None:
    with Rpc(sock) as talk:
        while (line := talk.receive()) is not None:
            op = OPS.get(str(line.get("op")))
            try:
                if peer not in _found(host, id).want["peers"]:
                    raise _gone(id)
                if op is None:
                    raise InvalidRequest(f"There is nothing called {line.get('op')!r} to do with an export.")
                talk.send(op(host, id, line) or {})
            except MagnetarError as error:
                talk.send({"error": error.as_dict()})
            except Exception as error:
                log.exception("export %s: %s failed", id, line.get("op"))
                talk.send({"error": unforeseen(error).as_dict()})


def admit(host: LocalHost, id: str, peer: str) -> Fields:
    """Let *peer* in too; answers with the ``origin``."""
    document = _change(host, id, lambda peers: [*(one for one in peers if one != peer), peer])
    volume = host.documents.get("volume", document.want["volume"])
    return {"origin": origin(host, volume) if volume else None}


def keep(host: LocalHost, id: str, peer: str) -> None:
    """Let nobody in but *peer*."""
    _change(host, id, lambda _peers: [peer])


def release(host: LocalHost, id: str, delete: bool) -> None:
    """The attachment has ended; with *delete* the volume goes with it."""
    document = host.documents.get("volume_export", id)
    if document is None:
        return
    operation = Operation("release", "volume_export", id, caller="agent")
    host.ensure(VolumeExport, id, None, operation)
    if delete:
        host.ensure(Volume, document.want["volume"], None, operation)


def _change(host: LocalHost, id: str, change: Callable[[list[str]], list[str]]) -> Document:
    with host.locks.hold("volume_export", id):
        document = _found(host, id)
        document.want["peers"] = change(document.want["peers"])
        host.documents.write(document)
        start(host, document)
        return document


def _found(host: LocalHost, id: str) -> Document:
    document = host.documents.get("volume_export", id)
    if document is None or document.deleting:
        raise _gone(id)
    return document


def _gone(id: str) -> NotFound:
    return NotFound(f"There is no export {id} here any more.", kind="volume_export", key=id)


def _peer(line: Fields) -> str:
    peer = line.get("peer")
    if not isinstance(peer, str) or not 0 < len(peer) < 256:
        raise InvalidRequest("The other agent names no peer.")
    return peer


def look(host: LocalHost, id: str) -> None:
    """Serve it, unless it goes just now. Raises an error when the disk cannot be used."""
    with host.locks.hold("volume_export", id):
        start(host, _found(host, id))


OPS: Mapping[str, Callable[[LocalHost, str, Fields], Fields | None]] = {
    "look": lambda host, id, _line: look(host, id),
    "admit": lambda host, id, line: admit(host, id, _peer(line)),
    "keep": lambda host, id, line: keep(host, id, _peer(line)),
    "release": lambda host, id, line: release(host, id, bool(line.get("delete"))),
}
