# SPDX-License-Identifier: GPL-3.0-or-later
"""A deadline in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Optional


class Deadline:
    """Calls *missed* when the deadline passes. There is one wait at a time: ``begin`` during a wait changes nothing."""

    def __init__(self, missed: Callable[[], object]) -> None:
        self._missed = missed
        self._timer: Optional[asyncio.TimerHandle] = None

    def begin(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Start waiting, unless a wait is in progress."""
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._missed)

    def end(self) -> None:
        """Stop waiting: the event has come, or does not matter any longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
