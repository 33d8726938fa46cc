# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers of content: limits for all of them, for one project, and for the speed of a client.

Services and administrators are not counted: transfers of conductors must not wait for users.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from magnetar_core.errors import TooManyRequests, TooSlow, Unavailable

#: Seconds after which a refused client may try again.
LATER = {"Retry-After": "10"}


class TransferLimit:
    """The limit of concurrent uploads, downloads or streams of events. *kind* and *content*: the two parts of their
    name in error messages, such as "uploads" and " of image content". *most*: the limit for all projects together.
    *of_project*: the limit for one project. *of_admins*: whether administrators and services are counted too."""

    def __init__(self, kind: str, most: int, of_project: int, content: str = " of image content",
                 of_admins: bool = False) -> None:
        self.what, self.most, self.of_project, self._of_admins = kind + content, most, of_project, of_admins
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, context: Any) -> Callable[[], None]:
        """Count one more transfer of the caller *context*. Return a function that must be called once, when the
        transfer ends. Raises ``TooManyRequests`` at the project's limit, ``Unavailable`` at the limit for all."""
        if context is None or (not self._of_admins and (context.is_admin or context.is_service)):
            return lambda: None
        owner = context.project_id or context.user_id
        with self._lock:
            if self._taken[owner] >= self.of_project:
                raise TooManyRequests(
                    f"A project may have {self.of_project} of the {self.most} {self.what} that go on at once, and "
                    "this one has them all. Try again when one of them has ended.", headers=LATER)
            if self._taken.total() >= self.most:
                raise Unavailable(f"All {self.most} {self.what} that may go on at once do. Try again in a moment.",
                                  headers=LATER)
            self._taken[owner] += 1
        return lambda: self._free(owner)

    def _free(self, owner: str) -> None:
        with self._lock:
            self._taken[owner] -= 1
            if self._taken[owner] <= 0:
                del self._taken[owner]


@dataclass(frozen=True)
class Pace:
    """The minimum speed of a client: *rate* bytes per second, on average over *window* seconds of waiting for the
    client."""

    rate: int = 1024
    window: float = 120.0

    def clock(self) -> Clock:
        """Return a new ``Clock`` that checks the speed of one transfer."""
        return Clock(self)


class Clock:
    """Measures how long a transfer has waited for its client, and how many bytes were transferred meanwhile."""

    def __init__(self, pace: Pace) -> None:
        self._pace, self._waited, self._moved = pace, 0.0, 0

    @property
    def left(self) -> float:
        """The seconds of waiting that remain until ``note`` checks the client's speed."""
        return max(0.001, self._pace.window - self._waited)

    def note(self, seconds: float, moved: int) -> None:
        """Record that a transfer has waited *seconds* for its client, and that *moved* bytes were transferred
        meanwhile. Raises ``TooSlow`` at the end of a window in which the client was slower than the minimum."""
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
    """The limits of uploads and downloads in one process, and the minimum speed of clients."""

    uploads: TransferLimit = field(default_factory=lambda: TransferLimit("uploads", 32, 8))
    downloads: TransferLimit = field(default_factory=lambda: TransferLimit("downloads", 64, 16))
    pace: Pace = Pace()


class Pieces(Iterator[bytes]):
    """An iterator over the chunks of a response. Its method ``close`` calls *done* once: after the last chunk was sent,
    or when the transfer is aborted."""

    def __init__(self, pieces: Iterator[bytes], done: Callable[[], None]) -> None:
        self._pieces, self._done = pieces, done

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """Call *done*, unless it was called before, and close the underlying iterator."""
        done, self._done = self._done, lambda: None
        done()
        if (close := getattr(self._pieces, "close", None)) is not None:
            with contextlib.suppress(ValueError):  # a thread is reading because the process ends
                close()
