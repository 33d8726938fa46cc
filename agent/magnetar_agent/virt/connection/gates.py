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
    """Return the error for a *guest* whose QEMU has not responded for *seconds*. *purpose*: verb phrase that describes
    the request."""
    return GuestSilent(
        f"The guest {guest} does not answer: its QEMU is hung and has left libvirt's request to {purpose} "
                       f"without an answer for {seconds:.0f} s. {ADVICE}", guest=guest)


def silent_storage(pool: str, purpose: str, seconds: float) -> HypervisorError:
    """Return the error for a storage *pool* that has not responded for *seconds*. *purpose*: verb phrase that describes
    the request."""
    return StorageSilent(
        f"The storage pool {pool!r} does not answer: libvirt could not {purpose} within {seconds:.0f} s. "
                         "The rest of its host goes on. See to the storage behind the pool (its NFS server, disks or "
                         "Ceph cluster).", pool=pool)


class Turn:
    """A libvirt call in progress to a guest or storage pool. *kind*: type of call; a guest or pool has at most one call
    of each kind at a time. *long*: whether calls of other kinds may run during this call."""

    def __init__(self, gates: Gates, owner: str, purpose: str, kind: str, long: bool) -> None:
        self.gates, self.owner, self.what, self.kind, self.long = gates, owner, purpose, kind, long
        self.began = time.monotonic()
        #: Whether the call has been unanswered for long, and whether its caller has given up.
        self.hangs = self.given_up = False
        self.waiters = 0


class Gates:
    """A limiter that makes libvirt calls that depend on the same guest or storage pool wait for each other. The *owner*
    of a call is the uuid of that guest or the name of that pool.

    - *error*: function that creates the error for an owner that does not respond.
    - *waiters*: maximum number of callers that wait for one call.
    - *wait*: maximum number of seconds that a caller waits."""

    def __init__(self, error: Callable[[str, str, float], HypervisorError] = silent_guest, waiters: int = WAITERS,
                 wait: float = WAIT) -> None:
        self.error = error
        self._waiters, self._wait = waiters, wait
        self._changed = threading.Condition()
        self._turns: dict[tuple[str, str], Turn] = {}

    def is_silent(self, owner: str) -> bool:
        """Return whether a libvirt call that depends on the guest or pool *owner* (a uuid or a name) hangs."""
        with self._changed:
            return any(turn.hangs or turn.given_up for (name, _kind), turn in self._turns.items() if name == owner)

    def begin_call(self, owner: str, purpose: str, kind: str = "", long: bool = False) -> Turn:
        """Wait until a libvirt call that depends on the guest or pool *owner* (a uuid or a name) may start, and return
        its ``Turn``. *purpose*: verb phrase for error messages. *kind*, *long*: see ``Turn``. Raises ``GuestSilent`` or
        ``StorageSilent`` if an earlier call hangs, and ``Conflict`` if the earlier call takes too long or too many
        callers wait."""
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
        """Set whether the call *turn* hangs. While it hangs, no other call to the same guest or pool may start, except
        calls that end the guest."""
        with self._changed:
            turn.hangs = hangs
            self._changed.notify_all()

    def give_up(self, turn: Turn) -> None:
        """Record that the caller of *turn* stopped waiting for the result. Until the call returns, ``begin_call`` fails
        for calls that would have to wait for it."""
        with self._changed:
            turn.given_up = True
            self._changed.notify_all()

    def end_call(self, turn: Turn) -> None:
        """Remove *turn*, because its call has returned."""
        with self._changed:
            if self._turns.get((turn.owner, turn.kind)) is turn:
                del self._turns[turn.owner, turn.kind]
            self._changed.notify_all()

    def _before(self, owner: str, kind: str) -> Turn | None:
        """Return the call in progress to the guest or pool *owner* for which a new call of this *kind* has to wait;
        ``None`` if the new call can start."""
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
