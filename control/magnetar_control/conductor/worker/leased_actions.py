# SPDX-License-Identifier: GPL-3.0-or-later
"""The share of a conductor's workers that actions on one host may use, so that a silent host leaves workers for the
others. Further actions wait in the queue, without a worker.

An action counts for its server's host, and for any other host while it asks that host's agent: the other side of a
migration, or the host of a volume."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from magnetar_control.store.actions.actions import HostLimits

#: Divisor of the share of a host that is down: few workers should wait for its agent.
DOWN = 4
#: Seconds that an action waits, with its worker, for its turn at another host; seconds between two checks.
TURN, POLL_INTERVAL = 3.0, 0.1
Key = tuple[str, int]


class HostBusy(Exception):
    """The error that this conductor already runs the maximum number of actions for a host. The action that needs the
    host goes back to the queue."""


class LeasedActions:
    """A counter, by host, of the actions that this conductor has leased from queues (reserved for itself for a limited
    time). *most*: the maximum for a host that is up; for a host that is down the maximum is lower. *is_up*: returns
    whether a host is up."""

    def __init__(self, most: int, is_up: Callable[[str], bool]) -> None:
        self._most, self._is_up = most, is_up
        self._hosts: dict[Key, str | None] = {}
        #: The time when an action began to use a host other than its server's, by action and host.
        self._others: dict[tuple[Key, str], float] = {}
        self._lock, self._choosing = threading.Lock(), threading.Lock()

    def most(self, host: str) -> int:
        """Return the maximum number of actions that this conductor may run for *host* at the same time."""
        return self._most if self._is_up(host) else max(1, self._most // DOWN)

    def now(self) -> HostLimits:
        """Return the present number and the maximum of actions by host, as the ``HostLimits`` that the next read of the
        queue must observe."""
        with self._lock:
            asks_by_host = Counter(host for _key, host in self._others)
            return HostLimits(self.most, asks_by_host + Counter(host for host in self._hosts.values() if host),
                              asks_by_host)

    @contextlib.contextmanager
    def choosing(self, seconds: float = -1) -> Iterator[bool]:
        """Hold the lock under which actions are chosen from the queue and then counted. Yield whether this thread has
        the lock: ``False`` if another thread still has it after *seconds* (-1: no limit)."""
        mine = self._choosing.acquire(timeout=seconds)
        try:
            yield mine
        finally:
            if mine:
                self._choosing.release()

    def begin(self, key: Key, host: str | None, waits_for: str | None = None) -> bool:
        """Count the action *key* (database name, id of the action) for *host*, the host of the action's server, and for
        *waits_for*, another host that the action needs. Return ``False`` if the action was already counted."""
        with self._lock:
            new = key not in self._hosts
            self._hosts[key] = host
            if waits_for and waits_for != host:
                self._others.setdefault((key, waits_for), time.monotonic())
        return new

    @contextlib.contextmanager
    def resting(self, key: Key) -> Iterator[None]:
        """Do not count the action *key* for any host while the ``with`` block runs. Used while the action waits for
        something outside the conductor, such as the shutdown of a guest."""
        with self._lock:
            host = self._hosts.get(key)
            asks_elsewhere = {other: since for other, since in self._others.items() if other[0] == key}
            self._hosts[key] = None
            for other in asks_elsewhere:
                del self._others[other]
        try:
            yield
        finally:
            with self._lock:
                self._hosts[key] = host
                self._others.update(asks_elsewhere)

    def end(self, key: Key) -> None:
        """Stop counting the action *key*: this conductor no longer runs it."""
        with self._lock:
            self._hosts.pop(key, None)
            for other in [ask for ask in self._others if ask[0] == key]:
                del self._others[other]

    @contextlib.contextmanager
    def asking(self, key: Key, host: str) -> Iterator[None]:
        """Also count the action *key* for *host* while the ``with`` block runs. If the maximum of the host is reached,
        wait first. Raises ``HostBusy`` if the wait takes longer than ``TURN`` seconds, or if another action has used
        the host for longer than ``TURN`` seconds."""
        began, mine = time.monotonic(), self._enter(key, host)
        while mine is None:
            with self._lock:
                oldest = min((since for (_key, at), since in self._others.items() if at == host), default=began)
            if time.monotonic() >= min(began, oldest) + TURN:
                raise HostBusy(f"As many actions of this conductor as may ask host {host} at once do. It goes on when "
                               "one of them has ended.")
            time.sleep(POLL_INTERVAL)
            mine = self._enter(key, host)
        try:
            yield
        finally:
            if mine:
                with self._lock:
                    self._others.pop((key, host), None)

    def _enter(self, key: Key, host: str) -> bool | None:
        """Count the action *key* for *host*. Return ``True`` if it is counted now, ``False`` if it was counted
        already, and ``None`` if the host's maximum is reached."""
        with self._lock:  # all that is needed at the server's host
            if self._hosts.get(key) == host or (key, host) in self._others:
                return False
        with self.choosing():  # otherwise the queue could hand out the same room
            if self.now().left_for_others(host) <= 0:
                return None
            with self._lock:
                self._others[key, host] = time.monotonic()
            return True
