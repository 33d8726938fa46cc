# SPDX-License-Identifier: GPL-3.0-or-later
"""Content that comes and goes: how much of it at once, how much of one project's, and how slow a client may be.

Services and administrators are not counted: what conductors send and fetch waits for no user.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from magnetar_core.errors import TooManyRequests, TooSlow, Unavailable

#: Who is refused may ask again after so many seconds.
LATER = {"Retry-After": "10"}


class Places:
    """Places of transfers in one direction. *what*: how they are called. *most*: how many there are; *of_project*: how
    many of these one project may have."""

    def __init__(self, what: str, most: int, of_project: int) -> None:
        self.what, self.most, self.of_project = what, most, of_project
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, context: Any) -> Callable[[], None]:
        """Take a place for a caller (``services.Context``); what is returned gives it back, once. Raises
        ``TooManyRequests``, ``Unavailable``."""
        if context is None or context.is_admin or context.is_service:
            return lambda: None
        whose = context.project_id or context.user_id
        with self._lock:
            if self._taken[whose] >= self.of_project:
                raise TooManyRequests(
                    f"A project may have {self.of_project} of the {self.most} {self.what} of image content that go on "
                    "at once, and this one has them all. Try again when one of them has ended.", headers=LATER)
            if self._taken.total() >= self.most:
                raise Unavailable(f"All {self.most} {self.what} of image content that may go on at once do. Try again "
                                  "in a moment.", headers=LATER)
            self._taken[whose] += 1
        return lambda: self._free(whose)

    def _free(self, whose: str) -> None:
        with self._lock:
            self._taken[whose] -= 1
            if self._taken[whose] <= 0:
                del self._taken[whose]


@dataclass(frozen=True)
class Pace:
    """What a client has to keep up with: so many bytes a second (*rate*), on the average of *window* seconds in which
    it was waited for."""

    rate: int = 1024
    window: float = 120.0

    def clock(self) -> Clock:
        """For one transfer."""
        return Clock(self)


class Clock:
    """Adds up how long a client was waited for, and what came of it."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._waited, self._moved = pace, 0.0, 0

    @property
    def left(self) -> float:
        """Seconds until it is known whether the client is too slow."""
        return max(0.001, self._pace.window - self._waited)

    def note(self, seconds: float, moved: int) -> None:
        """It was waited for *seconds*, and *moved* bytes. Raises ``TooSlow``."""
        self._waited += seconds
        self._moved += moved
        if self._waited >= self._pace.window:
            if self._moved < self._pace.rate * self._pace.window:
                raise TooSlow(f"Only {self._moved} bytes came in {self._waited:.0f} seconds; at least "
                              f"{self._pace.rate} a second must. Nothing was kept: send all of it again, on a quicker "
                              "line.")
            self._waited, self._moved = 0.0, 0


@dataclass(frozen=True)
class Transfers:
    """The limits of a process."""

    uploads: Places = field(default_factory=lambda: Places("uploads", 32, 8))
    downloads: Places = field(default_factory=lambda: Places("downloads", 64, 16))
    pace: Pace = Pace()


class Pieces(Iterator[bytes]):
    """Content that goes out, with what is done when it has gone, or will not."""

    def __init__(self, pieces: Iterator[bytes], done: Callable[[], None]) -> None:
        self._pieces, self._done = pieces, done

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """May be called again."""
        done, self._done = self._done, lambda: None
        done()
        if (close := getattr(self._pieces, "close", None)) is not None:
            with contextlib.suppress(ValueError):  # a thread reads just now, since the process ends
                close()
