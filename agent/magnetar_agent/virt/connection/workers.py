# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads that make calls to libvirt, so that callers may stop waiting for them."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: The most idle threads; further threads end when their work is done.
IDLE = 8


class Workers:
    """A pool of daemon threads without a size limit. Unlike in a ``ThreadPoolExecutor``, a call that hangs blocks
    neither other calls nor the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    def run(self, work: Callable[[], None]) -> None:
        """Call *work* in an idle thread, or in a new one if none is idle. *work* must not raise."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            threading.Thread(target=self._serve, args=(work,), name="libvirt-call", daemon=True).start()
        else:
            inbox.put(work)

    def close(self) -> None:
        """Stop the idle threads. Busy threads stop after their current work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, work: Callable[[], None] | None) -> None:
        inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        while work is not None:
            work()
            with self._lock:
                if self._closed or len(self._idle) >= IDLE:
                    return
                self._idle.append(inbox)
            work = inbox.get()
