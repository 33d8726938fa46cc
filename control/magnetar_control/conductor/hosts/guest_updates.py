# SPDX-License-Identifier: GPL-3.0-or-later
"""The sending of changed names and metadata of servers to their running guests.

A change of a server marks its row as due (``store.servers.servers.update_server_row``). While an action of the server
runs, the message waits for its end. Two conductors may send the same message at the same time: repeating one does no
harm, and a host ignores messages older than its own state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from sqlalchemy import select, update

from magnetar_control.conductor.steps.guest_data import guest_data
from magnetar_control.conductor.steps.host_updates import HostUpdateSender
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.servers import servers as servers_store
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import NotFound
from magnetar_core.http.client import Client

log = logging.getLogger(__name__)
#: Servers of a host in one batch.
BATCH_SIZE = 100
#: Conditions of servers whose guests have due news. The second one finds their index.
DUE = (servers.c.guest_data_due.is_(True), servers.c.guest_data_due.is_not(None), servers.c.host.is_not(None),
       servers.c.task_state.is_(None), servers.c.deleted_at.is_(None))
_HOSTS = select(servers.c.host).where(*DUE).distinct()


class GuestUpdateSender(HostUpdateSender):
    """The periodic task that sends changed names and metadata of servers in a conductor's cell to their running guests.
    """

    about, away = "guests", DOWN

    @property
    def database(self) -> Database:
        return self.conductor.database

    def waiting(self) -> Iterable[str]:
        with self.conductor.database.read() as connection:
            return connection.execute(_HOSTS).scalars().all()

    def tell(self, host: str) -> int:
        with self.conductor.database.read() as connection:
            rows = ServerRow.several(connection.execute(select(servers).where(*DUE, servers.c.host == host).limit(
                BATCH_SIZE)))
        if rows:
            with self.conductor.client(host) as client:
                self.each(partial(self._tell_guest, client, host, row) for row in rows)
        return len(rows)

    def _tell_guest(self, client: Client, host: str, row: ServerRow) -> None:
        try:
            if not servers_store.is_adopted_server(row):  # those have neither a config drive nor the metadata service
                client.event("server", row.id, "tell_guest", {
                    "revision": row.guest_revision, "metadata": row.metadata,
                    "guest_data": guest_data(self.conductor, row, host)},
                    request_id=f"tell-guest-{row.id}-{row.guest_revision}")
        except NotFound:  # its next host gets everything with the server
            log.debug("server %s is not on host %s", row.id, host)
        with self.conductor.database.write() as connection:
            connection.execute(update(servers).where(
                servers.c.id == row.id, servers.c.host == host,
                servers.c.guest_revision == row.guest_revision).values(guest_data_due=None))
