# SPDX-License-Identifier: GPL-3.0-or-later
"""Has guests told, while they run, of a new name and new metadata of their servers.

Who changes a server notes in its row that its guest is to be told (``store.servers.servers.change``). A server with an
action in hand is told after it. Telling again does no harm, and what is older than what a host knows changes nothing
there, so that two conductors may do it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import orjson
from sqlalchemy import select, update

from magnetar_control.conductor.steps.guest_data import guest_data
from magnetar_control.conductor.steps.host_news import HostNews
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.store.engine.tables import servers
from magnetar_core.errors import NotFound
from magnetar_core.http.client import Client

log = logging.getLogger(__name__)
#: Servers of a host that are told of in one go.
AT_ONCE = 100
#: Those whose guests are to be told now.
DUE = (servers.c.guest_data_due.is_(True), servers.c.host.is_not(None), servers.c.task_state.is_(None),
       servers.c.deleted_at.is_(None))
_HOSTS = select(servers.c.host).where(*DUE).distinct()


class GuestNews(HostNews):
    """Tells the guests of a conductor's cell."""

    about, away = "guests", DOWN

    def waiting(self) -> Iterable[str]:
        with self.conductor.database.read() as connection:
            return connection.execute(_HOSTS).scalars().all()

    def tell(self, host: str) -> int:
        with self.conductor.database.read() as connection:
            rows = connection.execute(select(servers).where(*DUE, servers.c.host == host).limit(AT_ONCE)).all()
        if rows:
            with self.conductor.client(host) as client:
                self.each(partial(self._tell_guest, client, host, row) for row in rows)
        return len(rows)

    def _tell_guest(self, client: Client, host: str, row: Any) -> None:
        try:
            client.event("server", row.id, "tell_guest", {
                "revision": row.guest_revision, "metadata": orjson.loads(row.metadata),
                "guest_data": guest_data(self.conductor, row, host)},
                request_id=f"tell-guest-{row.id}-{row.guest_revision}")
        except NotFound:  # whoever brings it to a host tells all
            log.debug("server %s is not on host %s", row.id, host)
        with self.conductor.database.write() as connection:
            connection.execute(update(servers).where(
                servers.c.id == row.id, servers.c.host == host,
                servers.c.guest_revision == row.guest_revision).values(guest_data_due=None))
