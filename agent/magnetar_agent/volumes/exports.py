# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports: volumes of this host for servers of other hosts. qemu-nbd serves each at a unix socket; a link connects the
other host to the socket.

Export, attachment and link have the same uuid. The link has two endpoints: ``nbd`` is the disk; at ``hand``
the other agent changes the export: it makes the export admit a second host (``admit``) when the server migrates, and
only one host (``keep``) afterwards, or removes the export when the attachment has ended (``release``).
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
from magnetar_agent.link import LinkEndpoint, Offer
from magnetar_agent.link.rpc import Rpc
from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound, mask_unforeseen_error
from magnetar_core.kinds import Volume, VolumeExport
from magnetar_core.operations import Operation

from . import content, keys, pools, round_up_gib

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

log = logging.getLogger(__name__)

NBD, REQUESTS = "nbd", "hand"


def export_folder(host: LocalHost, id: str) -> Path:
    """Return the directory of the unix sockets of a volume export, which makes a volume of this host available to
    another host. *id*: the uuid of the export, which is also the uuid of the attachment. The path is the same on every
    host, so a guest's disk paths stay valid when the guest migrates."""
    return host.settings.socket.parent / "links" / id


def make_export_folder(host: LocalHost, id: str) -> Path:
    """Create the directory whose path ``export_folder`` returns, and return the path. QEMU can use the sockets in the
    directory; only root can add or remove sockets."""
    place = export_folder(host, id)
    file_modes.make_state_folder(place.parent)
    file_modes.make_state_folder(place, 0o750)
    place.chmod(0o750)  # an earlier release left it writable for QEMU's group
    host.hypervisor.permit([place])
    return place


def export_socket(host: LocalHost, id: str) -> Path:
    """Return the path of the unix socket that QEMU uses for the volume export *id*. On the volume's host, qemu-nbd
    listens on the socket. On another host, which runs the server, the agent of that host listens on the socket and
    forwards connections to qemu-nbd."""
    return export_folder(host, id) / NBD


def export_origin(host: LocalHost, volume: Document) -> Fields:
    """Return a description of this host and of *volume* (names, size in GiB, format and so on). The host that uses the
    volume stores the description as the field ``origin`` of its attachment. The key ``pool`` is set only if that host
    can read the pool directly."""
    shared = pools.find_pool(host, volume.want["pool"]).shared and not volume.state.get(keys.SEALED)
    return {"host": host.name, "peer": host.links.name(), "address": None,
            "volume_name": volume.name, "size": round_up_gib(volume.state.get("bytes", 1)),
            "multiattach": volume.want["multiattach"], "format": volume.want["format"] if shared else "raw",
            "pool": volume.want["pool"] if shared else None}


def desired_export(host: LocalHost, document: Document) -> Export | None:
    """Return the export that qemu-nbd must serve for *document*, a volume export, which makes a volume available to
    another host; ``None`` if the host that uses the volume reads it directly, in a shared pool. A volume in a shared
    pool is exported nevertheless if that host only copies the volume (``copied``), or if the volume is encrypted:
    qemu-nbd decrypts it here, so the key stays on this host. Raises ``Conflict`` if the volume is missing, changing, or
    in Ceph."""
    volume = host.documents.get("volume", document.want["volume"])
    if volume is None:
        raise Conflict(f"The volume {document.want['volume']} of the export is gone from this host.")
    if volume.state.get("renewed"):
        raise Conflict(f"The content of volume {volume.name!r} is being recreated.")
    pool = pools.find_pool(host, volume.want["pool"])
    if pool.shared and not volume.state.get(keys.SEALED) and not document.want.get("copied"):
        return None
    content.refuse_while_moving(volume)
    disk = replace(content.content_disk(host, volume), readonly=document.want["readonly"],
                   shareable=volume.want["multiattach"])
    if disk.remote:
        raise Conflict(f"Volume {volume.name!r} is in Ceph, which another host reads without this one. Choose a host "
                       "that reaches Ceph.")
    return Export(document.id, volume.id, disk, export_socket(host, document.id), bool(document.state.get("stand_in")))


def is_open(host: LocalHost, document: Document) -> bool:
    """Return whether qemu-nbd serves the volume export of *document* as desired, and exactly the desired peers (agents
    of other hosts) can connect to it."""
    try:
        export = desired_export(host, document)
    except MagnetarError:
        return False
    offered = host.links.offered(document.id)
    let_in = frozenset() if offered is None else offered.peers
    return host.hypervisor.serving(document.id) == export and (
        let_in == frozenset(document.want["peers"]) or (export is None and host.links.name() is None))


def start_export(host: LocalHost, document: Document) -> None:
    """Start qemu-nbd for the volume export of *document*, unless the host that uses the volume reads it directly (see
    ``desired_export``). Allow the export's peers (agents of other hosts) to connect."""
    export = desired_export(host, document)
    endpoints: dict[str, LinkEndpoint] = {REQUESTS: partial(_answer_requests, host, document.id)}
    if export:
        make_export_folder(host, document.id)
        host.hypervisor.serve(export)
        endpoints[NBD] = export.socket
    # A peer that is no longer let in may have just asked for this.
    host.links.offer(Offer(document.id, frozenset(document.want["peers"]), endpoints), kept_endpoint=REQUESTS)


def stop_export(host: LocalHost, id: str) -> None:
    """Close the connections of other agents to the volume export *id*, stop its qemu-nbd, and remove its sockets."""
    host.links.withdraw(id, kept_endpoint=REQUESTS)  # the request may come through it
    host.hypervisor.unserve(id)
    shutil.rmtree(export_folder(host, id), ignore_errors=True)


