# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests wait for what comes true, not for a time: this machine may be slow today."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that anything is waited for. Idle, a guest boots in 3 to 7, and most else takes less than one.
LIMIT = 300.0


def eventually(find: Callable[[], Any], what: str = "it", seconds: float = LIMIT, *,
               passing: tuple[type[Exception], ...] = (), pause: float = 0.02) -> Any:
    """What *find* gives, as soon as it gives something. What it looks up need not be there yet: a ``LookupError`` is
    passed over, as are errors of *passing*. *pause*: seconds between two looks."""
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
