# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells hosts what has changed for them.

Each host is told by a thread of its own, so that a slow one keeps nobody; one that is away is told when it is back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import ClassVar

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.environment import Environment
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
#: Seconds until a host is asked again that could not be told.
PAUSE = 5.0


class HostNews:
    """Tells the hosts of a conductor's cell of *about*."""

    about: ClassVar[str]
    #: What an agent says, or is said of it, that need not be asked for more now.
    away: ClassVar[tuple[type[MagnetarError], ...]]

    def __init__(self, conductor: Environment, over: threading.Event,
                 start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        self.conductor, self._over, self._start = conductor, over, start
        self._threads: dict[str, threading.Thread] = {}

    def waiting(self) -> Iterable[str]:
        """The hosts of the cell that something is due at."""
        raise NotImplementedError  # each kind of news says it

    def tell(self, host: str) -> int:
        """Tell *host* of the first that are due; returns how many. Raises what the agent says (``each``)."""
        raise NotImplementedError  # each kind of news says it

    def look(self) -> None:
        """Begin to tell those hosts that are up and that nobody tells now."""
        self._threads = {host: thread for host, thread in self._threads.items() if thread.is_alive()}
        for host in self.waiting():
            if host not in self._threads and self.conductor.is_up(host):
                thread = threading.Thread(target=self._tell, args=(host,), name=f"{self.about} of {host}", daemon=True)
                self._threads[host] = thread
                self._start(thread)

    def _tell(self, host: str) -> None:
        try:
            while not self._over.is_set() and self.tell(host):
                pass
        except (MagnetarError, DBAPIError, OSError) as error:
            log.info("host %s is told of its %s later: %s", host, self.about, error, extra={"host": host})
            self._over.wait(PAUSE)

    def each(self, acts: Iterable[Callable[[], object]]) -> None:
        """Do them all. Raises what the agent refuses when the others are done, and ``away`` at once."""
        refused: MagnetarError | None = None
        for act in acts:
            try:
                act()
            except self.away:
                raise
            except MagnetarError as error:
                refused = error
        if refused is not None:
            raise refused
