# SPDX-License-Identifier: GPL-3.0-or-later
"""The source's half: mark the server, send it, and remove it once the target has settled. Every verb may be done twice.

A marked server is left alone by everything else (``refuse_while_it_moves``), also after a restart of the agent, until
it is known where it is.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent import hypervisor as hv
from magnetar_agent.documents import Document, now
from magnetar_agent.link import Remote
from magnetar_agent.link.talk import Talk
from magnetar_agent.migrations import AGENT, DISKS, LIBVIRT, MARK, NATIVE, QEMU, refuse_while_it_moves, volumes
from magnetar_agent.migrations.wire import send
from magnetar_agent.servers import MIB, fixed, folder, verbs
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, InvalidField, MagnetarError, Unreachable

if TYPE_CHECKING:
    from magnetar_agent.agent import Agent
    from magnetar_agent.drivers import Fields, Task

log = logging.getLogger(__name__)

ACTIVE = (hv.RUNNING, hv.PAUSED)
#: Disks that a running guest writes to: libvirt copies them. Everything else in the folder is sent as it is.
WRITTEN = ("disk", "disk.ephemeral", "disk.swap")
LOG = "console.log"


# Before -----------------------------------------------------------------------------------------------------------
def check(agent: Agent, want: Fields, id: str | None) -> Document:
    """The server's document for migration *id*. Raises ``InvalidField`` or ``Conflict`` for what cannot go, before
    anything is done."""
    found = agent.documents.get("server", want["server"])
    if found is None or found.deleting:
        raise InvalidField("server", f"must be a server of this host, and {want['server']} is none")
    refuse_while_it_moves(found, id)
    if found.state.get("unfinished"):
        raise Conflict(f"Server {found.name!r} is not finished: its last change failed. Repeat that change first.")
    if not want.get("address"):
        raise InvalidField("address", "is required on the source: host:port of the target's agent")
    there = remote("", want)
    volumes.check(agent, found, want)
    domain = agent.hypervisor.domain(found.id)
    power = domain.state if domain else hv.OFF
    if power == hv.SUSPENDED:
        raise Conflict(f"Server {found.name!r} is suspended, and its saved memory cannot go to another host. Resume "
                       "or stop it first.")
    if want["type"] == "live" and power not in ACTIVE:
        raise Conflict(f"Server {found.name!r} is {power}; only a running or paused one can go live. Ask for type cold "
                       "or auto.")
    if want["type"] == "live" and found.want.get("rescue"):
        raise Conflict(f"Server {found.name!r} is rescued, and only a server as it is meant to be goes live. Unrescue "
                       "it first, or ask for type cold.")
    agent.links.greet(there)
    return found


def manifest(agent: Agent, server: Document) -> Fields:
    """What the target must know to say yes or no; no secrets in it."""
    domain, want = agent.hypervisor.domain(server.id), server.want
    place = folder(agent, server.id)
    power = domain.state if domain else hv.OFF
    disks = []
    for name in WRITTEN:
        seen = agent.hypervisor.disk(place / name)
        if seen:
            disks.append({"name": name, "format": seen.format, "virtual_size": seen.virtual_size,
                          "backed": seen.backing is not None})
    return {
        "server": server.id, "name": server.name, "power": power, "ram": want["flavor"]["ram"],
        "virt_type": want["virt_type"], "machine": want["machine"], "networks": want["networks"], "disks": disks,
        "volumes": volumes.told(agent, server),
        "bytes": sum(path.stat().st_blocks * 512 for path in place.iterdir() if path.is_file()),
        "cpu": agent.hypervisor.cpu(server.id) if power in ACTIVE else None, "host": agent.host_name,
        "host_id": agent.hypervisor.host()["id"],
    }


def remote(id: str, want: Fields) -> Remote:
    """Where the target is."""
    host, _colon, port = (want.get("address") or "").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidField("address", "must be host:port", want.get("address"))
    return Remote(id, want["peer"], host.strip("[]"), int(port))


def claim(task: Task) -> None:
    """Mark the server, so that nothing else changes it."""
    agent, document = task.agent, task.document
    with agent.locks.hold("server", document.want["server"]):
        server = agent.documents.get("server", document.want["server"])
        if server is None:
            raise Conflict(f"The server {document.want['server']} was deleted. There is nothing to migrate.")
        refuse_while_it_moves(server, document.id)
        if not server.state.get(MARK):
            server.state[MARK] = document.id
            agent.documents.write(server)
    document.state["claimed"] = True
    task.keep()


# The way ----------------------------------------------------------------------------------------------------------
def move(task: Task) -> None:
    """Send the server; after this it is the target's. A failure that leaves the guest here gives it back."""
    document = task.document
    document.state["tried"] = True
    document.state.pop("failed", None)
    task.keep()
    try:
        _Move(task).run()
    except MagnetarError as error:
        # Where the guest is for sure here it is given back at once; else a repetition finds out.
        lost = isinstance(error, HypervisorDown) or document.state.get("decided")
        if not lost and (not isinstance(error, Unreachable) or _here(task)):
            _give_back(task)
        raise
    finally:
        task.agent.progress.pop(document.id, None)
        task.agent.links.cut(document.id)
    document.state["moved"] = True
    task.keep()


