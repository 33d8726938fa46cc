# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for servers to change: one thread looks for all who wait, however many they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers

#: Seconds between two looks when nobody rings.
LOOK = 0.1
#: What ``servers.stamps`` tells of a server.
Stamp = tuple[Any, ...]


@dataclass(eq=False)
class _Wait:
    """Somebody waits for the server *id* to have another stamp than *seen*, or until it is *cancelled*."""

    id: str
    seen: Stamp
    cancelled: Callable[[], bool]
    found: Stamp | None = None
    over: threading.Event = field(default_factory=threading.Event)


class ServerWatch:
    """Who waits for which servers, by database. Each has a thread while somebody waits. *limit*: seconds for its
    answers."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._waits: dict[Database, list[_Wait]] = {}
        self._lock = threading.Lock()

    def stamp(self, database: Database, id: str) -> Stamp | None:
        """That of a server; ``None`` when the database does not have it."""
        with database.read() as connection:
            return servers.stamps(connection, [id]).get(id)

    def changed(self, database: Database, id: str, seen: Stamp, cancelled: Callable[[], bool],
                seconds: float) -> Stamp | None:
        """Wait until the server has another stamp, and return it; ``None`` when it is gone, when nobody can tell, or
        when the wait was *cancelled* or took so many *seconds*."""
        one = _Wait(id, seen, cancelled)
        with self._lock:
            if database not in self._waits:
                self._waits[database] = []
                threading.Thread(target=self._run, args=(database,), name=f"watch {database.name}", daemon=True).start()
            self._waits[database].append(one)
        one.over.wait(seconds)
        with self._lock, suppress(KeyError, ValueError):
            self._waits[database].remove(one)
        return one.found

    def _run(self, database: Database) -> None:
        while True:
            rung = database.bell.count(servers.SERVERS_BELL)
            with self._lock:
                waits = list(self._waits[database])
                if not waits:
                    del self._waits[database]
                    return
            self._look(database, waits)
            database.bell.wait(servers.SERVERS_BELL, rung, LOOK)

    def _look(self, database: Database, waits: list[_Wait]) -> None:
        found: dict[str, Stamp] = {}
        # Whatever is the matter, each of them looks himself then, and is told.
        with suppress(Exception), statement_timeout(self._limit), database.read() as connection:
            found = servers.stamps(connection, {one.id for one in waits})
        for one in waits:
            one.found = found.get(one.id)
            if one.found != one.seen or one.cancelled():
                one.over.set()
