# SPDX-License-Identifier: GPL-3.0-or-later
"""The password of a create, a rebuild or a rescue, set by the guest agent if the hardware has ``guest_agent``, as from
an image with ``hw_qemu_guest_agent=yes``.

``document.state["admin_pass"]`` holds it from the writing of the config drive until the guest agent has set it:
``{password, until}``, *until* in seconds since the epoch. No operation waits for the guest: libvirt reports when the
guest agent connects, and the one thread of ``AdminPasswords`` then sets the password. Setting it twice, as after a
crash, is safe.

A guest agent that is connected and does not answer takes 35 s each time. The server is not locked meanwhile, so it can
be stopped or removed; when the call ends, its result counts only if the note is still the same. The same holds for a
password that a client asks for later (``override_admin_password``). Meanwhile the note is *aside*: ``{password, until,
aside: true}``. It counts again if the guest agent fails. If the outcome is unknown, as after a crash or a move, it
stays aside until its time is over.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar_agent.migrations import migration_of_server, refuse_while_it_moves
from magnetar_core.errors import Conflict, HypervisorDown, HypervisorError, MagnetarError, NotFound
from magnetar_core.power import MISSING, RUNNING
from magnetar_core.server_plan import server_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import DomainEvent
    from magnetar_agent.reconcile.documents import Document, Fields

log = logging.getLogger(__name__)

NOTE = "admin_pass"
#: Kind of the lock of a server, held while its guest agent sets a password: if two are set, the later one counts. It is
#: taken before the server's own lock, so that no holder of the server's own lock waits for a guest.
SETTING = "password"
#: Key of a note whose password must not be set now.
ASIDE = "aside"
#: Seconds that a guest has until its agent connects: it may be installed at the first boot.
AGENT_TIMEOUT = 3600.0
#: Failed attempts after which the password is dropped, and seconds before the second attempt; the delay then doubles.
#: The agent may be starting, and cloud-init may create the user after the agent has started.
TRIES, AGAIN = 5, 10.0
#: Seconds until the first attempt for a server whose document was written, and until the next one for a locked server;
#: also the least time between two attempts that the guest causes: it can open and close the agent's channel at will.
SOON = 1.0
#: Seconds after a failure outside the guest, such as a full disk.
LATER = 60.0
#: Characters that no guest agent takes, since they cannot be typed.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def admin_user(document: Document) -> str:
    """Return the user in the guest whose password is set when a request names no user."""
    return str(server_hardware(document.want).get("admin_user") or "root")


def note_admin_password(document: Document) -> None:
    """Move the admin password from the requested fields (``want``) to the state field ``admin_pass``, from which the
    guest agent gets it later. Called when the config drive was written, or when there is none. The caller must write
    *document*."""
    password = document.want.get("admin_pass")
    if password is None:
        return
    document.want["admin_pass"] = None
    forget_admin_password(document)
    if not server_hardware(document.want).get("guest_agent"):
        return
    if _CONTROL.search(password):
        log.warning("server %s: no guest agent takes its password, which has control characters", document.name,
                    extra={"server": document.id})
        return
    document.state[NOTE] = {"password": password, "until": time.time() + AGENT_TIMEOUT}


def forget_admin_password(document: Document) -> bool:
    """Remove from the document the password that waits for the guest agent, because another password or a new disk
    replaces it. Return whether such a password was removed; if so, the caller must write *document*."""
    return document.state.pop(NOTE, None) is not None


@contextmanager
def override_admin_password(host: LocalHost, id: str, user_name: str | None) -> Iterator[str]:
    """Yield the name of the user whose password the caller sets during the block with the guest agent of server *id*.
    *user_name*: defaults to ``admin_user``. A password that waits for the guest agent, for the same user, is not set
    meanwhile; it is dropped if the block succeeds.

    The caller must hold the server's lock ``SETTING``, but not the server's main lock, which is taken before and after
    the block. Raises ``Conflict`` if the server is not running or is migrating, ``NotFound`` if it is removed.
    """
    with _locked(host, id) as document:
        refuse_while_it_moves(host, document)
        domain = host.hypervisor.domain(id)
        if (state := domain.state if domain else MISSING) != RUNNING:
            raise Conflict(f"A password can be set in a running server only, and {document.name!r} is {state}.",
                           power_state=state)
        name, usual = user_name or admin_user(document), admin_user(document)
        note = document.state.get(NOTE) if name == usual else None
        if note:
            note[ASIDE] = True
            host.documents.write(document)
    try:
        yield name
    except MagnetarError:
        _resolve_aside_password(host, id, note, set_instead=False)
        raise
    _resolve_aside_password(host, id, note, set_instead=True)


def _resolve_aside_password(host: LocalHost, id: str, note: Fields | None, *, set_instead: bool) -> None:
    """End what ``override_admin_password`` began: if another password was set (*set_instead*), drop *note*, the waiting
    password that was set aside (a value of the state field ``admin_pass``); otherwise let *note* wait for the guest
    agent again. Nothing is changed while the server migrates."""
    with _locked(host, id) as document:
        if note and document.state.get(NOTE) == note and not migration_of_server(host, document):
            if set_instead:
                forget_admin_password(document)
            else:
                del document.state[NOTE][ASIDE]
            host.documents.write(document)


@contextmanager
def _locked(host: LocalHost, id: str) -> Iterator[Document]:
    """Hold the lock of the server *id* during the block and yield its document. Raises ``NotFound``."""
    with host.locks.hold("server", id):
        document = host.documents.get("server", id)
        if document is None or document.deleting:
            raise NotFound(f"server {id} was removed in the meantime.", kind="server", key=id)
        yield document


@dataclass
class _PendingPassword:
    """A server whose document has the state field ``admin_pass``: a password that waits for the guest agent. *until*:
    when it expires. *due*: time of the next attempt. *looked*: time of the last attempt. *aside*: whether the password
    must wait, because another one is being set now."""

    until: float
    due: float
    aside: bool = False
    tries: int = 0
    looked: float = 0.0

    def sort_key(self, now: float) -> tuple[bool, int, float]:
        """Return the sort key of the server at the time *now*: servers that are due come first, ordered by the number
        of failed attempts."""
        return (True, 0, self.due) if self.due > now else (False, self.tries, self.due)


class AdminPasswords:
    """The thread that sets waiting passwords (state field ``admin_pass``) when guest agents connect. It sleeps while no
    password is due."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self._pending: dict[str, _PendingPassword] = {}
        self._changed, self._ending = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="admin passwords", daemon=True)

    def start(self) -> None:
        """Start the thread. It also handles the passwords that were waiting when the agent stopped."""
        self.host.documents.listen(self._written)
        for document in self.host.documents.peek("server"):
            self._written(document, False)
        self.host.hypervisor.on_event(self._happened)
        self.host.hypervisor.on_connect(self._wake)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(5)

    # Listeners -------------------------------------------------------------------------------------------------------
    def _written(self, document: Document, removed: bool) -> None:
        """Update the list of passwords that are still to be set in guests, after *document* was written, or deleted if
        *removed* is true."""
        if document.kind != "server":
            return
        note = None if removed or document.deleting else document.state.get(NOTE)
        with self._changed:
            if note is None:
                self._pending.pop(document.id, None)
                return
            pending = self._pending.get(document.id)
            aside = bool(note.get(ASIDE))
            if pending is None or (pending.until, pending.aside) != (note["until"], aside):
                self._pending[document.id] = _PendingPassword(note["until"], time.time() + SOON, aside)
                self._changed.notify()

    def _happened(self, event: DomainEvent) -> None:
        """Wake the thread if *event* may mean that a guest agent has connected."""
        if event.what in ("agent", "resumed", "started"):
            self._wake(event.uuid)

    def _wake(self, id: str | None = None) -> None:
        """Make the password of server *id* due now; ``None``: of all servers, because libvirt is connected again."""
        with self._changed:
            for pending in self._pending.values() if id is None else filter(None, [self._pending.get(id)]):
                pending.due = min(pending.due, pending.looked + SOON)
                self._changed.notify()

    # The thread ------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (id := self._next()) is not None:
            try:
                self._set_waiting_password(id)
            except MagnetarError as error:
                log.warning("the password of server %s cannot be set now: %s", id, error.message, extra={"server": id})
                self._later(id, LATER)
            except Exception:
                log.exception("the password of server %s cannot be set now", id)

    def _next(self) -> str | None:
        """Wait until the password of a server is due and return the server's uuid; ``None`` when the thread must end.
        The server becomes due again when its password expires or ``_wake`` is called."""
        with self._changed:
            while not self._ending:
                now = time.time()
                id = min(self._pending, key=lambda server_id: self._pending[server_id].sort_key(now), default=None)
                pending = None if id is None else self._pending[id]
                if pending and pending.due <= now:
                    pending.looked, pending.due = now, max(pending.until, now + AGAIN)
                    return id
                self._changed.wait(None if pending is None else pending.due - now)
        return None

    def _later(self, id: str, seconds: float) -> None:
        with self._changed:
            if pending := self._pending.get(id):
                pending.due = time.time() + seconds

    def _set_waiting_password(self, id: str) -> None:
        """Set the waiting password of server *id*, if its guest agent is connected and no operation holds the server's
        lock. Drop an expired password."""
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
                               else f"its guest agent was not there within {AGENT_TIMEOUT / 60:.0f} minutes")
                    return
                if migration_of_server(self.host, document):
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
                return  # the server is looked at when libvirt is back
        self._settle(id, document.state[NOTE], why)

    def _noted(self, id: str) -> Document | None:
        """Return the document of server *id* if a password waits to be set in its guest; otherwise ``None``."""
        document = self.host.documents.get("server", id)
        return None if document is None or document.deleting or NOTE not in document.state else document

    def _runs(self, id: str) -> bool:
        domain = self.host.hypervisor.domain(id)
        return domain is not None and domain.state == RUNNING

    def _ask(self, document: Document) -> str:
        """Have the guest agent set the waiting password, without holding the server's lock. Return why it failed, "" on
        success."""
        try:
            self.host.hypervisor.set_password(document.id, admin_user(document), document.state[NOTE]["password"])
        except HypervisorDown:
            raise
        except Conflict:
            return "did not answer"
        except HypervisorError as error:
            return f"refused ({error.message})"
        return ""

    def _settle(self, id: str, note: Fields, why: str) -> None:
        """Record the result of an attempt to set the password *note* (a value of the state field ``admin_pass``).
        *why*: why it failed, "" on success. If the server is locked now, the attempt is repeated later."""
        with self.host.locks.hold_if_free("server", id) as free:
            document = self._noted(id) if free else None
            if document is None or document.state[NOTE] != note:
                self._later(id, SOON)
            elif migration_of_server(self.host, document):
                self._later(id, AGAIN)
            elif not why:
                forget_admin_password(document)
                self.host.documents.write(document)
                log.info("server %s: its guest agent has set the password of %s", document.name, admin_user(document),
                         extra={"server": document.id})
            elif self._runs(id):  # otherwise it was stopped meanwhile
                self._count_failure(document, why)

    def _count_failure(self, document: Document, why: str) -> None:
        """Count a failed attempt of a connected guest agent, and schedule the next one; after ``TRIES`` attempts drop
        the password. *why*: why it failed, for the log."""
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
        forget_admin_password(document)
        self.host.documents.write(document)
        log.warning("server %s: the password of %s is not set: %s. Its config drive has it, where it has one; else "
                    "set another one (changePassword)", document.name, admin_user(document), why,
                    extra={"server": document.id})