def _here(task: Task) -> bool:
    """Whether the server is here for sure: its guest is active, or it is off and the target was never told to take
    it. While the guest is active here, the target's copy never runs."""
    document = task.document
    if _runs(task.agent, document):
        return True
    return document.want["type"] == "cold" and not document.state.get("decided")


@dataclass
class _Counted:
    """Bytes that are on their way."""

    total: int
    done: int = 0


class _Move:
    """One attempt."""

    def __init__(self, task: Task) -> None:
        self.task, self.agent, self.document = task, task.agent, task.document
        server = task.agent.documents.get("server", task.document.want["server"])
        if server is None:
            raise Conflict(f"The server {task.document.want['server']} is gone from this host.")
        self.server = server
        self.place = folder(task.agent, server.id)
        self.remote = remote(task.document.id, task.document.want)
        self.live = task.document.want["type"] == "live"
        self.began = time.monotonic()
        self.arrived = False

    def run(self) -> None:
        """Find out what an earlier attempt came to, then do what is left."""
        with Talk(self.agent.links.call(self.remote, AGENT)) as talk:
            arrived = talk.ask("look")["arrived"]
            self.agent.hypervisor.stray(self.server.id)
            if self._active() or not arrived:
                self._go(talk)
            if not self.arrived:
                self._arrive(talk)

    def _arrive(self, talk: Talk) -> None:
        """The guest is off here for good: from now on the server is the target's."""
        self.document.state["decided"] = True
        self.task.keep()
        volumes.yield_disks(self.agent, self.server.id)
        talk.ask("arrive")
        self.arrived = True

    def _active(self) -> bool:
        domain = self.agent.hypervisor.domain(self.server.id)
        return domain is not None and domain.state in ACTIVE

    def _go(self, talk: Talk) -> None:
        if self.live and not self._active():
            raise Conflict(f"The guest of server {self.server.name!r} stopped meanwhile, so it cannot go live. Repeat "
                           "the call with type auto or cold.")
        if not self.live and self._active():
            self._stop()
        lent = volumes.lend(self.agent, self.server, self.remote.peer, self.live)
        sent = {k: v for k, v in self.server.state.items() if k != MARK}
        plan = talk.ask("begin", document={"id": self.server.id, "name": self.server.name, "want": self.server.want,
                                           "state": sent, "created_at": self.server.created_at},
                        live=self.live, disks=self.document.want["manifest"]["disks"], volumes=lent,
                        native_tls=self.live and self.agent.settings.native_tls,
                        files=[path.name for path in self._files()])
        self.document.state[NATIVE] = bool(plan.get(NATIVE))
        self._wake()
        self._send(talk, plan)
        written = self._log(talk, 0)
        talk.ask("ready")
        if self.live:
            self._migrate(talk, plan, written)

    def _stop(self) -> None:
        """Shut the guest down; that it ran stays in its document, so it will run there."""
        power = self.server.want["power"]
        self._say("stop", 0, 1)
        domain = self.agent.hypervisor.domain(self.server.id)
        if domain and domain.state == hv.PAUSED:
            self.agent.hypervisor.resume(self.server.id)
        verbs.stop(_on(self.task, self.server))
        self.server.want["power"] = power

    def _wake(self) -> None:
        """After an earlier attempt whose end libvirt did not see, the guest may still stand still. By now the target
        has let go of its copy, so it may run here."""
        domain = self.agent.hypervisor.domain(self.server.id)
        if self.live and domain and domain.state == hv.PAUSED and self.server.want["power"] == hv.RUNNING:
            self.agent.hypervisor.resume(self.server.id)

    def _files(self) -> list[Path]:
        """What is sent as files, small ones first."""
        left = {LOG, f"{LOG}.0", *(WRITTEN if self.live else ())}
        found = [path for path in self.place.iterdir()
                 if path.is_file() and not path.is_symlink() and path.name not in left
                 and path.suffix not in (".part", ".at", ".new")]
        return sorted(found, key=lambda path: (path.stat().st_blocks, path.name))

    def _send(self, talk: Talk, plan: Fields) -> None:
        files = self._files()
        counted = _Counted(sum(path.stat().st_blocks * 512 for path in files))
        rate = self.document.want["bandwidth"]
        for path in files:
            offset = plan["have"].get(path.name, 0)
            if offset is None:
                continue

            def sent(count: int) -> None:
                counted.done += count
                self._say("files", min(counted.done, counted.total), counted.total)

            talk.say({"op": "file", "name": path.name, "offset": offset, "mode": path.stat().st_mode & 0o777})
            send(talk, path, offset, sent, rate * MIB if rate else None)
            talk.answer()

    def _log(self, talk: Talk, offset: int) -> int:
        """The console's log from *offset* on; it goes before the guest runs there, so that all is in its order."""
        path = self.place / LOG
        if not path.exists() or path.stat().st_size < offset:
            return offset
        talk.say({"op": "file", "name": LOG, "offset": offset, "append": offset > 0, "mode": 0o600})
        size = send(talk, path, offset, lambda _count: None)
        talk.answer()
        return size

    def _migrate(self, talk: Talk, plan: Fields, written: int) -> None:
        want, links, native = self.document.want, self.agent.links, self.document.state[NATIVE]
        run = Path(plan["run"])
        run.mkdir(mode=0o750, parents=True, exist_ok=True)
        self.agent.hypervisor.permit([run])
        try:
            group = run.stat().st_gid
            for door in (LIBVIRT,) if native else (LIBVIRT, QEMU, DISKS):
                links.forward(self.remote, door, run / door, group)
            self.agent.hypervisor.migrate(self.server.id, hv.Passage(
                libvirt=run / LIBVIRT, qemu=run / QEMU, disks=run / DISKS, persistent=plan["xml"],
                folder=(self.place, Path(plan["folder"])),
                nics={mac: (plug[0], plug[1]) for mac, plug in plan["nics"].items()},
                bandwidth=want["bandwidth"], max_downtime=want["max_downtime"], auto_converge=want["auto_converge"],
                time_limit=want["time_limit"], on_time_limit=want["on_time_limit"],
                native=(self.remote.host, self.remote.peer) if native else None), self._going,
                lambda: self._gone(talk, written))
        except HypervisorError as error:
            # libvirt's error does not tell where the guest is; the guest does.
            if not self._active() and self._gone(talk, written):
                return
            if native:
                raise HypervisorError(
                    f"{error.message} The setting native_tls has both QEMUs speak to each other without the agents: "
                    "look whether their certificates are good and believe each other (virt-pki-validate, and "
                    f"migrate_tls_x509_cert_dir in qemu.conf), bear the name {self.remote.peer!r}, and whether "
                    f"libvirt's migration ports are open at {self.remote.host}; or set native_tls to false on one of "
                    "the hosts.") from error
            raise
        finally:
            links.close_forwards(self.document.id)
            shutil.rmtree(run, ignore_errors=True)

    def _gone(self, talk: Talk, written: int) -> bool:
        """The guest has ended here. If that is so because all of it is there, it goes on there at once."""
        if not talk.ask("look")["arrived"]:
            return False
        self._log(talk, written)
        self._arrive(talk)
        return True

    def _going(self, facts: Any) -> None:
        speed = facts["done"] / max(0.001, time.monotonic() - self.began)
        self._say("memory and disks", facts["done"], facts["total"], remaining=facts["remaining"],
                  dirty_rate=facts["dirty_rate"], seconds_left=round(facts["remaining"] / speed) if speed else None)

    def _say(self, phase: str, done: int, total: int, **more: Any) -> None:
        self.agent.progress[self.document.id] = {"phase": phase, "done": done, "total": total, **more}
        self.task.operation.advance(done, total, phase=phase)


