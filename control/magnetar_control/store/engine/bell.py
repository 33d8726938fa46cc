# SPDX-License-Identifier: GPL-3.0-or-later
"""The doorbell of a database: it wakes whoever waits for a change of a table, on PostgreSQL in other processes too.

A lost ring never matters: whoever waits looks again after a while (``Bell.wait``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)
#: Name of PostgreSQL's notifications.
CHANNEL = "magnetar"
NOTIFY = text("SELECT pg_notify(:channel, :name)")
#: Seconds between two notifications, in which more rings are collected. The first is sent at once.
GATHER = 0.02
#: Seconds in which a notifier sends what is left when it is stopped.
STOP_WITHIN = 10.0
#: Rung after a connection was lost: somebody may have rung meanwhile.
ALL = ("actions", "servers", "network_changes", "network_written")


class Bell:
    """Wakes those who wait for a name."""

    def __init__(self, look_again: float) -> None:
        self.look_again = look_again
        self._lock = threading.Lock()
        #: One for each name, so that a ring wakes no thread that waits for another.
        self._conditions: dict[str, threading.Condition] = {}
        self._rung: dict[str, int] = {}

    def count(self, name: str) -> int:
        """How often *name* was rung; call it before reading the table, and give the number to ``wait``."""
        with self._lock:
            return self._rung.get(name, 0)

    def ring(self, name: str) -> None:
        """Wake those who wait for *name*."""
        with self._lock:
            self._rung[name] = self._rung.get(name, 0) + 1
            if name in self._conditions:
                self._conditions[name].notify_all()

    def wait(self, name: str, seen: int, limit: float | None = None) -> None:
        """Wait until *name* was rung more often than *seen*, or it is time to look again."""
        limit = self.look_again if limit is None else min(limit, self.look_again)
        with self._lock:
            condition = self._conditions.setdefault(name, threading.Condition(self._lock))
            condition.wait_for(lambda: self._rung.get(name, 0) != seen, limit)


class Notifier:
    """Sends rings to other processes by NOTIFY, in a thread of its own. Not in the transaction that rings: PostgreSQL
    commits transactions that notify one after the other, whichever database they are of. A notification that fails is
    lost. *origin* tells our own notifications from others."""

    def __init__(self, name: str, reading: Engine, origin: str) -> None:
        self.name, self.reading, self.origin = name, reading, origin
        self._names: set[str] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    def ring(self, names: Collection[str]) -> None:
        """Have *names* sent soon."""
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
        """Send what is left, and end."""
        with self._condition:
            thread, self._over = self._thread, True
            self._condition.notify()
        if thread:
            thread.join(STOP_WITHIN)
