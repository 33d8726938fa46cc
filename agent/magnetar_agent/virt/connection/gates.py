# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on the calls to each guest and storage pool: on calls in flight, and on callers that wait.

A guest has one call in flight. During a long call (start, managed save, migration) a second one may run, such as a read
of statistics, unless a call hangs. A call that ends the guest waits only for other calls that end it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from magnetar_core.errors import Conflict, GuestSilent, HypervisorError, StorageSilent

#: The most calls that wait for another call to the same guest, and the seconds that they wait at most.
WAITERS, WAIT = 4, 30.0
#: The same for storage pools.
STORAGE_WAITERS, STORAGE_WAIT = 64, 120.0
#: Seconds that a call waits for an earlier one whose caller has given up: QEMU may just have answered or ended.
GRACE = 1.0
#: The kind of calls that end a guest or one of its jobs.
END = "end"
ADVICE = ("The rest of its host goes on. See to the storage of the guest (NFS, NBD, Ceph) and to its QEMU process, or "
          "stop it hard: a forced power-off, a hard reboot or a deletion ends it.")


def silent_guest(guest: str, purpose: str, seconds: float) -> HypervisorError:
    """Return the error for a *guest* whose QEMU has left a request to *purpose* unanswered for that many *seconds*."""
    return GuestSilent(
        f"The guest {guest} does not answer: its QEMU is hung and has left libvirt's request to {purpose} "
                       f"without an answer for {seconds:.0f} s. {ADVICE}", guest=guest)


def silent_storage(pool: str, purpose: str, seconds: float) -> HypervisorError:
    """Return the error for a storage *pool* that has left a request to *purpose* unanswered for that many *seconds*."""
    return StorageSilent(
        f"The storage pool {pool!r} does not answer: libvirt could not {purpose} within {seconds:.0f} s. "
                         "The rest of its host goes on. See to the storage behind the pool (its NFS server, disks or "
                         "Ceph cluster).", pool=pool)


class Turn:
    """A call of a *kind* that is in flight to a guest or storage pool. *long*: the call takes long, and calls of other
    kinds may run meanwhile."""

    def __init__(self, gates: Gates, owner: str, purpose: str, kind: str, long: bool) -> None:
        self.gates, self.owner, self.what, self.kind, self.long = gates, owner, purpose, kind, long
        self.began = time.monotonic()
        #: Whether the call has been unanswered for long, and whether its caller has given up.
        self.hangs = self.given_up = False
        self.waiters = 0


class Gates:
    """The calls in flight, by owner (a guest's uuid or a pool's name) and kind. An owner without a call has no entry.
    *error* creates the error for an owner that does not answer."""

    def __init__(self, error: Callable[[str, str, float], HypervisorError] = silent_guest, waiters: int = WAITERS,
                 wait: float = WAIT) -> None:
        self.error = error
        self._waiters, self._wait = waiters, wait
        self._changed = threading.Condition()
        self._turns: dict[tuple[str, str], Turn] = {}

    def is_silent(self, owner: str) -> bool:
        """Return whether a call to *owner* hangs."""
        with self._changed:
            return any(turn.hangs or turn.given_up for (name, _kind), turn in self._turns.items() if name == owner)

    def begin_call(self, owner: str, purpose: str, kind: str = "", long: bool = False) -> Turn:
        """Wait until a call to *owner* may start, register the call, and return its turn. Raises ``GuestSilent`` or
        ``StorageSilent`` if the call that it must wait for hangs, and ``Conflict`` if that call does not end in time or
        too many calls wait. *purpose*, *kind*, *long*: see ``Turn``."""
        now = time.monotonic()
        deadline, soon = now + self._wait, now + GRACE
        with self._changed:
            while (turn := self._before(owner, kind)) is not None:
                now = time.monotonic()
                if turn.given_up and now >= soon:
                    raise self.error(owner, turn.what, now - turn.began)
                if turn.waiters >= self._waiters or now >= deadline:
                    raise Conflict(
                        f"libvirt could not {purpose} now: it is still busy with the request to {turn.what}. "
                                   "Repeat the call when that is done.")
                with _counted(turn):
                    self._changed.wait((soon if turn.given_up else deadline) - now)
            turn = self._turns[owner, kind] = Turn(self, owner, purpose, kind, long)
            return turn

    def set_hanging(self, turn: Turn, hangs: bool) -> None:
        """Record whether the call of this *turn* hangs. No other call may start during a call that hangs."""
        with self._changed:
            turn.hangs = hangs
            self._changed.notify_all()

    def give_up(self, turn: Turn) -> None:
        """Record that the caller of this *turn* does not wait for its call any more. Until that call returns,
        ``begin_call`` raises ``GuestSilent`` or ``StorageSilent`` for calls that would have to wait for it."""
        with self._changed:
            turn.given_up = True
            self._changed.notify_all()

    def end_call(self, turn: Turn) -> None:
        """Remove the *turn*, because its call has returned."""
        with self._changed:
            if self._turns.get((turn.owner, turn.kind)) is turn:
                del self._turns[turn.owner, turn.kind]
            self._changed.notify_all()

    def _before(self, owner: str, kind: str) -> Turn | None:
        """Return the call to *owner* in flight that a new call of this *kind* must wait for; ``None`` if there is none.
        """
        if kind == END:
            return self._turns.get((owner, END))
        turns = {other: turn for (name, other), turn in self._turns.items() if name == owner and other != END}
        return turns.get(kind) or next((turn for turn in turns.values() if turn.hangs or not turn.long), None)


@contextmanager
def _counted(turn: Turn) -> Iterator[None]:
    turn.waiters += 1
    try:
        yield
    finally:
        turn.waiters -= 1
