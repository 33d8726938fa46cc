# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that wait for a host while their caller waits: each host and each project has its share of them, so that a
host that says nothing keeps only those waiting who ask for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

from magnetar_core.errors import Unavailable

#: How many may wait for a host, and how many of a project, and seconds that the next waits for its turn.
OF_HOST, OF_PROJECT, TURN = 8, 16, 3.0
#: Seconds that an agent has for its answer, and that a caller waits for what conductors do.
ANSWER, DONE = 8.0, 9.0
#: Seconds after which who is refused may ask again.
AGAIN = "5"
#: What is waited for, in words.
WAITED_FOR = {"host": "the server's host", "project": "hosts of servers of the project"}


class Shares:
    """Who waits, and since when. Hosts that answer let the next in at once; one who has waited for ``TURN`` seconds
    himself says that the others would wait in vain."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[tuple[str, str], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def of(self, host: str, project: str) -> Iterator[None]:
        """Within, the caller waits for *host*. Raises ``Unavailable`` when the share of host or project is used up."""
        keys, began = {("host", host): OF_HOST, ("project", project): OF_PROJECT}, time.monotonic()
        with self._changed:
            while full := next((key for key, most in keys.items() if len(self._since.get(key, ())) >= most), None):
                left = min(began, self._since[full][0]) + TURN - time.monotonic()
                if left <= 0:
                    raise Unavailable(f"Too many requests wait for {WAITED_FOR[full[0]]} already, and get no answer. "
                                      "Try again in a few seconds.", headers={"Retry-After": AGAIN})
                self._changed.wait(left)
            began = time.monotonic()
            for key in keys:
                self._since[key].append(began)
        try:
            yield
        finally:
            with self._changed:
                for key in keys:
                    self._since[key].remove(began)
                    if not self._since[key]:
                        del self._since[key]
                self._changed.notify_all()
