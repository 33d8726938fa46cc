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
    """The base class of senders that send queued changes of one type, such as security groups, to the hosts of a
    conductor's cell. ``about``: the name of this type, for logs and thread names."""

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
        """The database that has the queue of changes to send."""
        raise NotImplementedError  # each kind of news implements it

    @cached_property
    def _changes(self) -> ChangeCheck:
        return ChangeCheck(self.database, QUIET)

    def is_due(self) -> bool:
        """Return whether changes are queued for any host of the cell. Query the database only if it may have changed
        since the last call, or if the last call returned ``True``; otherwise return ``False``."""
        if self._changes.may_have_changed() or self._was_due:
            self._was_due = any(True for _host in self.waiting())
        return self._was_due

    def waiting(self) -> Iterable[str]:
        """Return the names of the cell's hosts for which changes are queued in the database."""
        raise NotImplementedError  # each kind of news implements it

    def tell(self, host: str) -> int:
        """Send the next batch of queued changes to *host*. Return the number of changes sent, 0 if none were queued.
        Raises the errors of the agent."""
        raise NotImplementedError  # each kind of news implements it

    def start_senders(self) -> None:
        """Start a sending thread for each host that is up and has queued changes, unless a sending thread for this host
        runs already."""
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
        """Call all functions *acts*, each of which sends one change. An error of a type in ``away`` (the host does not
        answer) is raised immediately. After any other error of the agent, continue with the next function, and raise
        the last of these errors at the end."""
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
