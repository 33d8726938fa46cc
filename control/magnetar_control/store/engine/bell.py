# SPDX-License-Identifier: GPL-3.0-or-later
"""The signals of changes in a database: they wake threads that wait for a change of a table. Writers call ``notify``
with a name for each kind of change.

On PostgreSQL it also wakes other processes; on SQLite they watch the file (``file_watch``). A lost signal does no
harm: a waiting thread checks the table again after a while (``ChangeSignals.wait``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)
#: Name of the channel of PostgreSQL's notifications.
CHANNEL = "magnetar"
NOTIFY = text("SELECT pg_notify(:channel, :name)")
#: Seconds between two notifications, while more signals are collected. The first one is sent immediately.
GATHER = 0.02
#: Seconds that a stopped notifier has to send its remaining signals.
STOP_WITHIN = 10.0
#: Names whose signals by other processes may be lost: while a connection is lost, or on SQLite before a commit.
ALL = ("actions", "servers", "network_changes", "network_written")


class ChangeSignals:
    """Condition variables by name, for the threads of this process: ``notify`` wakes all threads that wait for the same
    name. *recheck_interval*: the longest time in seconds that ``wait`` takes."""

    def __init__(self, recheck_interval: float) -> None:
        self.recheck_interval = recheck_interval
        self._lock = threading.Lock()
        #: A condition for each name, so that a signal wakes no thread that waits for another name.
        self._conditions: dict[str, threading.Condition] = {}
        self._counts: dict[str, int] = {}

    def count(self, name: str) -> int:
        """Return how often ``notify`` was called with *name*. Call this before reading the database, and pass the
        number to ``wait``, so that no ``notify`` in between is missed."""
        with self._lock:
            return self._counts.get(name, 0)

    def notify(self, name: str) -> None:
        """Wake the threads that wait for *name*."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1
            if name in self._conditions:
                self._conditions[name].notify_all()

    def wait(self, name: str, known_count: int, limit: float | None = None) -> None:
        """Wait until ``notify`` is called with *name*, or return immediately if ``count`` has already changed from
        *known_count*. Waits for at most ``recheck_interval`` seconds, or *limit* seconds if that is less."""
        self.wait_for_signal(name, known_count,
                             self.recheck_interval if limit is None else min(limit, self.recheck_interval))

    def wait_for_signal(self, name: str, known_count: int, limit: float) -> None:
        """Wait until ``notify`` is called with *name*, or return immediately if ``count`` has already changed from
        *known_count*. Waits for at most *limit* seconds, even if ``recheck_interval`` is less. Use it only for names
        that other processes never signal."""
        with self._lock:
            condition = self._conditions.setdefault(name, threading.Condition(self._lock))
            condition.wait_for(lambda: self._counts.get(name, 0) != known_count, limit)


class Notifier:
    """The thread that sends the signals of a ``ChangeSignals`` to other processes by PostgreSQL's NOTIFY.

    It uses a separate connection, because PostgreSQL commits transactions with NOTIFY one after the other, across all
    databases. A signal that cannot be sent is lost. *name*: of the database, for logs. *reading*: the SQLAlchemy engine
    (in autocommit mode) that provides this connection. *origin*: a text that identifies this process. Each signal
    contains this text, so that the process ignores its own signals.
    """

    def __init__(self, name: str, reading: Engine, origin: str) -> None:
        self.name, self.reading, self.origin = name, reading, origin
        self._names: set[str] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    def send(self, names: Collection[str]) -> None:
        """Send *names* to other processes soon, in the notifier's thread."""
        with self._condition:
            self._names.update(names)
            if not self._thread and not self._over:
                self._thread = threading.Thread(target=self._run, name=f"notify {self.name}", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._names or self._over)
                names, self._names = self._names, set()
            if not names:
                return
            try:
                with self.reading.connect() as connection:
                    for name in names:
                        connection.execute(NOTIFY, {"channel": CHANNEL, "name": f"{name} {self.origin}"})
            except SQLAlchemyError as error:
                log.warning("database %s: others are not told (%s)", self.name, type(error).__name__)
            time.sleep(GATHER)

    def stop(self) -> None:
        """Send the remaining names and stop the thread."""
        with self._condition:
            thread, self._over = self._thread, True
            self._condition.notify()
        if thread:
            thread.join(STOP_WITHIN)
