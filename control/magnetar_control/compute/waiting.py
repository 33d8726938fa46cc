# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests whose caller waits for a host. The waiting requests of each host and each project are limited, so that a
silent host blocks only its own requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

from magnetar_core.errors import Unavailable

#: Limits of waiting requests, for a host and for a project; seconds after which further requests are refused.
OF_HOST, OF_PROJECT, TURN = 8, 16, 3.0
#: Seconds for an agent's answer, and seconds that a request waits for the conductors.
ANSWER, DONE = 8.0, 9.0
#: Seconds after which a refused client may try again.
AGAIN = "5"
#: The wording of each limit in messages.
WAITED_FOR = {"host": "the server's host", "project": "hosts of servers of the project"}


class Shares:
    """Limits on the number of requests that wait for an answer of a host at the same time: for each host, and for each
    project. A request above a limit waits until an earlier request has ended. The new request is refused when it has
    waited for ``TURN`` seconds, or when the oldest of the earlier requests has waited that long for its answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._since: dict[tuple[str, str], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def of(self, host: str, project: str) -> Iterator[None]:
        """Return a context manager that waits until *host* and *project* are below their limits, and counts the
        caller's request for both while the ``with`` block runs. Raises ``Unavailable`` when the caller would wait too
        long."""
        keys, began = {("host", host): OF_HOST, ("project", project): OF_PROJECT}, time.monotonic()
        with self._changed:
            while full := next((key for key, most in keys.items() if len(self._since.get(key, ())) >= most), None):
                remaining = min(began, self._since[full][0]) + TURN - time.monotonic()
                if remaining <= 0:
                    raise Unavailable(f"Too many requests wait for {WAITED_FOR[full[0]]} already, and get no answer. "
                                      "Try again in a few seconds.", headers={"Retry-After": AGAIN})
                self._changed.wait(remaining)
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
