# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of this host in servers of others: served by QEMU's NBD server at a unix socket, reached through a link.

An export has the uuid of the attachment that uses it, and so has its link. Behind the door ``nbd`` is the disk; behind
``hand`` the other agent says what becomes of its leave: another host is let in as well (``admit``) or instead
(``keep``) while the server migrates, or the attachment has ended (``release``).
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

from magnetar_agent import hypervisor as hv
from magnetar_agent import reconcile
from magnetar_agent.documents import Document
from magnetar_agent.link import Door, Offer
from magnetar_agent.link.talk import Talk
from magnetar_agent.operations import Operation
from magnetar_agent.volumes import gib, pools
from magnetar_core.ensure import Permissions
from magnetar_core.errors import Conflict, InvalidRequest, MagnetarError, NotFound
from magnetar_core.kinds import Volume, VolumeExport

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent
    from magnetar_agent.drivers import Fields

log = logging.getLogger(__name__)

NBD, HAND = "nbd", "hand"


def folder(agent: Agent, id: str) -> Path:
    """Where the sockets of link *id* are; the same on every host, so that a guest may take its disks along."""
    return agent.settings.socket.parent / "links" / id


def path(agent: Agent, id: str) -> Path:
    """The socket of export *id*: the server's own where the volume is, and one that leads to it elsewhere."""
    return folder(agent, id) / NBD


def origin(agent: Agent, volume: Document) -> Fields:
    """What the attachment on the other host is told of the volume."""
    shared = pools.named(agent, volume.want["pool"]).shared
    return {"host": agent.host_name, "peer": agent.links.name(), "address": None,
            "volume_name": volume.name, "size": gib(volume.state.get("bytes", 1)),
            "multiattach": volume.want["multiattach"], "format": volume.want["format"] if shared else "raw",
            "pool": volume.want["pool"] if shared else None}


def wanted(agent: Agent, document: Document) -> hv.Export | None:
    """What is to be served for the export; ``None`` for a pool that the other host reaches itself."""
    volume = agent.documents.get("volume", document.want["volume"])
    if volume is None:
        raise Conflict(f"The volume {document.want['volume']} of the export is gone from this host.")
    pool = pools.named(agent, volume.want["pool"])
    if pool.shared:
        return None
    disk = replace(pool.disk(volume.id, volume.want["format"]), readonly=document.want["readonly"],
                   shareable=volume.want["multiattach"])
    return hv.Export(document.id, volume.id, disk, path(agent, document.id), bool(document.state.get("stand_in")))


def is_open(agent: Agent, document: Document) -> bool:
    """Whether it is served as it is to be, to those who are to have it."""
    try:
        export = wanted(agent, document)
    except MagnetarError:
        return False
    offered = agent.links.offered(document.id)
    let_in = frozenset() if offered is None else offered.peers
    return agent.hypervisor.serving(document.id) == export and (
        let_in == frozenset(document.want["peers"]) or (export is None and agent.links.name() is None))


def start(agent: Agent, document: Document) -> None:
    """Serve it, and let its peers in."""
    export = wanted(agent, document)
    doors: dict[str, Door] = {HAND: partial(_hand, agent, document.id)}
    if export:
        place = folder(agent, document.id)
        place.mkdir(mode=0o770, parents=True, exist_ok=True)
        agent.hypervisor.permit([place])
        place.chmod(0o770)  # the server makes its socket in it
        agent.hypervisor.serve(export)
        doors[NBD] = export.socket
    # Who is let in no more may be the one who just said so.
    agent.links.offer(Offer(document.id, frozenset(document.want["peers"]), doors), spare=HAND)


def stop(agent: Agent, id: str) -> None:
    """Let nobody in, and serve it no more."""
    agent.links.withdraw(id, spare=HAND)  # which may be how we are told
    agent.hypervisor.unserve(id)
    shutil.rmtree(folder(agent, id), ignore_errors=True)


