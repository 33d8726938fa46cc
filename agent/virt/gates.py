# SPDX-License-Identifier: GPL-3.0-or-later
"""The share of each guest: one call that its QEMU answers is in flight, and few more wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from magnetar_core.errors import Conflict, GuestSilent

#: Calls that wait for another one to the same guest, and for how many seconds.
WAITERS, WAIT = 4, 30.0
#: Seconds that a call waits for one that was given up: QEMU may have just gone on or ended.
GRACE = 1.0
ADVICE = ("The rest of its host goes on. See to the storage of the guest (NFS, NBD, Ceph) and to its QEMU process, or "
          "stop it hard: a forced power-off, a hard reboot or a deletion ends it.")


def silent(guest: str, what: str, seconds: float) -> GuestSilent:
    """Return the error for a *guest* whose QEMU has not answered for so many *seconds*."""
    return GuestSilent(f"The guest {guest} does not answer: its QEMU is hung and has left libvirt's request to {what} "
                       f"without an answer for {seconds:.0f} s. {ADVICE}", guest=guest)


class Turn:
    """The turn of the one call to a guest that is in flight."""

    def __init__(self, guest: str, what: str) -> None:
        self.guest, self.what, self.began = guest, what, time.monotonic()
        #: Whether its caller has given up, since the guest's QEMU does not answer.
        self.given_up = False
        self.waiters = 0


class Gates:
    """The turns by key: a guest's uuid, and for what. A key without a call has no entry."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns: dict[tuple[str, str], Turn] = {}

    def is_silent(self, guest: str) -> bool:
        """Return whether a call to *guest* hangs."""
        with self._changed:
            return any(turn.given_up for (uuid, _kind), turn in self._turns.items() if uuid == guest)

    def enter(self, guest: str, what: str, kind: str = "") -> Turn:
        """Wait for the turn of a call to *guest*, and take it. Raises ``GuestSilent`` where the call before hangs, and
        ``Conflict`` where it takes long or too many wait."""
        key, now = (guest, kind), time.monotonic()
        deadline, soon = now + WAIT, now + GRACE
        with self._changed:
            while (turn := self._turns.get(key)) is not None:
                now = time.monotonic()
                if turn.given_up and now >= soon:
                    raise silent(guest, turn.what, now - turn.began)
                if turn.waiters >= WAITERS or now >= deadline:
                    raise Conflict(f"libvirt could not {what} now: it is still busy with the request to {turn.what}. "
                                   "Repeat the call when that is done.")
                with _counted(turn):
                    self._changed.wait((soon if turn.given_up else deadline) - now)
            turn = self._turns[key] = Turn(guest, what)
            return turn

    def give_up(self, turn: Turn) -> None:
        """Let everyone who waits for this *turn*, and who comes before its call returns, know that the guest hangs."""
        with self._changed:
            turn.given_up = True
            self._changed.notify_all()

    def leave(self, turn: Turn, kind: str = "") -> None:
        """The call of this *turn* has returned."""
        with self._changed:
            if self._turns.get((turn.guest, kind)) is turn:
                del self._turns[turn.guest, kind]
            self._changed.notify_all()


@contextmanager
def _counted(turn: Turn) -> Iterator[None]:
    turn.waiters += 1
    try:
        yield
    finally:
        turn.waiters -= 1
