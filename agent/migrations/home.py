# SPDX-License-Identifier: GPL-3.0-or-later
"""What the source's half does when the way is over, or was in vain: where the server is now, what is left of one that
is the target's, and one that stays here after all. Every verb may be done twice."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from magnetar_agent.documents import Document, now
from magnetar_agent.link import Remote
from magnetar_agent.link.talk import Talk
from magnetar_agent.migrations import AGENT, MARK, volumes
from magnetar_agent.servers import fixed, verbs
from magnetar_core.errors import Conflict, InvalidField, MagnetarError, Unreachable
from magnetar_core.power import LIVE, OFF, PAUSED, RUNNING

if TYPE_CHECKING:
    from magnetar_agent.documents import Fields
    from magnetar_agent.host import LocalHost
    from magnetar_agent.task import Task

log = logging.getLogger(__name__)

#: Where the source's half notes which run of the guest its disks come from: drawn anew whenever it may have run.
RUN = "run"


def remote(id: str, want: Fields) -> Remote:
    """Where the target is."""
    host, _colon, port = (want.get("address") or "").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidField("address", "must be host:port", want.get("address"))
    return Remote(id, want["peer"], host.strip("[]"), int(port))


def here(task: Task) -> bool:
    """Whether the server is here for sure: its guest is active, or it is off and the target was never told to take
    it. While the guest is active here, the target's copy never runs."""
    document = task.document
    if runs(task.host, document):
        return True
    return document.want["type"] == "cold" and not document.state.get("decided")


def on(task: Task, server: Document) -> Task:
    """A task on the server itself; its document is written where the migration's is."""
    return type(task)(task.host, server, task.operation)


def leave(task: Task) -> None:
    """Remove what is left of a server that is the target's."""
    host, id = task.host, task.document.want["server"]
    with host.locks.hold("server", id):
        server = host.documents.get("server", id)
        if server is not None:
            host.hypervisor.destroy(id)
            host.hypervisor.undefine(id)
            fixed.release(on(task, server))
            verbs.erase(on(task, server))
            host.documents.remove(server)
    volumes.let_go(host, id, task.document.want["peer"])
    task.document.state["left"] = now()
    task.keep()


def recover(task: Task) -> None:
    """Take it back: the server stays here. Raises ``Conflict`` when it has gone already."""
    document = task.document
    if document.state.get("moved"):
        raise Conflict("The server has gone already; it cannot be taken back. Run the migration again to settle it, or "
                       "migrate it back.")
    if document.state.get("tried"):
        try:
            _drop(task)
        except Unreachable:
            if not here(task):
                raise
    give_back(task)


def _drop(task: Task) -> None:
    """Tell the target to forget what has come."""
    with Talk(task.host.links.call(remote(task.document.id, task.document.want), AGENT)) as talk:
        if talk.ask("look")["arrived"] and not runs(task.host, task.document):
            raise Conflict("The server has arrived at the target; it cannot be taken back. Run the migration again "
                           "to settle it, or migrate it back.")
        talk.ask("drop")


def runs(host: LocalHost, document: Document) -> bool:
    """Whether the guest of a migration's server is active here."""
    domain = host.hypervisor.domain(document.want["server"])
    return domain is not None and domain.state in LIVE


def _start(host: LocalHost, server: Document) -> None:
    try:
        host.hypervisor.start(server.id)
    except MagnetarError as error:
        log.warning("server %s stays here and cannot be started: %s", server.name, error, extra={"server": server.id})
    server.state.pop("unfinished", None)
    host.documents.write(server)


def give_back(task: Task) -> None:
    """The server is an ordinary one again. It may have been stopped for the way, or stand still."""
    host, document = task.host, task.document
    with contextlib.suppress(MagnetarError):
        host.hypervisor.stray(document.want["server"])
    with host.locks.hold("server", document.want["server"]):
        server = host.documents.get("server", document.want["server"])
        if server is not None:
            domain = host.hypervisor.domain(server.id)
            if domain and domain.state == PAUSED and server.want["power"] == RUNNING:
                host.hypervisor.resume(server.id)
            starts = domain and domain.state == OFF and server.want["power"] == RUNNING
            server.state.pop(MARK, None)
            if starts:  # who starts after a crash would take it for a guest that powered itself off
                server.state["unfinished"] = True
                document.state.pop(RUN, None)
                task.keep()
            host.documents.write(server)
            volumes.take_back(host, server.id)
            if starts:
                _start(host, server)
    for name in ("claimed", "tried", "decided", "unfinished"):
        document.state.pop(name, None)
    document.want["phase"] = "prepared"
    document.state["failed"] = True
    task.keep()
