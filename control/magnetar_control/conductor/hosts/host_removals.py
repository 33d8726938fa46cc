# SPDX-License-Identifier: GPL-3.0-or-later
"""The removal of networks and volume exports from hosts after the cloud has deleted them. Rows of
``store.hosts.host_removals`` name them; the audit finds objects without such a row. Deleted servers are removed by
``host_watch`` when the host's agent connects."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from magnetar_control.conductor.steps.host_updates import HostUpdateSender
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.services.volume.removal_rows import RECORD
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import host_removals
from magnetar_core.errors import NotFound
from magnetar_core.http.client import Client


class HostRemovals(HostUpdateSender):
    """The periodic task that sends pending removals of servers and other resources to the agents of a conductor's cell.
    If an agent refuses a removal, for example while a guest still uses the network to remove, the request is sent again
    later."""

    about, away = "deleted things", DOWN

    @property
    def database(self) -> Database:
        return self.conductor.store.api

    def waiting(self) -> Iterable[str]:
        hosts, cell = self.conductor.states.hosts, self.conductor.cell.id
        with self.conductor.store.api.read() as connection:
            host_names = host_removals.fetch_removal_hosts(connection)
        return [host for host in host_names if host in hosts and hosts[host].profile.cell_id == cell]

    def tell(self, host: str) -> int:
        with self.conductor.store.api.read() as connection:
            removals = host_removals.fetch_due_removals(connection, host)
        if removals:
            with self.conductor.client(host) as client:
                self.each(partial(self._remove, client, host, *removal) for removal in removals)
        return len(removals)

    def _remove(self, client: Client, host: str, resource_type: str, key: str) -> None:
        with suppress(NotFound):
            if resource_type == RECORD:  # its content belongs to another host now, see ``services.volume.homes``
                client.event("volume", key, "release")
            else:
                client.delete(resource_type, key)
        with self.conductor.store.api.write() as connection:
            host_removals.remove_removal_row(connection, host, resource_type, key)
