# SPDX-License-Identifier: GPL-3.0-or-later
"""The running actions of a conductor. ``leased_actions`` also counts leased actions that still wait for a worker."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from .leased_actions import Key


class InterruptibleAction(Protocol):
    """The attributes of a ``RunningAction`` that other threads set. *cancelled*: the
    event that is set when the action is cancelled. *last_report*: (name of a host, the last report of its agent about
    the server); ``None`` without a report."""

    cancelled: threading.Event
    last_report: tuple[str, Mapping[str, Any]] | None

    @property
    def id(self) -> str:
        """The server's uuid."""


class ActionsInProgress:
    """The actions that this conductor runs now (``RunningAction`` objects), by (name of the database, id of the
    action)."""

    def __init__(self) -> None:
        self.actions: dict[Key, Any] = {}
        self._lock = threading.Lock()

    def add_actions(self, actions: Mapping[Key, InterruptibleAction]) -> None:
        """Add actions that begin now. *actions*: the actions by (name of the database, id of the action)."""
        with self._lock:
            self.actions.update(actions)

    def remove_actions(self, keys: Collection[Key]) -> None:
        """Remove the actions with these *keys*, which have ended."""
        with self._lock:
            for key in keys:
                self.actions.pop(key, None)

    def actions_of_database(self, name: str) -> dict[int, InterruptibleAction]:
        """Return the running actions of the database *name*, by the id of the action."""
        with self._lock:
            return {number: work for (database, number), work in self.actions.items() if database == name}

    def tell_action(self, host: str, document: Mapping[str, Any]) -> bool:
        """Pass *document*, the report of a server by the agent of *host*, to the running action of that server. Return
        ``False`` if this conductor runs no action of the server."""
        with self._lock:
            actions = [work for work in self.actions.values() if work.id == document["id"]]
            for work in actions:
                work.last_report = host, document
            return bool(actions)
