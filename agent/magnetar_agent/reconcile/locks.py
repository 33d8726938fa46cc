# SPDX-License-Identifier: GPL-3.0-or-later
"""One lock per resource, held while the resource is changed. A lock without holder does not exist."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Lock for choosing a unique value (a MAC, a device name), and for removing resources that others may refer to. It is
#: taken after all other locks: its holder waits for no other lock, no other host and no disk.
CHOICES = ("", "choices")


class Locks:
    """Locks by resource type and name. They are created on first use, and not reentrant."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[tuple[str, str], tuple[threading.Lock, list[int]]] = {}

    def held(self, kind: str, name: str) -> bool:
        """Return whether a thread holds the lock or waits for it."""
        with self._guard:
            return (kind, name) in self._held

    @contextmanager
    def hold_if_free(self, kind: str, name: str) -> Iterator[bool]:
        """Hold the lock during the block if no thread holds it or waits for it. Never wait. Yield whether the lock was
        free."""
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
                self._release(kind, name, users)

    @contextmanager
    def hold(self, kind: str, name: str) -> Iterator[None]:
        """Hold the lock of the resource type *kind* and *name* during the block. Wait until it is free."""
        with self._guard:
            lock, users = self._held.setdefault((kind, name), (threading.Lock(), [0]))
            users[0] += 1
        try:
            with lock:
                yield
        finally:
            self._release(kind, name, users)

    def _release(self, kind: str, name: str, users: list[int]) -> None:
        with self._guard:
            users[0] -= 1
            if not users[0]:
                del self._held[(kind, name)]
