# SPDX-License-Identifier: GPL-3.0-or-later
"""Power sync: documents follow the power changes that guests and operators make to domains.

After a start of the agent, libvirt or the host it finishes operations that a crash interrupted, and starts the servers
that ran. A guest that powers itself off stays off, and its document records that and the reason (Nova's SHUTOFF). A
guest whose QEMU died is crashed; it is started again only if its document or a setting says so. After a reboot of the
host, servers that ran are started, unless their document says otherwise. Servers of a cloud first wait for the cloud's
permission (``HELD``): the cloud may have evacuated them. An interrupted creation that takes over disks also waits for
the cloud.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.migrations import migration_of_server
from magnetar_agent.reconcile import reconcile
from magnetar_agent.reconcile.documents import CLOUD, HELD, REPLACEMENT, Document, write_atomically
from magnetar_agent.servers import quiesce, verbs
from magnetar_agent.servers.adoption.adopted import is_adopted
from magnetar_agent.servers.disks import own_disks, snapshot
from magnetar_agent.servers.disks.disk_record import GIVEN
from magnetar_agent.servers.hardware import tpm
from magnetar_agent.volumes import remote
from magnetar_core.ensure import Permissions
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.kinds import BY_NOUN, Migration, Network, Server
from magnetar_core.operations import RUNNING as IN_HAND
from magnetar_core.operations import Operation, utc_timestamp
from magnetar_core.power import CRASHED, LIVE, OFF
from magnetar_core.server_plan import volume_block_devices

from . import hypervisor as hv
from .boot import boot_id

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers
    from magnetar_core.fields import Kind

log = logging.getLogger(__name__)

#: A server that crashes more than CRASHES times within CRASH_SPAN seconds stays crashed.
CRASHES, CRASH_SPAN = 3, 300.0
REASONS = {
    "guest": "The guest shut itself down.",
    "outside": "It was stopped from outside Magnetar.",
    "failed": "Its QEMU process died.",
    "panic": "The guest crashed.",
    "io-error": "It is paused: a disk had an input/output error; look at the host's storage.",
    "rebooted": "The host was rebooted.",
}
CRASHED_BY = ("failed", "panic")
#: Kinds that have content; except for images, the note ``made`` says that the content is complete.
CONTENT = ("image", "volume", "volume_snapshot")
#: Seconds between two checks whether the server of a postponed event is unlocked.
AGAIN = 0.2
#: Seconds between two checks for a cancel while an operation waits for another one.
POLL_INTERVAL = 0.5


class PowerSync:
    """The thread that copies power states of domains into the documents (desired states) of servers when libvirt
    reports events."""

    def __init__(self, drivers: Drivers) -> None:
        self.host, self.drivers = drivers.host, drivers
        self._todo: queue.SimpleQueue[hv.DomainEvent | str | None] = queue.SimpleQueue()
        self._crashes: dict[str, deque[float]] = {}
        #: Events of servers that an operation is changing, postponed until it has ended: it may wait long for its
        #: guest.
        self._later: list[hv.DomainEvent] = []
        #: Number of tasks that were added and have not been handled. A queue may be empty before its reader has its
        #: task (since Python 3.13).
        self._open, self._counting = 0, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)
        #: Set after the first round of ``restore_power_states``.
        self.settled = threading.Event()

    def hold(self) -> None:
        """After a reboot of the host, mark as held the servers that ran before and belong to a control plane: they must
        not start until the control plane permits it, because the control plane may have evacuated them to another host.
        Must be called before any server is started."""
        for document in self.host.documents.list("server") if self._rebooted() else ():
            if CLOUD in document.state and not document.deleting and (
                    document.state.get("unfinished") or _resumes(document)):
                document.state[HELD] = True
                document.state.pop(remote.AWAITED, None)
                self.host.documents.write(document)

    def start(self) -> None:
        """Start the thread. Its first task is ``restore_power_states``."""
        self.host.hypervisor.on_event(self._event)
        self.host.hypervisor.on_connect(lambda: self._add("connected"))
        self._thread.start()
        self._add("connected")

    def close(self) -> None:
        """Stop the thread."""
        self._todo.put(None)
        if self._thread.is_alive():
            self._thread.join(5)

    def _event(self, event: hv.DomainEvent) -> None:
        if event.what != "agent":  # such events can come thousands of times a second from guests
            self.host.changes.tell(event.uuid)
        if event.what in ("stopped", "crashed", "suspended", "resumed", "started"):
            self._add(event)

    def _add(self, todo: hv.DomainEvent | str) -> None:
        """Add a task of the thread: a domain event, or ``connected``."""
        with self._counting:
            self._open += 1
        self._todo.put(todo)

    def _run(self) -> None:
        while (todo := self._next()) is not None:
            self._handle(todo)

    def _handle(self, todo: hv.DomainEvent | str) -> None:
        try:
            if isinstance(todo, hv.DomainEvent):
                self._follow_if_free(todo)
            else:
                self.restore_power_states()
        except MagnetarError as error:
            log.warning("following %s: %s", todo, error)
        except Exception:
            log.exception("following %s", todo)
        with self._counting:
            self._open -= 1

    def _next(self) -> hv.DomainEvent | str | None:
        """Wait for the next task of the thread and return it: a domain event, ``connected`` after a new connection to
        libvirt, or ``None`` to stop the thread. When no task has come for ``AGAIN`` seconds, events that were postponed
        because their server was busy become tasks again."""
        while True:
            try:
                return self._todo.get(timeout=AGAIN if self._later else None)
            except queue.Empty:
                for event in self._later:
                    self._add(event)
                self._later = []  # only now, since `idle` looks at both

    def idle(self) -> bool:
        """Return whether all events have been handled."""
        return not self._open and not self._later

    # One domain ---------------------------------------------------------------------------------------------------
    def follow(self, id: str, reason: str) -> None:
        """Copy the power state of the domain of server *id*, and the *reason* of a stop, into the server's document.
        Does nothing if the server has an unfinished change or migrates. Waits for the server's lock."""
        if self.host.documents.get("server", id) is None:
            return
        with self.host.locks.hold("server", id):
            self._follow(id, reason)

    def _follow_if_free(self, event: hv.DomainEvent) -> None:
        """Handle *event* as ``follow`` does, but without waiting: if an operation holds the server's lock, postpone the
        event so that events of other servers are not delayed."""
        if self.host.documents.get("server", event.uuid) is None:
            return
        with self.host.locks.hold_if_free("server", event.uuid) as is_free:
            if is_free:
                self._follow(event.uuid, event.reason)
            elif event not in self._later:
                self._later.append(event)

    def _follow(self, id: str, reason: str) -> None:
        document = self.host.documents.get("server", id)
        domain = self.host.hypervisor.domain(id)
        if document is None or domain is None or not domain.owned or document.deleting:
            return
        if document.state.get("unfinished") or migration_of_server(self.host, document):
            return
        if document.state.get(HELD) and domain.state not in LIVE:
            return
        if domain.reason != "unknown":
            reason = domain.reason  # the current reason; the event may be an old one
        crashed = domain.state == CRASHED or (domain.state == OFF and reason in CRASHED_BY)
        if domain.state == document.want["power"] and not crashed:
            self._forget_reason(document, domain, reason)
            return
        if crashed and self._restart(document, reason):
            return
        self._write(document, domain.state, reason, crashed)

    def _forget_reason(self, document: Document, domain: hv.Domain, reason: str) -> None:
        """Remove the recorded reason of the last stop from the document of a server that runs again. *reason*: the
        cause of the domain's current state; with ``io-error`` the guest is paused, so nothing is removed."""
        if domain.state in LIVE and reason != "io-error" and (
                document.state.pop("crashed", None) or document.state.pop("reason", None)):
            document.state.pop("reason", None)
            self.host.documents.write(document)

    def _write(self, document: Document, state: str, reason: str, crashed: bool) -> None:
        document.want["power"] = OFF if crashed or state == CRASHED else state
        document.state["reason"] = REASONS.get(reason, "") + ("" if reason not in REASONS else f" ({utc_timestamp()})")
        document.state["crashed"] = crashed
        if state in LIVE and reason not in REASONS:
            document.state.pop("reason")
        document.updated_at = utc_timestamp()
        self.host.documents.write(document)
        log.info("server %s is %s: %s", document.name, "crashed" if crashed else state, reason,
                 extra={"server": document.id})

    def _restart(self, document: Document, reason: str) -> bool:
        """Start a crashed server again, if the server or the settings have ``restart_on_crash`` and it has not crashed
        too often recently. *reason*: of the crash, for the log. Return whether it was started."""
        if not (document.want["restart_on_crash"] or self.host.settings.restart_on_crash):
            return False
        if tpm.is_away(document.want):
            log.warning("server %s crashed and stays off: its cloud has the secret of its TPM", document.name,
                        extra={"server": document.id})
            return False
        long_ago = time.monotonic() - CRASH_SPAN
        self._crashes = {id: times for id, times in self._crashes.items() if times[-1] > long_ago}
        times = self._crashes.setdefault(document.id, deque(maxlen=CRASHES))
        if len(times) == CRASHES and time.monotonic() - times[0] < CRASH_SPAN:
            log.warning("server %s crashed %d times within %d s and stays off", document.name, CRASHES + 1, CRASH_SPAN,
                        extra={"server": document.id})
            return False
        times.append(time.monotonic())
        own_disks.check_disk_ownership(self.host, document)
        self.host.hypervisor.destroy(document.id)
        if not is_adopted(document):
            verbs.prepare_for_start(self.host, document, partial(self.host.documents.write, document))
        tpm.start_guest(self.host, document)
        log.warning("server %s crashed (%s) and was started again", document.name, reason,
                    extra={"server": document.id})
        return True

    # The whole host -----------------------------------------------------------------------------------------------
    def restore_power_states(self) -> None:
        """Finish the operations that a stop of the agent or the host interrupted. After a reboot of the host, start
        servers again; otherwise copy the power states of domains into the documents. Called after each start of the
        agent and each new connection to libvirt."""
        rebooted = self._rebooted()
        quiesce.thaw_left(self.host)
        later = self._finish()
        if rebooted:
            for network in self.host.documents.list("network"):
                self._again(Network, network, {})
        for document in self.host.documents.list("server"):
            if any(waiting.id == document.id for waiting in later):
                continue  # its power state is set when the rest is finished
            if rebooted:
                self._after_reboot(document)
            else:
                self.follow(document.id, "unknown")
        for driver in self.drivers:
            driver.sweep(self.host)
        self._remember_boot()
        self._begin(later)
        self.settled.set()

    def _finish(self) -> list[Document]:
        """Finish interrupted operations: first clean up after interrupted creations of images from servers, then finish
        deletions, then creations and changes, except those that ``_awaits_cloud``. Return the documents whose
        operations may take hours: the caller finishes these in the background."""
        for document in self.host.documents.list("server"):
            if document.state.get("imaging"):
                self._clear(document.id)
        for driver in reversed(list(self.drivers)):
            for document in self.host.documents.list(driver.kind.noun):
                if document.deleting:
                    self._again(driver.kind, document, None)
        later: list[Document] = []
        for driver in self.drivers:
            for document in self.host.documents.list(driver.kind.noun):
                if document.state.get("unfinished") and not _awaits_cloud(document):
                    later += self._finish_change(driver.kind, document)
        return later

    def _finish_change(self, kind: type[Kind], document: Document) -> list[Document]:
        """Finish the interrupted change of *document*, a resource of type *kind*. If that may take hours, do nothing
        and return a list with the document; otherwise return an empty list. Migrations are finished in the background.
        """
        if kind is Migration:
            self._in_background(document, [])
        elif _lasts(document):
            return [document]
        else:
            self._again(kind, document, {})
        return []

    def _clear(self, id: str) -> None:
        with self.host.locks.hold("server", id):
            document = self.host.documents.get("server", id)
            if document is None or not document.state.get("imaging"):
                return
            try:
                snapshot.clear_snapshot(self.host, document)
            except MagnetarError as error:
                log.warning("what an image of server %s left cannot be removed now: %s", document.name, error)

    def _begin(self, later: list[Document]) -> None:
        """Start background operations that finish the interrupted changes of the resources in *later*, a list of their
        documents. An operation first waits for the operations of all earlier documents in *later* that its own document
        refers to by uuid. For example, a server waits for its volumes. Documents that still have a running operation of
        this kind are skipped."""
        begun: dict[str, Operation] = {}
        busy = {operation.key for operation in self.host.operations.list()
                if operation.name == "settle" and operation.status == IN_HAND}
        for document in later:
            if document.id not in busy:  # otherwise libvirt was away for a moment, and the operation still runs
                text = json.dumps(document.want)
                needed = [operation for id, operation in begun.items() if id in text]
                begun[document.id] = self._in_background(document, needed)

    def _in_background(self, document: Document, needed: list[Operation]) -> Operation:
        """Finish the interrupted change of *document* in a background operation, after the operations *needed* have
        ended. Return the operation; the API lists it, and it can be cancelled."""
        def finish(operation: Operation) -> None:
            for earlier in needed:  # they began earlier, so they already have threads
                while not earlier.wait(POLL_INTERVAL):
                    operation.raise_if_cancelled()
            self._ensure(BY_NOUN[document.kind], document, {}, operation)

        return self.host.operations.start("settle", finish, kind=document.kind, key=document.id, caller="agent")

    def _after_reboot(self, document: Document) -> None:
        desired_power = document.want["power"]
        if migration_of_server(self.host, document):
            return  # its migration decides where it starts
        if _awaits_cloud(document):
            log.info("server %s starts when its cloud says so", document.name, extra={"server": document.id})
            return
        if _resumes(document):
            self._again(Server, document, {"power": desired_power})
        elif is_adopted(document):  # libvirt may have started it
            self.follow(document.id, "rebooted")
        elif desired_power in LIVE:
            with self.host.locks.hold("server", document.id):
                now_wanted = self.host.documents.get("server", document.id)
                if now_wanted is not None and now_wanted.want["power"] == desired_power and not now_wanted.deleting:
                    self._write(now_wanted, OFF, "rebooted", False)

    def _again(self, kind: type[Kind], document: Document, want: dict[str, object] | None) -> None:
        Operation("settle", document.kind, document.id, caller="agent").run(
            lambda operation: self._ensure(kind, document, want, operation))

    def _ensure(self, kind: type[Kind], document: Document, want: dict[str, object] | None,
                operation: Operation) -> None:
        """Apply the changed fields *want* to the resource of *document*; ``None`` removes the resource. If the resource
        was removed meanwhile, do nothing; other errors are logged and raised."""
        try:
            if want is None:
                reconcile.ensure_resource(self.drivers, kind, document.id, None, Permissions.defaults(), False,
                                          operation)
            else:
                reconcile.revise_resource(self.drivers, kind, document.id, lambda _document: want, False, operation)
        except NotFound as error:
            if self.host.documents.get(kind.noun, document.id) is not None:
                log.warning("%s %s cannot be put right now: %s", document.kind, document.name, error)
                raise
            log.info("%s %s was removed meanwhile", document.kind, document.name)
        except MagnetarError as error:
            log.warning("%s %s cannot be put right now: %s", document.kind, document.name, error)
            raise

    # Has the host been rebooted? ----------------------------------------------------------------------------------
    def _rebooted(self) -> bool:
        try:
            return self._file().read_text().strip() != boot_id()
        except OSError:
            return False

    def _remember_boot(self) -> None:
        try:
            write_atomically(self._file(), boot_id().encode())
        except OSError as error:
            log.warning("the boot cannot be noted, so the next start of the agent takes it for a new one: %s", error)

    def _file(self) -> Path:
        return Path(self.host.settings.state_dir) / "boot_id"


def _resumes(document: Document) -> bool:
    """Return whether the server starts automatically after a reboot of the host: it ran before, has
    ``resume_on_host_boot``, and its TPM can be unlocked without the server's user."""
    return document.want["power"] in LIVE and document.want["resume_on_host_boot"] and not tpm.is_users(document.want)


def _awaits_cloud(document: Document) -> bool:
    """Return whether the document is a server that only its cloud may start or finish: it is held after a reboot of the
    host, or its creation takes over the disks of another host. That host may have returned, and run the guest, while
    this agent was down; the cloud asks for the server again, or deletes it."""
    return bool(document.state.get(HELD) or (document.state.get("making") and document.want.get(GIVEN)))


def _lasts(document: Document) -> bool:
    """Return whether finishing the change of *document* may take hours, because content is downloaded or copied, a
    volume is replaced, or a server is created."""
    state, replaced = document.state, REPLACEMENT in document.state
    if document.kind == "volume_attachment":
        return bool(document.want.get("replaces"))
    if document.kind == "server":
        return replaced or bool({"making", "rebuild"} & set(state)) or (
            bool(volume_block_devices(document.want)) and not state.get("volumes_made"))
    return document.kind in CONTENT and (replaced or not state.get("made"))
