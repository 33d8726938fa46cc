# SPDX-License-Identifier: GPL-3.0-or-later
"""The base class for sending changes in the database to the agents of hosts.

Each host has its own thread, so a slow host delays no other. A host that is down gets the changes when it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import ClassVar

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.engine.database import ChangeCheck, Database
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
#: Seconds until news is sent again to a host after a failure.
PAUSE = 5.0
#: Seconds after which due news is queried although the database looks unchanged.
QUIET = 15.0


class HostUpdateSender:
    """A sender of changes to the hosts of a conductor's cell; each subclass sends one kind of changes. ``about``: the
    kind, for logs and names of threads."""

    about: ClassVar[str]
    #: Errors that mean that the agent is away: nothing more is sent to it now.
    away: ClassVar[tuple[type[MagnetarError], ...]]

    def __init__(self, conductor: Conductor, over: threading.Event,
                 start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        self.conductor, self._over, self._start = conductor, over, start
        self._threads: dict[str, threading.Thread] = {}
        self._was_due = True

    @property
    def database(self) -> Database:
        """The database that holds the changes to send."""
        raise NotImplementedError  # each kind of news implements it

    @cached_property
    def _changes(self) -> ChangeCheck:
        return ChangeCheck(self.database, QUIET)

    def is_due(self) -> bool:
        """Return whether changes must be sent to any host of the cell. If the database has not changed, return the last
        answer without a query."""
        if self._changes.may_have_changed() or self._was_due:
            self._was_due = any(True for _host in self.waiting())
        return self._was_due

    def waiting(self) -> Iterable[str]:
        """Return the hosts of the cell for which changes wait in the database."""
        raise NotImplementedError  # each kind of news implements it

    def tell(self, host: str) -> int:
        """Send the next batch of waiting changes to *host*; return how many were sent, 0 if none waits. Raises errors
        as ``each`` does.
        """
        raise NotImplementedError  # each kind of news implements it

    def look(self) -> None:
        """Start a sending thread for each host that is up and has waiting changes, if it has no thread yet."""
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
        """Call all functions *acts*, each of which sends one change. Raises errors of the types ``away`` (the host
        does not answer) immediately. After other errors of the agent, continues with the next function, and finally
        raises the last error."""
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
