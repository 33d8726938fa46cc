# SPDX-License-Identifier: GPL-3.0-or-later
"""``Deadline``: a timer of an event loop that can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Optional


class Deadline:
    """A timer in an event loop that calls the function *missed* after some seconds, unless it is stopped before."""

    def __init__(self, missed: Callable[[], object]) -> None:
        self._missed = missed
        self._timer: Optional[asyncio.TimerHandle] = None

    def begin(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Start the timer in *loop*, so that it ends after *seconds*. Do nothing if it is already running."""
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._missed)

    def end(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
