# SPDX-License-Identifier: GPL-3.0-or-later
"""The password of a create, a rebuild or a rescue, set by the guest agent of a guest that has one: where the hardware
says ``guest_agent``, as an image does with ``hw_qemu_guest_agent=yes``.

``document.state["admin_pass"]`` has it from when the config drive is written until it is set: ``{password, until}``,
the latter in seconds since the epoch. Nobody waits for the guest: libvirt tells when its agent is there, and the one
thread of ``AdminPasswords`` sets it then. Setting it twice, as after a crash, does no harm.

A guest agent that is there and says nothing takes 35 s each time. The server is not locked meanwhile, so that it can be
stopped or removed; when the guest agent has ended, what it did counts only for the note that it was asked for. The same
goes for a password that somebody asks for later (``instead``), while which the note is *aside*: ``{password, until,
aside: true}``. It counts again where the guest agent has not done it. Where nobody knows, as after a crash or a move,
it stays aside until its time is over.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar_agent.migrations import moving, refuse_while_it_moves
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, MagnetarError, NotFound
from magnetar_core.power import MISSING, RUNNING
from magnetar_core.server_plan import hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import DomainEvent
    from magnetar_agent.reconcile.documents import Document, Fields

log = logging.getLogger(__name__)

NOTE = "admin_pass"
#: Kind of the locks of servers whose guest agent is setting a password: the later of two counts. It comes before the
#: server's own: whoever holds that waits for no guest.
SETTING = "password"
#: Word of a note whose password is not to be set now.
ASIDE = "aside"
#: Seconds that a guest has for its agent to come up: it may be installed at the first boot.
KEPT = 3600.0
#: How often an agent that is there is asked in vain, and seconds before the second time; then twice as many each time.
#: It may be starting, and the user may be made by cloud-init after it has started.
TRIES, AGAIN = 5, 10.0
#: Seconds after which a server is looked at whose document was written, or that somebody is changing; and between two
#: looks that its guest asks for, which opens and closes its agent's channel as it likes.
SOON = 1.0
#: Seconds after a failure that is not the guest's, such as a full disk.
LATER = 60.0
#: What no guest agent takes, as none can be typed.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def user(document: Document) -> str:
    """Whose password is meant where nobody says."""
    return str(hardware(document.want).get("admin_user") or "root")


def told(document: Document) -> None:
    """The guest has been told the password by its config drive, or has none: what is wanted forgets it, and a note
    keeps it for the guest agent. The caller writes *document*."""
    password = document.want.get("admin_pass")
    if password is None:
        return
    document.want["admin_pass"] = None
    forget(document)
    if not hardware(document.want).get("guest_agent"):
        return
    if _CONTROL.search(password):
        log.warning("server %s: no guest agent takes its password, which has control characters", document.name,
                    extra={"server": document.id})
        return
    document.state[NOTE] = {"password": password, "until": time.time() + KEPT}


def forget(document: Document) -> bool:
    """Another password counts from now on, or another disk. The caller writes *document*, where this says so."""
    return document.state.pop(NOTE, None) is not None


@contextmanager
def instead(host: LocalHost, id: str, user_name: str | None) -> Iterator[str]:
    """Within, the guest agent of server *id* is asked for another password of a user, by default of the usual one,
    whose name this says. It counts in place of one that is still to be set for that user. The caller holds the
    server's lock ``SETTING``, and no other: this takes the server's own before and after. Raises ``Conflict`` where the
    server does not run or moves, ``NotFound`` where it has gone, also meanwhile."""
    with _locked(host, id) as document:
        refuse_while_it_moves(host, document)
        domain = host.hypervisor.domain(id)
        if (state := domain.state if domain else MISSING) != RUNNING:
            raise Conflict(f"A password can be set in a running server only, and {document.name!r} is {state}.",
                           power_state=state)
        name, usual = user_name or user(document), user(document)
        note = document.state.get(NOTE) if name == usual else None
        if note:
            note[ASIDE] = True
            host.documents.write(document)
    try:
        yield name
    except MagnetarError:
        _decided(host, id, note, set_instead=False)
        raise
    _decided(host, id, note, set_instead=True)


def _decided(host: LocalHost, id: str, note: Fields | None, *, set_instead: bool) -> None:
    """Forget the *note* that was aside where another password is *set instead*, else have it count again. A server that
    moves keeps it aside."""
    with _locked(host, id) as document:
        if note and document.state.get(NOTE) == note and not moving(host, document):
            if set_instead:
                forget(document)
            else:
                del document.state[NOTE][ASIDE]
            host.documents.write(document)


@contextmanager
def _locked(host: LocalHost, id: str) -> Iterator[Document]:
    """Within, the server is locked. Raises ``NotFound``."""
    with host.locks.hold("server", id):
        document = host.documents.get("server", id)
        if document is None or document.deleting:
            raise NotFound(f"server {id} was removed in the meantime.", kind="server", key=id)
        yield document


@dataclass
class _Pending:
    """A server that is looked at when it is *due*, and was *looked* at last then. *until* and *aside* as in its note.
    """

    until: float
    due: float
    aside: bool = False
    tries: int = 0
    looked: float = 0.0

    def turn(self, now: float) -> tuple[bool, int, float]:
        """Its place in the line: of those that are due, guests which let others wait in vain before come last."""
        return (True, 0, self.due) if self.due > now else (False, self.tries, self.due)


class AdminPasswords:
    """A thread that sets passwords when guest agents are there to do it. It sleeps while no server has such a note, and
    until something happens to one that has."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self._pending: dict[str, _Pending] = {}
        self._changed, self._ending = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="admin passwords", daemon=True)

    def start(self) -> None:
        """Begin, with what an earlier process of the agent left."""
        self.host.documents.listen(self._written)
        for document in self.host.documents.peek("server"):
            self._written(document, False)
        self.host.hypervisor.on_event(self._happened)
        self.host.hypervisor.on_connect(self._wake)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(5)

    # What is told ----------------------------------------------------------------------------------------------------
    def _written(self, document: Document, removed: bool) -> None:
        """Listens to documents."""
        if document.kind != "server":
            return
        note = None if removed or document.deleting else document.state.get(NOTE)
        with self._changed:
            if note is None:
                self._pending.pop(document.id, None)
                return
            known = self._pending.get(document.id)
            aside = bool(note.get(ASIDE))
            if known is None or (known.until, known.aside) != (note["until"], aside):
                self._pending[document.id] = _Pending(note["until"], time.time() + SOON, aside)
                self._changed.notify()

    def _happened(self, event: DomainEvent) -> None:
        """Listens to the hypervisor's events."""
        if event.what in ("agent", "resumed", "started"):
            self._wake(event.uuid)

    def _wake(self, id: str | None = None) -> None:
        """Look at the server *id* now; at all without one, since libvirt is back."""
        with self._changed:
            for one in self._pending.values() if id is None else filter(None, [self._pending.get(id)]):
                one.due = min(one.due, one.looked + SOON)
                self._changed.notify()

    # What is done ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (id := self._next()) is not None:
            try:
                self._look(id)
            except MagnetarError as error:
                log.warning("the password of server %s cannot be set now: %s", id, error.message, extra={"server": id})
                self._later(id, LATER)
            except Exception:
                log.exception("the password of server %s cannot be set now", id)

    def _next(self) -> str | None:
        """The next server to look at, when it is due; ``None`` at the end. It comes again when its time is over, or
        earlier where somebody says so."""
        with self._changed:
            while not self._ending:
                now = time.time()
                id = min(self._pending, key=lambda one: self._pending[one].turn(now), default=None)
                found = None if id is None else self._pending[id]
                if found and found.due <= now:
                    found.looked, found.due = now, max(found.until, now + AGAIN)
                    return id
                self._changed.wait(None if found is None else found.due - now)
        return None

    def _later(self, id: str, seconds: float) -> None:
        with self._changed:
            if found := self._pending.get(id):
                found.due = time.time() + seconds

    def _look(self, id: str) -> None:
        """Set the password, if the guest's agent is there and nobody changes the server; drop the note when its time is
        over."""
        with ExitStack() as setting:
            with self.host.locks.hold_if_free("server", id) as free:
                document = self._noted(id) if free else None
                if not free:
                    self._later(id, SOON)
                if document is None:
                    return
                if document.state[NOTE]["until"] <= time.time():
                    self._drop(document, "another one was asked for, and nobody knows whether that is set"
                               if document.state[NOTE].get(ASIDE)
                               else f"its guest agent was not there within {KEPT / 60:.0f} minutes")
                    return
                if moving(self.host, document):
                    self._later(id, AGAIN)
                    return
                if document.state[NOTE].get(ASIDE) or not (
                        self._runs(id) and self.host.hypervisor.agent_connected(id)):
                    return
                if not setting.enter_context(self.host.locks.hold_if_free(SETTING, id)):
                    self._later(id, SOON)
                    return
            try:
                why = self._ask(document)
            except HypervisorDown:
                return  # it is looked at when libvirt is back
        self._settle(id, document.state[NOTE], why)

    def _noted(self, id: str) -> Document | None:
        """The document of a server that has such a note."""
        document = self.host.documents.get("server", id)
        return None if document is None or document.deleting or NOTE not in document.state else document

    def _runs(self, id: str) -> bool:
        domain = self.host.hypervisor.domain(id)
        return domain is not None and domain.state == RUNNING

    def _ask(self, document: Document) -> str:
        """Have the guest agent set the password; why it has not, "" where it has. The server is not locked."""
        try:
            self.host.hypervisor.set_password(document.id, user(document), document.state[NOTE]["password"])
        except HypervisorDown:
            raise
        except Conflict:
            return "did not answer"
        except HypervisorError as error:
            return f"refused ({error.message})"
        return ""

    def _settle(self, id: str, note: Fields, why: str) -> None:
        """The guest agent that was asked for what is in the *note* has done so, or has not, and *why*. Where somebody
        changes the server just now it is asked again."""
        with self.host.locks.hold_if_free("server", id) as free:
            document = self._noted(id) if free else None
            if document is None or document.state[NOTE] != note:
                self._later(id, SOON)
            elif moving(self.host, document):
                self._later(id, AGAIN)
            elif not why:
                forget(document)
                self.host.documents.write(document)
                log.info("server %s: its guest agent has set the password of %s", document.name, user(document),
                         extra={"server": document.id})
            elif self._runs(id):  # else it was stopped meanwhile
                self._in_vain(document, why)

    def _in_vain(self, document: Document, why: str) -> None:
        """Its agent is connected, and has not done it."""
        with self._changed:
            pending = self._pending.get(document.id)
            tries = TRIES if pending is None else pending.tries + 1
            if pending:
                pending.tries = tries
        if tries >= TRIES:
            self._drop(document, f"its guest agent was asked {TRIES} times and {why}")
        else:
            self._later(document.id, AGAIN * 2 ** (tries - 1))

    def _drop(self, document: Document, why: str) -> None:
        forget(document)
        self.host.documents.write(document)
        log.warning("server %s: the password of %s is not set: %s. Its config drive has it, where it has one; else "
                    "set another one (changePassword)", document.name, user(document), why,
                    extra={"server": document.id})
