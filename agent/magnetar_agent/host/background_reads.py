# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads of the host that may hang, such as the size of an NFS file system whose server does not answer. Threads do
them, so that no caller hangs too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Entry(Generic[T]):
    """The last *value* of a read, the time *at* which it ended, and the thread of the read that is running, with its
    beginning."""

    value: T | None = None
    at: float | None = None
    began: float = 0.0
    thread: threading.Thread | None = None


class BackgroundReads(Generic[T]):
    """Values that threads read again after *interval* seconds. There is one thread for each name at most, so a read
    that hangs is not begun a second time. A caller waits *patience* seconds at most for reads that it has begun."""

    def __init__(self, interval: float = 15.0, patience: float = 1.0) -> None:
        self.interval, self.patience = interval, patience
        self._entries: dict[str, _Entry[T]] = {}
        self._lock = threading.Lock()

    def latest(self, reads: Mapping[str, Callable[[], T]]) -> dict[str, tuple[T | None, float]]:
        """Begin the *reads* that are due, functions by name, and wait at most *patience* seconds for them. Return by
        name the newest value (``None``: no read has ended yet), and for how many seconds a read that has not ended has
        been running (0.0: none is running). A read must not raise."""
        threads = [thread for name, read in reads.items() if (thread := self._begin(name, read))]
        deadline = time.monotonic() + self.patience
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        now = time.monotonic()
        with self._lock:
            return {name: (entry.value, now - entry.began if entry.thread else 0.0)
                    for name in reads for entry in (self._entries[name],)}

    def _begin(self, name: str, read: Callable[[], T]) -> threading.Thread | None:
        """Begin the read *name* if it is due. Return its new thread; ``None`` if none was begun."""
        now = time.monotonic()
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            if entry.thread or (entry.at is not None and now < entry.at + self.interval):
                return None
            entry.began, entry.thread = now, threading.Thread(target=self._read, args=(entry, read), daemon=True,
                                                              name=f"read {name}")
            entry.thread.start()
            return entry.thread

    def _read(self, entry: _Entry[T], read: Callable[[], T]) -> None:
        value = entry.value
        try:
            value = read()
        finally:
            with self._lock:
                entry.value, entry.at, entry.thread = value, time.monotonic(), None
