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
    that hangs is not begun a second time. Callers wait for a read until *patience* seconds after its begin."""

    def __init__(self, interval: float = 15.0, patience: float = 1.0) -> None:
        self.interval, self.patience = interval, patience
        self._entries: dict[str, _Entry[T]] = {}
        self._lock = threading.Lock()

    def latest(self, reads: Mapping[str, Callable[[], T]]) -> dict[str, tuple[T | None, float]]:
        """Begin the *reads* that are due, functions by name, and wait for all that are running, whoever began them.
        Return by name the newest value (``None``: no read has ended yet), and for how many seconds the read that was
        waited for has been running (0.0: it has ended, or none was due). A read must not raise."""
        running = {name: self._begin(name, read) for name, read in reads.items()}
        for thread, began in filter(None, running.values()):
            thread.join(max(0.0, began + self.patience - time.monotonic()))
        now = time.monotonic()
        with self._lock:
            return {name: (entry.value, now - begun[1] if begun and begun[0] is entry.thread else 0.0)
                    for name, begun in running.items() for entry in (self._entries[name],)}

    def _begin(self, name: str, read: Callable[[], T]) -> tuple[threading.Thread, float] | None:
        """Begin the read *name* if it is due. Return the thread that is running, and when it began; ``None`` if the
        value is new enough."""
        now = time.monotonic()
        with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            if not entry.thread:
                if entry.at is not None and now < entry.at + self.interval:
                    return None
                entry.began, entry.thread = now, threading.Thread(target=self._read, args=(entry, read), daemon=True,
                                                                  name=f"read {name}")
                entry.thread.start()
            return entry.thread, entry.began

    def _read(self, entry: _Entry[T], read: Callable[[], T]) -> None:
        value = entry.value
        try:
            value = read()
        finally:
            with self._lock:
                entry.value, entry.at, entry.thread = value, time.monotonic(), None
