# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for servers to change. One thread for each database reads the servers of all waiting requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers

#: Seconds between two reads without the signal ``SERVERS_CHANGED``.
POLL_INTERVAL = 0.1
#: The state of a server that ``servers.fetch_server_stamps`` returns.
Stamp = tuple[Any, ...]


@dataclass(eq=False)
class _Wait:
    """A request that waits until the server *id* changes. *seen*: the server's stamp (a value that changes with the
    server) when the wait began. *cancelled*: returns true to end the wait early. *found*: the new stamp."""

    id: str
    seen: Stamp
    cancelled: Callable[[], bool]
    found: Stamp | None = None
    over: threading.Event = field(default_factory=threading.Event)


class ServerWatch:
    """The API requests that wait until a server changes. One thread for each database reads the stamps (values that
    change with the servers) of all awaited servers, as long as requests wait. *limit*: the time limit of a database
    query in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._waits: dict[Database, list[_Wait]] = {}
        self._lock = threading.Lock()

    def stamp(self, database: Database, id: str) -> Stamp | None:
        """Return the server's stamp, a value that changes with the server and its actions. Return ``None`` when the
        server is not in the database."""
        with database.read() as connection:
            return servers.fetch_server_stamps(connection, [id]).get(id)

    def changed(self, database: Database, id: str, stamp: Stamp, cancelled: Callable[[], bool],
                seconds: float) -> Stamp | None:
        """Wait until the stamp of the server *id* differs from *stamp*, and return the new stamp. Return ``None`` when
        the server is deleted, the database does not answer, *cancelled* returns true, or *seconds* have passed."""
        waiter = _Wait(id, stamp, cancelled)
        with self._lock:
            if database not in self._waits:
                self._waits[database] = []
                threading.Thread(target=self._run, args=(database,), name=f"watch {database.name}", daemon=True).start()
            self._waits[database].append(waiter)
        waiter.over.wait(seconds)
        with self._lock, suppress(KeyError, ValueError):
            self._waits[database].remove(waiter)
        return waiter.found

    def _run(self, database: Database) -> None:
        while True:
            signal_count = database.signals.count(servers.SERVERS_CHANGED)
            with self._lock:
                waits = list(self._waits[database])
                if not waits:
                    del self._waits[database]
                    return
            self._look(database, waits)
            database.signals.wait(servers.SERVERS_CHANGED, signal_count, POLL_INTERVAL)

    def _look(self, database: Database, waits: list[_Wait]) -> None:
        stamps: dict[str, Stamp] = {}
        # After any error the stamps are missing, so each waiting request wakes up and reads for itself.
        with suppress(Exception), statement_timeout(self._limit), database.read() as connection:
            stamps = servers.fetch_server_stamps(connection, {waiter.id for waiter in waits})
        for waiter in waits:
            waiter.found = stamps.get(waiter.id)
            if waiter.found != waiter.seen or waiter.cancelled():
                waiter.over.set()
