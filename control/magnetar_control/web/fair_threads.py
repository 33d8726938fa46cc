# SPDX-License-Identifier: GPL-3.0-or-later
"""Threads that are shared fairly: no client takes all of them, and waiting clients take turns."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .answer import Fault

T = TypeVar("T")
#: Seconds after which a refused client may try again.
LATER = {"Retry-After": "5"}


class FairThreads:
    """A pool of *most* threads that is shared fairly between keys (client addresses or users). One key may occupy at
    most *share* threads, and have at most *waiting* waiting calls. Use it only in the event loop."""

    def __init__(self, name: str, most: int, share: int, waiting: int) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._most, self._share, self._waits = most, share, waiting
        self._running: Counter[str] = Counter()
        #: The waiting calls, by key; the key with the next turn is the first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, key: str, call: Callable[[], T]) -> T:
        """Run *call* in a thread and return its result. Raises ``Fault`` 429 when too many calls of *key* are already
        waiting."""
        if not self._may_run(key):
            await self._wait_for_thread(key)
        else:
            self._running[key] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        finally:
            self._ended(key)

    def _may_run(self, key: str) -> bool:
        return self._running.total() < self._most and self._running[key] < self._share

    async def _wait_for_thread(self, key: str) -> None:
        """Wait until a thread is free for a call of *key*. Raises ``Fault`` 429 when too many calls of *key* are
        already waiting."""
        queue = self._waiting.setdefault(key, deque())
        if len(queue) >= self._waits:
            raise Fault(429, f"{len(queue)} requests of this kind from {key} wait for their turn, and no more may. Try "
                             "again in a moment.", LATER)
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._ended(key)
            raise

    def _ended(self, key: str) -> None:
        """Record that a call of *key* has ended, and start the next waiting call that is allowed to run."""
        self._running[key] -= 1
        if self._running[key] <= 0:
            del self._running[key]
        for other in list(self._waiting):
            queue = self._waiting[other]
            while queue and queue[0].done():  # cancelled
                queue.popleft()
            if queue and not self._may_run(other):
                continue
            del self._waiting[other]
            if queue:
                self._running[other] += 1
                queue.popleft().set_result(None)
                if queue:
                    self._waiting[other] = queue  # at the end: the others come first
                return
