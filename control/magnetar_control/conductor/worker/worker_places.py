# SPDX-License-Identifier: GPL-3.0-or-later
"""The places of a conductor's workers, which limit how many actions run at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from .leased_actions import Key, LeasedActions

#: Seconds to wait for a free place at a time; seconds to wait for more free places after all were taken.
PATIENCE, FREED = 0.2, 0.04
#: Actions that may wait for a guest to shut down in addition to the running ones; each keeps a thread.
GUESTS = 64


class WorkerPlaces:
    """The slots of *count* workers; each running action uses one slot. *leased_actions*: the counts of the conductor's
    actions by host."""

    def __init__(self, count: int, leased_actions: LeasedActions) -> None:
        self._leased_actions = leased_actions
        self._free, self._guests = threading.BoundedSemaphore(count), threading.BoundedSemaphore(GUESTS)
        self._worker = threading.local()  # ``placed``: whether this thread has one of the places that ``_free`` counts
        #: By database, whether the last read left actions in the queue, which may become available when others end.
        self.left: dict[str, bool] = {}
        #: Called after a place has become free.
        self.on_free: Callable[[], None] = lambda: None

    def reserve_places(self, over: threading.Event) -> int:
        """Reserve all free slots, and return how many. If none is free, wait up to ``PATIENCE`` seconds for one, and
        then briefly for more (unless *over* is set), because one query for several actions is cheaper than one query
        for each."""
        count = 1 if self._free.acquire(blocking=False) else 0
        if not count:
            count = 1 if self._free.acquire(timeout=PATIENCE) else 0
            over.wait(FREED)
        while count and self._free.acquire(blocking=False):
            count += 1
        return count

    def release_places(self, count: int) -> None:
        """Release reserved slots for which no action was found."""
        for _place in range(count):
            self._free.release()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Mark this thread as the user of a reserved slot while the ``with`` block runs, and free the slot at its end.
        """
        self._worker.placed = True
        try:
            yield
        finally:
            if self._worker.placed:
                self._free.release()
            self.on_free()

    @contextlib.contextmanager
    def resting(self, key: Key) -> Iterator[None]:
        """Free the worker's slot, and the action's place at its host, while the ``with`` block runs, in which the
        action waits for a guest. Other actions can begin meanwhile. After the block the action continues without a
        slot, in addition to the others. If ``GUESTS`` actions wait like this already, keep the slot and the place."""
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
        """Return whether actions wait for a worker, as far as this conductor knows."""
        return any(self.left.values())
