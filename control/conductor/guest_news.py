# SPDX-License-Identifier: GPL-3.0-or-later
"""Has guests told, while they run, of a new name and new metadata of their servers.

Who changes a server notes in its row that its guest is to be told (``store.servers.change``). Each host with such
servers is told by a thread of its own, so that a slow one keeps nobody; one that is away is told when it is back. A
server with an action in hand is told after it. Telling again does no harm, and what is older than what a host knows
changes nothing there, so that two conductors may do it at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import orjson
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.tables import servers
from magnetar_core.errors import MagnetarError, NotFound

from .environment import Environment
from .guest_data import guest_data
from .work import DOWN

log = logging.getLogger(__name__)
#: Servers of a host that are told of in one go.
AT_ONCE = 100
#: Seconds until a host is asked again that could not be told.
PAUSE = 5.0
#: Those whose guests are to be told now.
DUE = (servers.c.guest_data_due.is_(True), servers.c.host.is_not(None), servers.c.task_state.is_(None),
       servers.c.deleted_at.is_(None))
_HOSTS = select(servers.c.host).where(*DUE).distinct()


class GuestNews:
    """Tells the hosts of a conductor's cell."""

    def __init__(self, conductor: Environment, over: threading.Event,
                 start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        self.conductor, self._over, self._start = conductor, over, start
        self._threads: dict[str, threading.Thread] = {}

    def look(self) -> None:
        """Begin to tell those hosts that are up and that nobody tells now."""
        self._threads = {host: thread for host, thread in self._threads.items() if thread.is_alive()}
        with self.conductor.database.read() as connection:
            waiting = connection.execute(_HOSTS).scalars().all()
        for host in waiting:
            if host not in self._threads and self.conductor.is_up(host):
                thread = threading.Thread(target=self._tell, args=(host,), name=f"guests of {host}", daemon=True)
                self._threads[host] = thread
                self._start(thread)

    def _tell(self, host: str) -> None:
        try:
            while not self._over.is_set() and self.tell(host):
                pass
        except (MagnetarError, DBAPIError, OSError) as error:
            log.info("guests of host %s are told later: %s", host, error, extra={"host": host})
            self._over.wait(PAUSE)

    def tell(self, host: str) -> int:
        """Tell *host* of the first servers that are due; returns how many. Raises what the agent says, of one server
        when the others have been told."""
        failed: MagnetarError | None = None
        database = self.conductor.database
        with database.read() as connection:
            rows = connection.execute(select(servers).where(*DUE, servers.c.host == host).limit(AT_ONCE)).all()
        if not rows:
            return 0
        with self.conductor.client(host) as client:
            for row in rows:
                try:
                    client.event("server", row.id, "tell_guest", {
                        "revision": row.guest_revision, "metadata": orjson.loads(row.metadata),
                        "guest_data": guest_data(self.conductor, row, host)},
                        request_id=f"tell-guest-{row.id}-{row.guest_revision}")
                except NotFound:  # whoever brings it to a host tells all
                    log.debug("server %s is not on host %s", row.id, host)
                except DOWN:
                    raise
                except MagnetarError as error:
                    failed = error
                    continue
                with database.write() as connection:
                    connection.execute(update(servers).where(
                        servers.c.id == row.id, servers.c.host == host,
                        servers.c.guest_revision == row.guest_revision).values(guest_data_due=None))
        if failed:
            raise failed
        return len(rows)
