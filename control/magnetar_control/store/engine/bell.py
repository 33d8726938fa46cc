# SPDX-License-Identifier: GPL-3.0-or-later
"""The doorbell of a database: it wakes threads that wait for a change of a table. Writers ring the bell with a name
for each kind of change.

On PostgreSQL it also wakes other processes; on SQLite they watch the file (``file_watch``). A lost signal does no
harm: a waiting thread checks the table again after a while (``Bell.wait``).
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
#: Seconds between two notifications, while more rings are collected. The first one is sent immediately.
GATHER = 0.02
#: Seconds that a stopped notifier has to send its remaining rings.
STOP_WITHIN = 10.0
#: Names whose rings by other processes may be lost: while a connection is lost, or on SQLite before a commit.
ALL = ("actions", "servers", "network_changes", "network_written")


class Bell:
    """Condition variables by name, for the threads of this process: ``ring`` wakes all threads that wait for the same
    name. *look_again*: the longest time in seconds that ``wait`` takes."""

    def __init__(self, look_again: float) -> None:
        self.look_again = look_again
        self._lock = threading.Lock()
        #: A condition for each name, so that a ring wakes no thread that waits for another name.
        self._conditions: dict[str, threading.Condition] = {}
        self._rung: dict[str, int] = {}

    def count(self, name: str) -> int:
        """Return how often ``ring`` was called with *name*. Call this before reading the database, and pass the number
        to ``wait``, so that no ``ring`` in between is missed."""
        with self._lock:
            return self._rung.get(name, 0)

    def ring(self, name: str) -> None:
        """Wake the threads that wait for *name*."""
        with self._lock:
            self._rung[name] = self._rung.get(name, 0) + 1
            if name in self._conditions:
                self._conditions[name].notify_all()

    def wait(self, name: str, known_count: int, limit: float | None = None) -> None:
        """Wait until ``ring`` is called with *name*, or return immediately if ``count`` has already changed from
        *known_count*. Waits for at most ``look_again`` seconds, or *limit* seconds if that is less."""
        self.wait_for_ring(name, known_count, self.look_again if limit is None else min(limit, self.look_again))

    def wait_for_ring(self, name: str, known_count: int, limit: float) -> None:
        """Wait until ``ring`` is called with *name*, or return immediately if ``count`` has already changed from
        *known_count*. Waits for at most *limit* seconds, even if ``look_again`` is less. Use it only for names that
        other processes never signal."""
        with self._lock:
            condition = self._conditions.setdefault(name, threading.Condition(self._lock))
            condition.wait_for(lambda: self._rung.get(name, 0) != known_count, limit)


class Notifier:
    """The thread that sends the signals of a ``Bell`` to other processes by PostgreSQL's NOTIFY.

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

    def ring(self, names: Collection[str]) -> None:
        """Send *names* to other processes soon, in the notifier's thread."""
        with self._condition:
            self._names.update(names)
            if not self._thread and not self._over:
                self._thread = threading.Thread(target=self._run, name=f"ring {self.name}", daemon=True)
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
