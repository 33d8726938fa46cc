# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes from hosts what the cloud has deleted (``store.hosts.host_removals``): networks, exports of volumes. The
audit is the second line, for what no row tells of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from magnetar_control.conductor.steps.host_news import HostNews
from magnetar_control.conductor.worker.work import DOWN
from magnetar_control.store.hosts import host_removals
from magnetar_core.errors import NotFound
from magnetar_core.http.client import Client


class HostRemovals(HostNews):
    """Has the hosts of a conductor's cell remove what is deleted. A host that refuses (a guest that goes has its NIC
    there still) is asked again."""

    about, away = "deleted things", DOWN

    def waiting(self) -> Iterable[str]:
        hosts, cell = self.conductor.states.hosts, self.conductor.cell.id
        with self.conductor.store.api.read() as connection:
            found = host_removals.hosts(connection)
        return [host for host in found if host in hosts and hosts[host].profile.cell_id == cell]

    def tell(self, host: str) -> int:
        with self.conductor.store.api.read() as connection:
            found = host_removals.due(connection, host)
        if found:
            with self.conductor.client(host) as client:
                self.each(partial(self._remove, client, host, *one) for one in found)
        return len(found)

    def _remove(self, client: Client, host: str, noun: str, key: str) -> None:
        with suppress(NotFound):
            client.delete(noun, key)
        with self.conductor.store.api.write() as connection:
            host_removals.done(connection, host, noun, key)
