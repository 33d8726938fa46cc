# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's part of the metadata service: it maps taps to servers, and knows the data of each guest.

One thread adapts devices, nftables table and process to the running domains. It reads the taps of a domain after an
event of the domain, and all taps after a connection to libvirt. Every ``POLL_INTERVAL`` seconds it checks whether the
table was flushed or the process has died. Another thread answers the questions of the process. While no guest runs
there is neither process nor device nor table.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import queue
import secrets
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import guest_data
from magnetar_agent.servers.adoption.adopted import is_adopted
from magnetar_core.errors import HypervisorError, MagnetarError

from . import MOST_TAPS, guest_process, messages, tap_addresses
from .password import store_posted_password
from .steering import SteeredTap, Steering

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import DomainEvent
    from magnetar_agent.host.networks import Tap
    from magnetar_agent.reconcile.documents import Document

    from .guest_process import GuestProcess
    from .messages import Message

log = logging.getLogger(__name__)

#: Seconds between two checks of table and process.
POLL_INTERVAL = 30.0
#: Events that change the taps of a domain.
_CHANGES = ("started", "stopped", "crashed", "resumed", "detached")
#: Tasks: read the taps of a server, or of all; drop cached data of a guest; end.
TAPS, ALL, DATA, END = "taps", "all", "data", "end"
#: Most tasks that are done together.
BATCH_SIZE = 1000
#: Seconds during which tasks gather: the operation that starts a guest ends meanwhile, and no guest asks that early.
GATHER = 0.02
#: Most passwords that wait for their servers' locks.
WAITING = 8


@dataclass
class _MetadataDevice:
    """A veth device that connects the metadata service to guests. *bridge*: the bridge that it is attached to.
    *switched*: it is attached to no bridge, but serves one tap of the Open vSwitch bridge *bridge*. *mac*: the MAC of
    the veth peer in the service's network namespace; empty if the connection failed."""

    bridge: str
    switched: bool = False
    mac: str = ""


