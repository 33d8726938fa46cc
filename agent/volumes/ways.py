# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of other hosts in servers of this one: the way to each is a unix socket that a link leads to its export.

``tending`` looks after them: after an outage of the other host, guests that wait for a disk run on, and attachments
that ended meanwhile are told of.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

from magnetar_agent import reconcile
from magnetar_agent.hypervisor import Disk
from magnetar_agent.link import Remote
from magnetar_agent.link.talk import Talk
from magnetar_agent.migrations import MARK
from magnetar_agent.operations import Operation
from magnetar_agent.volumes import exports, pools
from magnetar_core.ensure import Permissions
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, NotFound, Unreachable
from magnetar_core.kinds import Server, VolumeAttachment
from magnetar_core.power import PAUSED

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent
    from magnetar_agent.documents import Document
    from magnetar_agent.drivers import Fields

log = logging.getLogger(__name__)

#: Seconds between two looks at what waits for other hosts.
LOOK = 2.0
#: Seconds that QEMU may take to connect again.
CONNECT = 5.0
#: Where an attachment notes the peer that its volume's host has let in besides us, for a migration.
LENT = "lent"
#: Where a server notes that it is to start when its volumes can be reached.
AWAITED = "awaits_volumes"


def disk(agent: Agent, attachment: Document) -> Disk:
    """How QEMU reaches the volume."""
    origin, volume = attachment.want["origin"], attachment.want["volume"]
    if origin["pool"]:
        return pools.named(agent, origin["pool"], "origin.pool").disk(volume, origin["format"])
    return exports.way(agent, attachment.id, volume)


def check(agent: Agent, origin: Fields) -> None:
    """Raise ``InvalidField`` or ``Conflict`` for an origin that this host cannot reach."""
    if origin["pool"]:
        if not pools.named(agent, origin["pool"], "origin.pool").shared:
            raise InvalidField("origin.pool", "must be a pool that both hosts reach, of type nfs or rbd here too",
                               origin["pool"])
        return
    if not origin["peer"]:
        raise InvalidField("origin.peer", "is required: the common name in the certificate of the volume's agent")
    agent.links.required()
    _remote("", origin)


def open(agent: Agent, attachment: Document) -> None:
    """Have the socket there that QEMU connects to."""
    origin = attachment.want["origin"]
    if origin["pool"] or _is_own(agent, attachment) or agent.links.forwards(attachment.id):
        return
    place = exports.folder(agent, attachment.id)
    place.mkdir(mode=0o750, parents=True, exist_ok=True)
    agent.hypervisor.permit([place])
    agent.links.forward(_remote(attachment.id, origin), exports.NBD, place / exports.NBD, place.stat().st_gid)


def close(agent: Agent, attachment: Document) -> None:
    """Cut it."""
    if attachment.want["origin"]["pool"] or _is_own(agent, attachment):
        return
    agent.links.cut(attachment.id)
    shutil.rmtree(exports.folder(agent, attachment.id), ignore_errors=True)


def tell(agent: Agent, attachment: Document, op: str, **more: Any) -> Fields:
    """Say what becomes of the export, to the agent that has the volume. See ``exports.OPS``."""
    if _is_own(agent, attachment):
        return exports.OPS[op](agent, attachment.id, more) or {}
    if not attachment.want["origin"]["peer"]:
        return {}  # a pool that both reach, and an agent without TLS there: nobody can tell it
    remote = _remote(attachment.id, attachment.want["origin"])
    with Talk(agent.links.call(remote, exports.HAND)) as talk:
        return talk.ask(op, **more)


def reconnect(agent: Agent, attachment: Document) -> None:
    """Have QEMU connect again, so that the guest finds its disk at once. Raises ``Unreachable``."""
    want = attachment.want
    if want["origin"]["pool"]:
        return
    tell(agent, attachment, "look")
    deadline = time.monotonic() + CONNECT
    while time.monotonic() < deadline:
        agent.hypervisor.rejoin(want["server"], exports.path(agent, attachment.id))
        if _is_own(agent, attachment) or agent.links.connected(attachment.id, exports.NBD):
            return
        time.sleep(0.02)
    log.warning("QEMU of server %s does not connect to its volume %s again", want["server"], want["volume"])


def reach(agent: Agent, server: Document) -> None:
    """Raise ``Unreachable`` unless all volumes that the server is to start with can be used now."""
    for one in agent.documents.list("volume_attachment"):
        origin = one.want.get("origin")
        if one.want["server"] != server.id or one.deleting or not origin or origin["pool"] or server.want.get("rescue"):
            continue
        open(agent, one)
        try:
            tell(agent, one, "look")
        except Unreachable as error:
            raise Unreachable(f"Server {server.name!r} cannot start without its volume {origin['volume_name']!r} of "
                              f"{origin['host'] or 'another host'}; it is started as soon as that answers. "
                              f"{error}") from error