def resume_exports(host: LocalHost) -> None:
    """Serve all volume exports of this host again after a restart of the agent. A failure is only logged: the
    background thread ``RemoteVolumes`` tries again later."""
    for document in host.documents.list("volume_export"):
        if not document.deleting:
            _try(host, document)


def _try(host: LocalHost, document: Document) -> None:
    try:
        start_export(host, document)
    except MagnetarError as error:
        log.warning("the export %s cannot be opened now: %s", document.name, error)


# The volume's host ------------------------------------------------------------------------------------------------
def running_exports(host: LocalHost, volume: str) -> list[Export]:
    """Return the exports of *volume* (a uuid) whose qemu-nbd has the volume's file open and thereby locks the file
    against other processes. Exports that serve only a temporary overlay of the volume (``Export.stand_in``) are left
    out."""
    exports = [host.hypervisor.serving(document.id) for document in host.documents.list("volume_export")
               if document.want["volume"] == volume]
    return [export for export in exports if export and not export.stand_in]


def disk_at_socket(host: LocalHost, id: str, volume: str) -> Disk:
    """Return a disk that makes QEMU use *volume* (a uuid) over NBD, through the unix socket of export *id*."""
    place = export_socket(host, id)
    return Disk(place, "", "raw", remote=NetworkSource("nbd", volume, place))


@contextmanager
def not_served(host: LocalHost, volume: str) -> Iterator[None]:
    """Stop the exports of *volume* (a uuid) that ``running_exports`` returns during the ``with`` block, so that the
    caller can change the volume's file. Then start them again. Clients that reconnect afterwards see the new size."""
    stopped_exports = running_exports(host, volume)
    for export in stopped_exports:
        host.hypervisor.unserve(export.id)
    try:
        yield
    finally:
        for export in stopped_exports:
            document = host.documents.get("volume_export", export.id)
            if document and not document.deleting:
                _try(host, document)


# Requests of the other agent --------------------------------------------------------------------------------------
def _answer_requests(host: LocalHost, id: str, sock: socket.socket, peer: str) -> None:
    with Rpc(sock) as talk:
        while (line := talk.receive()) is not None:
            op = OPS.get(str(line.get("op")))
            try:
                if peer not in _existing_export(host, id).want["peers"]:
                    raise _missing_export(id)
                if op is None:
                    raise InvalidRequest(f"There is nothing called {line.get('op')!r} to do with an export.")
                talk.send(op(host, id, line) or {})
            except MagnetarError as error:
                talk.send({"error": error.as_dict()})
            except Exception as error:
                log.exception("export %s: %s failed", id, line.get("op"))
                talk.send({"error": mask_unforeseen_error(error).as_dict()})


def admit_peer(host: LocalHost, id: str, peer: str) -> Fields:
    """Allow the agent *peer* to connect to the volume export *id*, in addition to the agents that may connect already.
    Return ``{"origin": …}``: the result of ``export_origin``, or ``None`` if the volume no longer exists."""
    document = _change(host, id, lambda peers: [*(other_peer for other_peer in peers if other_peer != peer), peer])
    volume = host.documents.get("volume", document.want["volume"])
    return {"origin": export_origin(host, volume) if volume else None}


def restrict_to_peer(host: LocalHost, id: str, peer: str) -> None:
    """Allow only the agent *peer* to connect to the volume export *id*, and no other agent any more."""
    _change(host, id, lambda _peers: [peer])


def release_export(host: LocalHost, id: str, delete: bool) -> None:
    """Remove the volume export *id*, whose attachment has ended. *delete*: also delete the volume."""
    document = host.documents.get("volume_export", id)
    if document is None:
        return
    operation = Operation("release", "volume_export", id, caller="agent")
    host.ensure(VolumeExport, id, None, operation)
    if delete:
        host.ensure(Volume, document.want["volume"], None, operation)


def _change(host: LocalHost, id: str, change: Callable[[list[str]], list[str]]) -> Document:
    with host.locks.hold("volume_export", id):
        document = _existing_export(host, id)
        document.want["peers"] = change(document.want["peers"])
        host.documents.write(document)
        start_export(host, document)
        return document


def _existing_export(host: LocalHost, id: str) -> Document:
    document = host.documents.get("volume_export", id)
    if document is None or document.deleting:
        raise _missing_export(id)
    return document


def _missing_export(id: str) -> NotFound:
    return NotFound(f"There is no export {id} here any more.", kind="volume_export", key=id)


def _peer(line: Fields) -> str:
    peer = line.get("peer")
    if not isinstance(peer, str) or not 0 < len(peer) < 256:
        raise InvalidRequest("The other agent names no peer.")
    return peer


def reopen_export(host: LocalHost, id: str) -> None:
    """Serve the volume export *id* again, for example after a failure. Raises ``NotFound`` if the export is being
    removed, and another error if qemu-nbd cannot serve the volume."""
    with host.locks.hold("volume_export", id):
        start_export(host, _existing_export(host, id))


OPS: Mapping[str, Callable[[LocalHost, str, Fields], Fields | None]] = {
    "look": lambda host, id, _line: reopen_export(host, id),
    "admit": lambda host, id, line: admit_peer(host, id, _peer(line)),
    "keep": lambda host, id, line: restrict_to_peer(host, id, _peer(line)),
    "release": lambda host, id, line: release_export(host, id, bool(line.get("delete"))),
}
