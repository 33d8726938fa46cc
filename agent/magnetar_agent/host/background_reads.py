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
    """The cached state of a value in ``BackgroundReads``: *value*, the result of the last read; *at*, the time of that
    result; *thread*, the thread that is reading now, or ``None``; *began*, the start time of that thread."""

    value: T | None = None
    at: float | None = None
    began: float = 0.0
    thread: threading.Thread | None = None


class BackgroundReads(Generic[T]):
    """A cache of named values, such as the free space of a shared folder, that are read in background threads, because
    a read may hang, as with a dead file server. A value is read again when it is *interval* seconds old. Each value is
    read by at most one thread at a time. Callers wait for a read at most until *patience* seconds after it began."""

    def __init__(self, interval: float = 15.0, patience: float = 1.0) -> None:
        self.interval, self.patience = interval, patience
        self._entries: dict[str, _Entry[T]] = {}
        self._lock = threading.Lock()

    def latest(self, reads: Mapping[str, Callable[[], T]]) -> dict[str, tuple[T | None, float]]:
        """Start those of *reads* (functions by name, which must not raise) whose values are too old, and wait for
        running reads. Return, by name, the newest value and the seconds since the running read began.

        The value is ``None`` if no read has ended yet. The seconds are 0.0 if no read is running.
        """
        running = {name: self._begin(name, read) for name, read in reads.items()}
        for thread, began in filter(None, running.values()):
            thread.join(max(0.0, began + self.patience - time.monotonic()))
        now = time.monotonic()
        with self._lock:
            return {name: (entry.value, now - begun[1] if begun and begun[0] is entry.thread else 0.0)
                    for name, begun in running.items() for entry in (self._entries[name],)}

    def _begin(self, name: str, read: Callable[[], T]) -> tuple[threading.Thread, float] | None:
        """Start a thread that reads the value *name* by calling *read*, if the cached value is too old and no read is
        running. Return the running thread and its start time; ``None`` if the value is new enough."""
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
