# SPDX-License-Identifier: GPL-3.0-or-later
"""A way for threads to wait for an event of a domain."""

from __future__ import annotations

import threading


class Changes:
    """A signal with which the thread that receives libvirt's events wakes threads that wait for an event of a domain.
    """

    def __init__(self) -> None:
        self._happened = threading.Condition()
        self._count: dict[str, int] = {}

    def tell(self, id: str) -> None:
        """Wake the threads that wait for an event of the domain with the uuid *id*."""
        with self._happened:
            if id in self._count:
                self._count[id] += 1
                self._happened.notify_all()

    def wait(self, id: str, seconds: float) -> None:
        """Wait until an event of the domain with the uuid *id* arrives, at most *seconds*."""
        with self._happened:
            count_before = self._count.setdefault(id, 0)
            self._happened.wait_for(lambda: self._count.get(id, 0) != count_before, seconds)
            self._count.pop(id, None)
