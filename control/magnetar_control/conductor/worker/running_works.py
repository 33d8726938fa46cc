# SPDX-License-Identifier: GPL-3.0-or-later
"""The running works of a conductor. ``leased_actions`` also counts leased actions that still wait for a worker."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from .leased_actions import Key


class RunningWork(Protocol):
    """The attributes of a ``Work`` (an action while a worker thread runs it) that other threads set. *cancelled*: the
    event that is set when the action is cancelled. *last_report*: (name of a host, the last report of its agent about
    the server); ``None`` without a report."""

    cancelled: threading.Event
    last_report: tuple[str, Mapping[str, Any]] | None

    @property
    def id(self) -> str:
        """The server's uuid."""


class RunningWorks:
    """The works (objects of the class ``Work``) of the actions that this conductor runs now, by (name of the database,
    id of the action)."""

    def __init__(self) -> None:
        self.works: dict[Key, Any] = {}
        self._lock = threading.Lock()

    def add_works(self, works: Mapping[Key, RunningWork]) -> None:
        """Add works that begin now. *works*: the works by (name of the database, id of the action)."""
        with self._lock:
            self.works.update(works)

    def remove_works(self, keys: Collection[Key]) -> None:
        """Remove the works with these *keys*, which have ended."""
        with self._lock:
            for key in keys:
                self.works.pop(key, None)

    def works_of_database(self, name: str) -> dict[int, RunningWork]:
        """Return the running works of the database *name*, by the id of the action."""
        with self._lock:
            return {number: work for (database, number), work in self.works.items() if database == name}

    def tell_action(self, host: str, document: Mapping[str, Any]) -> bool:
        """Pass *document*, the report of a server by the agent of *host*, to the running action of that server. Return
        ``False`` if this conductor runs no action of the server."""
        with self._lock:
            works = [work for work in self.works.values() if work.id == document["id"]]
            for work in works:
                work.last_report = host, document
            return bool(works)
