# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for an event in tests, instead of for a fixed time, because the machine may be slow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of every wait. On an idle machine a guest boots in 3 to 7, and most other work takes less than one.
LIMIT = 300.0


def eventually(find: Callable[[], Any], what: str = "it", seconds: float = LIMIT, *,
               passing: tuple[type[Exception], ...] = (), pause: float = 0.02) -> Any:
    """Call *find* until its result is true, and return the result. A ``LookupError`` and errors of *passing* count as
    not yet. *what*: the expected event, for the error. *pause*: seconds between two calls."""
    end, seen = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            seen = find()
        except (LookupError, *passing) as error:
            seen = error
        else:
            if seen:
                return seen
        time.sleep(pause)
    raise AssertionError(f"{what}: not within {seconds:g} s; last seen: {seen!r}")
