# SPDX-License-Identifier: GPL-3.0-or-later
"""What part of a conductor's workers actions at one host may have, so that a host that says nothing leaves some to the
others. What is beyond it waits in the queue, where it holds no worker."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from magnetar_control.store.actions import HostShare

#: So much smaller is the share of a host that is down: to ask it waits for nothing.
DOWN = 4
Key = tuple[str, int]


class HostShares:
    """Which actions are in hand at which host. *most*: how many of a host may be; *is_up* tells of a host."""

    def __init__(self, most: int, is_up: Callable[[str], bool]) -> None:
        self._most, self._is_up = most, is_up
        self._hosts: dict[Key, str | None] = {}
        self._lock, self._choosing = threading.Lock(), threading.Lock()

    def most(self, host: str) -> int:
        """How many actions of *host* may be in hand."""
        return self._most if self._is_up(host) else max(1, self._most // DOWN)

    def now(self) -> HostShare:
        """What the queue is told."""
        with self._lock:
            return HostShare(self.most, Counter(host for host in self._hosts.values() if host))

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

    def begin(self, key: Key, host: str | None) -> bool:
        """Count an action, by its database and number; ``False`` when it was in hand already."""
        with self._lock:
            new = key not in self._hosts
            self._hosts[key] = host
        return new

    def end(self, key: Key) -> None:
        """It is in hand no longer."""
        with self._lock:
            self._hosts.pop(key, None)