def resume(agent: Agent) -> None:
    """After a start of the agent; what cannot be served now is tried again by ``tending``."""
    for document in agent.documents.list("volume_export"):
        if not document.deleting:
            _try(agent, document)


def _try(agent: Agent, document: Document) -> None:
    try:
        start(agent, document)
    except MagnetarError as error:
        log.warning("the export %s cannot be opened now: %s", document.name, error)


# Its own host -----------------------------------------------------------------------------------------------------
def served(agent: Agent, volume: str) -> list[hv.Export]:
    """What is served of the volume: nobody else can open its file then."""
    found = [agent.hypervisor.serving(one.id) for one in agent.documents.list("volume_export")
             if one.want["volume"] == volume]
    return [one for one in found if one and not one.stand_in]


def way(agent: Agent, id: str, volume: str) -> hv.Disk:
    """The disk of *volume* as it is reached by the socket of export *id*."""
    place = path(agent, id)
    return hv.Disk(place, "", "raw", remote=hv.Remote("nbd", volume, place))


@contextmanager
def aside(agent: Agent, volume: str) -> Iterator[None]:
    """Nobody is served while its file is changed, and who connects afterwards sees what it is then."""
    gone = served(agent, volume)
    for export in gone:
        agent.hypervisor.unserve(export.id)
    try:
        yield
    finally:
        for export in gone:
            document = agent.documents.get("volume_export", export.id)
            if document and not document.deleting:
                _try(agent, document)


# What the other agent says ----------------------------------------------------------------------------------------
def _hand(agent: Agent, id: str, sock: socket.socket, peer: str) -> None:
    with Talk(sock) as talk:
        while (line := talk.hear()) is not None:
            op = OPS.get(str(line.get("op")))
            try:
                if peer not in _found(agent, id).want["peers"]:
                    raise _gone(id)
                if op is None:
                    raise InvalidRequest(f"There is nothing called {line.get('op')!r} to do with an export.")
                talk.say(op(agent, id, line) or {})
            except MagnetarError as error:
                talk.say({"error": error.as_dict()})
            except Exception:
                log.exception("export %s: %s failed", id, line.get("op"))
                talk.say({"error": MagnetarError().as_dict()})


def admit(agent: Agent, id: str, peer: str) -> Fields:
    """Let *peer* in too; answers with the ``origin``."""
    document = _change(agent, id, lambda peers: [*(one for one in peers if one != peer), peer])
    volume = agent.documents.get("volume", document.want["volume"])
    return {"origin": origin(agent, volume) if volume else None}


def keep(agent: Agent, id: str, peer: str) -> None:
    """Let nobody in but *peer*."""
    _change(agent, id, lambda _peers: [peer])


def release(agent: Agent, id: str, delete: bool) -> None:
    """The attachment has ended; with *delete* the volume goes with it."""
    document = agent.documents.get("volume_export", id)
    if document is None:
        return
    operation = Operation("release", "volume_export", id, caller="agent")
    reconcile.ensure(agent, VolumeExport, id, None, Permissions.defaults(), False, operation)
    if delete:
        reconcile.ensure(agent, Volume, document.want["volume"], None, Permissions.defaults(), False, operation)


def _change(agent: Agent, id: str, change: Callable[[list[str]], list[str]]) -> Document:
    with agent.locks.hold("volume_export", id):
        document = _found(agent, id)
        document.want["peers"] = change(document.want["peers"])
        agent.documents.write(document)
        start(agent, document)
        return document


def _found(agent: Agent, id: str) -> Document:
    document = agent.documents.get("volume_export", id)
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


def look(agent: Agent, id: str) -> None:
    """Raise an error when the disk cannot be used now."""
    start(agent, _found(agent, id))


OPS: Mapping[str, Callable[[Agent, str, Fields], Fields | None]] = {
    "look": lambda agent, id, _line: look(agent, id),
    "admit": lambda agent, id, line: admit(agent, id, _peer(line)),
    "keep": lambda agent, id, line: keep(agent, id, _peer(line)),
    "release": lambda agent, id, line: release(agent, id, bool(line.get("delete"))),
}