class MetadataService:
    """The agent's part of the metadata service. It keeps the devices, nftables tables and process of the service up to
    date, and answers the questions of the process."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        #: The tasks, each with its server.
        self._todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="metadata", daemon=True)
        self._ending = threading.Event()
        self._process: GuestProcess | None = None
        self._seal = ""
        self._steering = Steering.of(host.settings.state_dir)
        #: Veth devices by the number of their bridge in the kernel; taps by their own.
        self._devices: dict[int, _MetadataDevice] = {}
        self._taps: dict[int, Tap] = {}
        self._steered: dict[int, Tap] = {}
        self._numbers: dict[int, int] = {}
        self._leaving = threading.BoundedSemaphore(WAITING)
        #: Why guests are not answered; "": they are.
        self.reason = "" if host.settings.metadata_service else "The setting metadata_service is false."

    def start(self) -> None:
        """Start the thread that follows the events of domains. Do nothing if the setting ``metadata_service`` is false.
        """
        if not self.host.settings.metadata_service:
            return
        self.host.hypervisor.on_event(self._happened)
        self.host.hypervisor.on_connect(lambda: self._todo.put((ALL, "")))
        self.host.documents.listen(self._written)
        self._thread.start()
        self._todo.put((ALL, ""))

    def close(self) -> None:
        """Stop the thread and the process, and remove all devices and tables of the service."""
        if self._thread.is_alive():
            self._ending.set()
            self._todo.put((END, ""))
            self._thread.join(20)

    def status(self) -> dict[str, Any]:
        """Return the host's field ``metadata_service``: ``bridges``, the names of the bridges that have the service,
        and ``reason``, why it does not work ("" if it does)."""
        return {"bridges": sorted({device.bridge for device in tuple(self._devices.values()) if device.mac}),
                "reason": self.reason}

    # Calls from other threads ---------------------------------------------------------------------------------------
    def _happened(self, event: DomainEvent) -> None:
        if event.what in _CHANGES and self.host.documents.peek_by_id("server", event.uuid):
            self._todo.put((TAPS, event.uuid))

    def _written(self, document: Document, removed: bool) -> None:
        if document.kind == "server":  # also the first write: a guest may have arrived running before its document
            known_macs = {tap.mac for tap in tuple(self._taps.values()) if tap.server == document.id}
            plugged = not removed and known_macs == {nic["mac"] for nic in document.want["networks"]
                                                     if not nic.get("physical_network")}
            # The guest of a server that is being made does not run yet, or libvirt reports its start.
            same = plugged or (not removed and document.state.get("making"))
            self._todo.put((DATA if same else TAPS, document.id))

    # The thread -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with contextlib.suppress(MagnetarError):
            if self._steering.loaded():  # an agent was killed; its devices went with its process
                self._steering.unload()
        while True:
            todo = set[tuple[str, str]]()
            with contextlib.suppress(queue.Empty):
                todo.add(self._todo.get(timeout=POLL_INTERVAL))
                self._ending.wait(GATHER)
                while len(todo) < BATCH_SIZE:
                    todo.add(self._todo.get_nowait())
            if (END, "") in todo:
                break
            self._keep({(ALL, "")} if self.reason else todo)
        self._end()

    def _keep(self, todo: set[tuple[str, str]]) -> None:
        """Update devices, tables and process for *todo*, pairs of a reason and a server uuid: ``TAPS`` (the server's
        tap devices may have changed), ``DATA`` (only its metadata), or ``ALL`` with an empty uuid (anything). If *todo*
        is empty, check that everything still works. Errors are logged and stored in ``reason``."""
        try:
            if not todo or any(task_kind != DATA for task_kind, _id in todo):
                self._see(todo)
                self._steer(again=not todo)
            reason = ""
            self._forget({id for _word, id in todo} - {""})
        except MagnetarError as error:
            reason = error.message
        except Exception as error:  # the thread must live: guests depend on it
            log.exception("the metadata service")
            reason = str(error)
        if reason and reason != self.reason:
            log.warning("guests are not answered by the metadata service now: %s", reason)
        self.reason = reason
        if self._process is not None and (reason or self._process.gone()):
            self._end()  # and start again with the next look
            self.reason = self.reason or "The process that speaks with guests has ended; it is started again."

    def _forget(self, changed: set[str]) -> None:
        """Make the process drop its cached data of the servers *changed* (uuids)."""
        if changed and self._process is not None:
            self._process.tell("forget", servers=sorted(changed))

    def _see(self, todo: set[tuple[str, str]]) -> None:
        """Read from libvirt into ``_taps`` the tap devices of the servers that *todo* (see ``_keep``) lists with
        ``TAPS``; with ``ALL``, of all servers."""
        if (ALL, "") in todo:
            taps, unchanged_taps = self.host.hypervisor.taps(), []
        else:
            changed = {id for task_kind, id in todo if task_kind == TAPS}
            taps = [tap for id in changed for tap in self.host.hypervisor.taps(id)]
            unchanged_taps = [tap for tap in self._taps.values() if tap.server not in changed]
        self._taps = {tap.index: tap for tap in (*unchanged_taps, *taps)
                      if (server := self.host.documents.peek_by_id("server", tap.server)) and not is_adopted(server)}

    def _steer(self, again: bool) -> None:
        """Update tables, devices and process for the current tap devices. *again*: also retry bridges that failed
        before."""
        now, taps = self._taps, list(self._taps.values())
        if not taps:
            if self._process is not None:
                self._end()
            return
        if self._process is None:
            self._begin()
        assert self._process is not None
        opened = self._open(taps, again)
        if opened or now != self._steered or not self._steering.loaded():
            self._numbers = {index: self._numbers[index] for index in now if index in self._numbers}
            for index in now:
                if index not in self._numbers:
                    self._numbers[index] = self._number(index)
            steered = [tap for tap in taps if self._devices[tap.bridge_index].mac]
            self._process.tell("know", guests={
                address: tap.server for tap in steered for address in tap_addresses(self._numbers[tap.index])})
            loaded = self._steering.load([SteeredTap(
                tap.index, self._numbers[tap.index], self._devices[tap.bridge_index].mac,
                tap.device if tap.switched else "") for tap in steered], self._seal)
            self._steered = now if loaded else {}
            if not loaded:
                self._todo.put((ALL, ""))

    def _number(self, index: int) -> int:
        """Return a free number for the tap device with the interface index *index*; ``tap_addresses`` makes addresses
        of it."""
        taken = set(self._numbers.values())
        return next(number for number in ((index + at) % MOST_TAPS or 1 for at in range(len(taken) + 2))
                    if number not in taken)

    def _open(self, taps: Iterable[Tap], again: bool) -> bool:
        """Connect the service to each bridge of *taps*, and disconnect it from all other bridges. *again*: also retry
        bridges that failed before. Return whether any connection was added or removed."""
        assert self._process is not None
        bridges = {tap.bridge_index: _MetadataDevice(tap.bridge, tap.switched) for tap in taps}
        obsolete = [index for index in self._devices if index not in bridges]
        for index in obsolete:
            self._devices.pop(index)
            self._process.tell("close", name=str(index))
            self._steering.detach(index)
        new = [index for index in bridges if index not in self._devices or (again and not self._devices[index].mac)]
        for index in new:
            self._devices[index] = bridges[index]
            try:
                self._join(self._process, index, self._devices[index])
            except HypervisorError as error:  # such as a bridge of Open vSwitch; the others are served
                log.warning("guests on the bridge %s are not answered by the metadata service: %s",
                            bridges[index].bridge, error)
        return bool(obsolete or new)

    def _join(self, process: GuestProcess, index: int, device: _MetadataDevice) -> None:
        _answer, namespace = process.tell("make", name=str(index))
        if namespace is None:
            raise HypervisorError("The process of the metadata service has made no namespace.")
        try:
            self._steering.attach(None if device.switched else device.bridge, index, namespace)
        finally:
            os.close(namespace)
        device.mac = str(process.tell("listen", name=str(index), seal=self._seal)[0]["mac"])
        log.info("guests on the bridge %s are answered at http://169.254.169.254", device.bridge,
                 extra={"bridge": device.bridge})

    def _begin(self) -> None:
        self._seal = "02:" + ":".join(f"{byte:02x}" for byte in secrets.token_bytes(5))
        self._process = process = guest_process.start_guest_process()
        threading.Thread(target=self._answer, args=(process,), name="metadata-answers", daemon=True).start()

    def _end(self) -> None:
        """End the process, and remove the service's devices and tables from the host."""
        process, self._process = self._process, None
        devices = list(self._devices)
        self._devices, self._steered, self._numbers = {}, {}, {}
        if process is None:
            return
        process.end()
        with contextlib.suppress(MagnetarError):
            for index in devices:
                self._steering.detach(index)
            self._steering.unload()

    # Questions of the process ---------------------------------------------------------------------------------------
    def _answer(self, process: GuestProcess) -> None:
        sending = threading.Lock()

        def send(answer: Message) -> None:
            with sending, contextlib.suppress(OSError):
                messages.send_message(process.questions, answer)

        def keep(question: Message) -> None:
            try:
                status, why = store_posted_password(self.host, str(question["of"]), str(question["password"]))
            except MagnetarError as error:
                log.warning("a guest's password is not kept: %s", error)
                status, why = 503, "Try again later."
            finally:
                self._leaving.release()
            send({"number": question["number"], "status": status, "why": why})

        while True:
            try:
                question, _none = messages.receive_message(process.questions)
            except (EOFError, OSError, ValueError):
                return
            if "about" in question:
                send({"number": question["number"], **self._guest_message(str(question["about"]))})
            elif self._leaving.acquire(blocking=False):
                threading.Thread(target=keep, args=(question,), name="metadata-password", daemon=True).start()
            else:
                send({"number": question["number"], "status": 503, "why": "Try again later."})

    def _guest_message(self, id: str) -> Message:
        """Return the answer to the process's question for the guest of server *id*: ``tree`` (for each path of the
        metadata, the index of its content in ``parts``), ``parts`` (base64), and ``password``, which the guest posted.
        Empty if the server is missing or being deleted, or has no metadata because of an error."""
        document = self.host.documents.get("server", id)
        if document is None or document.deleting:
            return {}
        try:
            tree = guest_data.guest_metadata_tree(self.host, document)
        except MagnetarError as error:
            log.warning("the guest of server %s cannot be told what it is: %s", document.name, error)
            return {}
        parts = {content: at for at, content in enumerate(dict.fromkeys(tree.values()))}
        return {"tree": {path: parts[content] for path, content in tree.items()},
                "parts": [base64.b64encode(part).decode() for part in parts],
                "password": document.state.get("password", "")}