def _on(task: Task, server: Document) -> Task:
    """A task on the server itself; its document is written where the migration's is."""
    return type(task)(task.agent, server, task.operation)


# After ------------------------------------------------------------------------------------------------------------
def leave(task: Task) -> None:
    """Remove what is left of a server that is the target's."""
    agent, id = task.agent, task.document.want["server"]
    with agent.locks.hold("server", id):
        server = agent.documents.get("server", id)
        if server is not None:
            agent.hypervisor.destroy(id)
            agent.hypervisor.undefine(id)
            fixed.release(_on(task, server))
            verbs.erase(_on(task, server))
            agent.documents.remove(server)
    volumes.let_go(agent, id, task.document.want["peer"])
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
            if not _here(task):
                raise
    _give_back(task)


def _drop(task: Task) -> None:
    """Tell the target to forget what has come."""
    with Talk(task.agent.links.call(remote(task.document.id, task.document.want), AGENT)) as talk:
        if talk.ask("look")["arrived"] and not _runs(task.agent, task.document):
            raise Conflict("The server has arrived at the target; it cannot be taken back. Run the migration again "
                           "to settle it, or migrate it back.")
        talk.ask("drop")


def _runs(agent: Agent, document: Document) -> bool:
    domain = agent.hypervisor.domain(document.want["server"])
    return domain is not None and domain.state in ACTIVE


