# SPDX-License-Identifier: GPL-3.0-or-later
"""One lock per resource: whoever changes a resource holds its lock, and locks nobody holds do not exist."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Held by who chooses what others may not choose too (a MAC, a device name), or removes what others may refer to. It
#: comes after all other locks: its holder waits for no other lock, no other host and no disk.
CHOICES = ("", "choices")


class Locks:
    """Locks by name, made when first wanted and gone with the last one who wants them; not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[tuple[str, str], tuple[threading.Lock, list[int]]] = {}

    def held(self, kind: str, name: str) -> bool:
        """Whether somebody holds it, or waits for it, just now."""
        with self._guard:
            return (kind, name) in self._held

    @contextmanager
    def hold_if_free(self, kind: str, name: str) -> Iterator[bool]:
        """Hold the lock, unless somebody holds it or waits for it; whether it is held. Waits for nobody."""
        with self._guard:
            free = (kind, name) not in self._held
            if free:
                lock, users = self._held[kind, name] = (threading.Lock(), [1])
                lock.acquire()
        try:
            yield free
        finally:
            if free:
                lock.release()
                self._let_go(kind, name, users)

    @contextmanager
    def hold(self, kind: str, name: str) -> Iterator[None]:
        """Hold the lock of *name* of *kind*; waits for it."""
        with self._guard:
            lock, users = self._held.setdefault((kind, name), (threading.Lock(), [0]))
            users[0] += 1
        try:
            with lock:
                yield
        finally:
            self._let_go(kind, name, users)

    def _let_go(self, kind: str, name: str, users: list[int]) -> None:
        with self._guard:
            users[0] -= 1
            if not users[0]:
                del self._held[(kind, name)]
