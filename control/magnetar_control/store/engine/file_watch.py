# SPDX-License-Identifier: GPL-3.0-or-later
"""A watch over a SQLite file that signals a change of the database when any process commits a transaction. The kernel
reports writes to the write-ahead log (inotify), so there is no polling between writes."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import sqlite3
import threading

from .bell import ALL, ChangeSignals

log = logging.getLogger(__name__)
#: The flag from linux/inotify.h for writes to a file.
IN_MODIFY = 0x2
#: Seconds between two signals while commits follow each other. Threads of this process are woken directly.
GATHER = 0.05
#: Seconds between further checks for a commit. ``LATER``: after a write, because other processes can read its commit
#: only a moment after the kernel reports the write. ``NOTICED``: after a commit, because another may be in progress.
LATER, NOTICED = (0.05, 0.2, 1.0), (0.5,)


class FileWatch(threading.Thread):
    """A thread that wakes all threads of this process that wait on *signals* (a ``ChangeSignals``: condition variables
    by name) when any process has committed to the SQLite file at *path*. It uses inotify. Raises ``OSError`` when the
    kernel's limit of watches is reached."""

    def __init__(self, name: str, path: str, signals: ChangeSignals) -> None:
        super().__init__(name=f"watch {name}", daemon=True)
        self.path, self.signals = path, signals
        # The log is removed with the last connection to the file, so this one keeps it.
        self._connection = sqlite3.connect(path, timeout=30.0, check_same_thread=False, isolation_level=None)
        try:
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # creates the log
            self._version = self._read_version()
            self._reports = _report_writes(f"{path}-wal")
        except BaseException:
            self._connection.close()
            raise
        self._over = os.eventfd(0, os.EFD_CLOEXEC)

    def run(self) -> None:
        ready = select.poll()
        for descriptor in (self._reports, self._over):
            ready.register(descriptor, select.POLLIN)
        later = list(LATER)
        while True:
            events = {descriptor for descriptor, _event in ready.poll(later.pop(0) * 1000 if later else None)}
            if self._over in events:
                return
            if self._reports in events:
                later = list(LATER)
                with contextlib.suppress(BlockingIOError):
                    os.read(self._reports, 1 << 16)
            try:
                version = self._read_version()
            except sqlite3.Error as error:
                log.warning("%s: commits of other processes are noticed late (%s)", self.path, error)
                version = self._version + 1
            if version != self._version:
                self._version, later = version, list(NOTICED)
                for name in ALL:
                    self.signals.notify(name)
                over = select.poll()
                over.register(self._over, select.POLLIN)
                if over.poll(GATHER * 1000):
                    return

    def _read_version(self) -> int:
        """Return SQLite's ``data_version``, a number that changes with each commit of another connection."""
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def stop(self) -> None:
        """Stop the thread."""
        os.eventfd_write(self._over, 1)
        if self.is_alive():
            self.join()
        self._connection.close()
        os.close(self._reports)
        os.close(self._over)


def _report_writes(path: str) -> int:
    """Return the descriptor of an inotify queue that reports writes to the file at *path*. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) < 0:
        error = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(error, os.strerror(error), path)
    return descriptor
