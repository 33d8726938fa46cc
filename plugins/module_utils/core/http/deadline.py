# SPDX-License-Identifier: GPL-3.0-or-later
"""Something that is to have come by a moment, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Optional


class Deadline:
    """Calls *missed* where nothing has come in time. One wait at a time: to begin while there is one changes nothing.
    """

    def __init__(self, missed: Callable[[], object]) -> None:
        self._missed = missed
        self._timer: Optional[asyncio.TimerHandle] = None

    def begin(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """It is awaited from now on."""
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._missed)

    def end(self) -> None:
        """It has come, or is awaited no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