def _start(agent: Agent, server: Document) -> None:
    try:
        agent.hypervisor.start(server.id)
    except MagnetarError as error:
        log.warning("server %s stays here and cannot be started: %s", server.name, error, extra={"server": server.id})
    server.state.pop("unfinished", None)
    agent.documents.write(server)


def _give_back(task: Task) -> None:
    """The server is an ordinary one again. It may have been stopped for the way, or stand still."""
    agent, document = task.agent, task.document
    with contextlib.suppress(MagnetarError):
        agent.hypervisor.stray(document.want["server"])
    with agent.locks.hold("server", document.want["server"]):
        server = agent.documents.get("server", document.want["server"])
        if server is not None:
            domain = agent.hypervisor.domain(server.id)
            if domain and domain.state == hv.PAUSED and server.want["power"] == hv.RUNNING:
                agent.hypervisor.resume(server.id)
            starts = domain and domain.state == hv.OFF and server.want["power"] == hv.RUNNING
            server.state.pop(MARK, None)
            if starts:  # who starts after a crash would take it for a guest that powered itself off
                server.state["unfinished"] = True
            agent.documents.write(server)
            volumes.take_back(agent, server.id)
            if starts:
                _start(agent, server)
    for name in ("claimed", "tried", "decided", "unfinished"):
        document.state.pop(name, None)
    document.want["phase"] = "prepared"
    document.state["failed"] = True
    task.keep()
