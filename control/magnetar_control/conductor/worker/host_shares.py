# SPDX-License-Identifier: GPL-3.0-or-later
"""What part of a conductor's workers actions at one host may have, so that a host that says nothing leaves some to the
others. What is beyond it waits in the queue, where it holds no worker.

An action counts for its server's host, and for any other host while it asks that one's agent: the other side of a
migration, or the host of a volume that lies elsewhere.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from magnetar_control.store.actions.actions import HostShare

#: So much smaller is the share of a host that is down: to ask it waits for nothing.
DOWN = 4
#: Seconds that an action waits for its turn at another host, holding its worker, and between two looks.
TURN, LOOK = 3.0, 0.1
Key = tuple[str, int]


class HostBusy(Exception):
    """As many actions as may ask a host already: this one goes back to the queue."""


class HostShares:
    """Which actions are in hand at which host. *most*: how many of a host may be; *is_up* tells of a host."""

    def __init__(self, most: int, is_up: Callable[[str], bool]) -> None:
        self._most, self._is_up = most, is_up
        self._hosts: dict[Key, str | None] = {}
        #: Since when actions in hand ask which other host.
        self._others: dict[tuple[Key, str], float] = {}
        self._lock, self._choosing = threading.Lock(), threading.Lock()

    def most(self, host: str) -> int:
        """How many actions of *host* may be in hand."""
        return self._most if self._is_up(host) else max(1, self._most // DOWN)

    def now(self) -> HostShare:
        """What the queue is told."""
        with self._lock:
            others = Counter(host for _key, host in self._others)
            return HostShare(self.most, others + Counter(host for host in self._hosts.values() if host), others)

    @contextlib.contextmanager
    def choosing(self, seconds: float = -1) -> Iterator[bool]:
        """Within, nobody else chooses which actions begin, until these are counted. Gives ``False`` when somebody has
        done so for *seconds* already."""
        mine = self._choosing.acquire(timeout=seconds)
        try:
            yield mine
        finally:
            if mine:
                self._choosing.release()

    def begin(self, key: Key, host: str | None, waits_for: str | None = None) -> bool:
        """Count an action, by its database and number, for its server's host, and for the other one that it *waits
        for*; ``False`` when it was in hand already."""
        with self._lock:
            new = key not in self._hosts
            self._hosts[key] = host
            if waits_for and waits_for != host:
                self._others.setdefault((key, waits_for), time.monotonic())
        return new

    @contextlib.contextmanager
    def resting(self, key: Key) -> Iterator[None]:
        """Within, an action in hand waits for a guest, and counts for no host."""
        with self._lock:
            host = self._hosts.get(key)
            others = {other: since for other, since in self._others.items() if other[0] == key}
            self._hosts[key] = None
            for other in others:
                del self._others[other]
        try:
            yield
        finally:
            with self._lock:
                self._hosts[key] = host
                self._others.update(others)

    def end(self, key: Key) -> None:
        """It is in hand no longer."""
        with self._lock:
            self._hosts.pop(key, None)
            for other in [one for one in self._others if one[0] == key]:
                del self._others[other]

    @contextlib.contextmanager
    def asking(self, key: Key, host: str) -> Iterator[None]:
        """Within, an action in hand counts for *host* too. It waits for its turn there, unless others have had theirs
        for longer than that already. Raises ``HostBusy``."""
        began, mine = time.monotonic(), self._enter(key, host)
        while mine is None:
            with self._lock:
                oldest = min((since for (_key, at), since in self._others.items() if at == host), default=began)
            if time.monotonic() >= min(began, oldest) + TURN:
                raise HostBusy(f"As many actions of this conductor as may ask host {host} at once do. It goes on when "
                               "one of them has ended.")
            time.sleep(LOOK)
            mine = self._enter(key, host)
        try:
            yield
        finally:
            if mine:
                with self._lock:
                    self._others.pop((key, host), None)

    def _enter(self, key: Key, host: str) -> bool | None:
        """Whether the action is counted for *host* newly; ``None`` where that has no room."""
        with self._lock:  # which is all it takes at the server's host
            if self._hosts.get(key) == host or (key, host) in self._others:
                return False
        with self.choosing():  # or the queue hands out the same room
            if self.now().left_for_others(host) <= 0:
                return None
            with self._lock:
                self._others[key, host] = time.monotonic()
            return True
