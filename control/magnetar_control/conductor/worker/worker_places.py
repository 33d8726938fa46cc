# SPDX-License-Identifier: GPL-3.0-or-later
"""The slots of a conductor's workers, which limit how many actions run at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from .leased_actions import Key, LeasedActions

#: Seconds to wait for a free slot at a time; seconds to wait for more free slots after all were taken.
PATIENCE, FREED = 0.2, 0.04
#: Actions that may wait for a guest to shut down in addition to the running ones; each keeps a thread.
GUESTS = 64


class WorkerSlots:
    """The slots of a conductor, which limit how many actions run at the same time: a worker thread needs a slot to run
    an action. *count*: number of slots. *leased_actions*: counts the conductor's actions by host."""

    def __init__(self, count: int, leased_actions: LeasedActions) -> None:
        self._leased_actions = leased_actions
        self._free, self._guests = threading.BoundedSemaphore(count), threading.BoundedSemaphore(GUESTS)
        self._worker = threading.local()  # ``placed``: whether this thread has one of the slots that ``_free`` counts
        #: By database, whether the last read left actions in the queue, which may become available when others end.
        self.left: dict[str, bool] = {}
        #: Called after a slot has become free.
        self.on_free: Callable[[], None] = lambda: None

    def reserve_slots(self, over: threading.Event) -> int:
        """Reserve all free slots, each for an action that will be leased from the queue, and return their number, which
        may be 0. If no slot is free, wait up to ``PATIENCE`` seconds for one, and then briefly for more: one query that
        leases several actions is cheaper than several queries. *over*: set when the conductor stops; it ends only the
        second wait."""
        count = 1 if self._free.acquire(blocking=False) else 0
        if not count:
            count = 1 if self._free.acquire(timeout=PATIENCE) else 0
            over.wait(FREED)
        while count and self._free.acquire(blocking=False):
            count += 1
        return count

    def release_slots(self, count: int) -> None:
        """Release *count* reserved slots for which no action was found in the queue."""
        for _slot in range(count):
            self._free.release()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Use a reserved slot for this thread while the ``with`` block runs, and release it at the end."""
        self._worker.placed = True
        try:
            yield
        finally:
            if self._worker.placed:
                self._free.release()
            self.on_free()

    @contextlib.contextmanager
    def resting(self, key: Key) -> Iterator[None]:
        """Release the slot of this thread while the ``with`` block runs, and do not count the action *key* for any
        host, so that other actions can begin. Use this while the action waits for something outside the conductor, such
        as the shutdown of a guest. After the block, the action continues without a slot. If ``GUESTS`` actions already
        wait in this way, the slot is not released."""
        if not getattr(self._worker, "placed", False) or not self._guests.acquire(blocking=False):
            yield
            return
        self._worker.placed = False
        try:
            with self._leased_actions.resting(key):
                self._free.release()
                self.on_free()
                yield
        finally:
            self._guests.release()

    def others_wait(self) -> bool:
        """Return whether queued actions wait for a free worker, as far as this conductor knows."""
        return any(self.left.values())