def release(agent: Agent, attachment: Document) -> None:
    """The attachment has ended: tell the other host, and close the way. Raises ``Unreachable`` and leaves the rest."""
    try:
        tell(agent, attachment, "release", delete=bool(attachment.state.get("delete")))
    except NotFound:
        log.info("the volume %s is not kept for us any more", attachment.want["volume"])
    close(agent, attachment)


def amend(agent: Agent, attachment: Document) -> None:
    """Have nobody else let in by the volume's host, when somebody was for a migration that has ended."""
    server = agent.documents.get("server", attachment.want["server"])
    if attachment.state.get(LENT) and server and not server.state.get(MARK):
        tell(agent, attachment, "keep", peer=agent.links.required())
        del attachment.state[LENT]
        agent.documents.write(attachment)


def resume(agent: Agent) -> None:
    """After a start of the agent: listen again, so that guests find their disks."""
    for attachment in agent.documents.list("volume_attachment"):
        if attachment.want.get("origin"):
            try:
                open(agent, attachment)
            except (MagnetarError, OSError) as error:
                log.warning("the way to the volume of %s cannot be opened: %s", attachment.name, error)


def _is_own(agent: Agent, attachment: Document) -> bool:
    """Whether the volume is on this very host: a server has come to it."""
    return agent.documents.get("volume_export", attachment.id) is not None


def _remote(id: str, origin: Fields) -> Remote:
    host, _colon, port = (origin.get("address") or "").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidField("origin.address", "must be host:port", origin.get("address"))
    return Remote(id, origin["peer"], host.strip("[]"), int(port))


class Tending:
    """A thread that looks after volumes between hosts now and then."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tend volumes", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._ending.wait(LOOK):
            try:
                self.look()
            except MagnetarError as error:
                log.info("looking after volumes of other hosts: %s", error)
            except Exception:
                log.exception("looking after volumes of other hosts")

    def look(self) -> None:
        """Do what could not be done when it was to be."""
        agent = self.agent
        for export in agent.documents.list("volume_export"):
            if not export.deleting and not exports.is_open(agent, export) and \
                    not agent.locks.held("volume", export.want["volume"]):  # it may be aside, to grow
                self._try(lambda export=export: exports.start(agent, export), export)
        waiting: dict[str, list[Document]] = {}
        for one in agent.documents.list("volume_attachment"):
            if one.want.get("origin") and one.deleting:
                self._try(lambda one=one: self._end(one), one)
            elif one.want.get("origin"):
                self._try(lambda one=one: amend(agent, one), one)
                waiting.setdefault(one.want["server"], []).append(one)
        for server, ways in waiting.items():
            domain = agent.hypervisor.domain(server)
            if domain and domain.state == PAUSED and domain.reason == "io-error":
                self._try(lambda server=server, ways=ways: self._wake(server, ways), ways[0])
            document = agent.documents.get("server", server)
            if document and document.state.get(AWAITED):
                self._try(lambda document=document: self._start(document), document)

    def _start(self, server: Document) -> None:
        """Have the server as it is to be, now that its volumes may be there."""
        reach(self.agent, server)
        operation = Operation("settle", "server", server.id, caller="agent")
        reconcile.ensure(self.agent, Server, server.id, {}, Permissions.defaults(), False, operation)

    def _end(self, attachment: Document) -> None:
        operation = Operation("settle", "volume_attachment", attachment.id, caller="agent")
        reconcile.ensure(self.agent, VolumeAttachment, attachment.id, None, Permissions.defaults(), False, operation)

    def _wake(self, server: str, ways: list[Document]) -> None:
        """Let the guest try again once every volume of it can be reached."""
        for one in ways:
            reconnect(self.agent, one)
        with self.agent.locks.hold("server", server):
            document, domain = self.agent.documents.get("server", server), self.agent.hypervisor.domain(server)
            if document and domain and domain.state == PAUSED and domain.reason == "io-error":
                log.info("server %s waited for its disks, and runs on", document.name, extra={"server": server})
                self.agent.hypervisor.resume(server)

    @staticmethod
    def _try(act: Any, document: Document) -> None:
        try:
            act()
        except Conflict as error:
            log.warning("%s %s: %s", document.kind, document.name, error)
        except MagnetarError as error:
            log.debug("%s %s has to wait: %s", document.kind, document.name, error)
