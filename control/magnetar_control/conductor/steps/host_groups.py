# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells hosts of the security groups that they filter by, where no engine does
(``services.network.security.host_groups``).

A host has a group before the first NIC that names it comes (``bring``); of what changes afterwards it is told by
``GroupNews``. A server with an action in hand is told after it. Telling again does no harm, and what is older than what
a host knows changes nothing there, so that two conductors may do it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.store.engine.tables import servers
from magnetar_core.errors import InvalidField, NotFound, TimedOut, Unreachable
from magnetar_core.http.client import Client

from .host_news import HostNews

if TYPE_CHECKING:
    from magnetar_control.services.network.security.host_groups import DuePort

log = logging.getLogger(__name__)
NOUN = "group_filter"


def bring(conductor: Environment, client: Client, host: str, nics: Iterable[Mapping[str, Any]]) -> None:
    """Have *host* know the security groups of *nics*, and those that their rules name, if it does not yet."""
    for nic in nics:
        for id in nic["on_host"].get("security_groups") or ():
            _bring(conductor, client, host, id)


def _bring(conductor: Environment, client: Client, host: str, id: str) -> None:
    key = ("group", host, id)
    if key in conductor.delivery.known:
        return
    conductor.delivery.remember(key)  # a group may name itself
    try:
        conductor.services.network.host_groups.claim(host, id)
        tell(conductor, client, host, id)
    except BaseException:
        conductor.delivery.known.discard(key)
        raise


def tell(conductor: Environment, client: Client, host: str, id: str) -> None:
    """Have *host* know the group as it is, and those that its rules name; or that it is gone."""
    groups = conductor.services.network.host_groups
    document = groups.document(id)
    if document is None:
        client.delete(NOUN, id)
        groups.gone(host, id)
        return
    for named in dict.fromkeys(one["remote_group"] for one in document["rules"] if one["remote_group"]):
        _bring(conductor, client, host, named)
    client.ensure(NOUN, id, document)
    groups.told(host, id, document["revision"])


def compare(conductor: Environment, client: Client, host: str, here: Collection[str]) -> None:
    """Note what *host* has otherwise than it should, so that it is told: groups, and those of the NICs of the servers
    that are *here* (uuids)."""
    groups = conductor.services.network.host_groups
    groups.compare(host, {one["id"]: one["revision"] for one in client.list(NOUN)})
    if ports := groups.held(host, here):
        nics = {(server["id"], nic["mac"]): nic.get("security_groups")
                for server in client.list("server", fields=["id", "networks"]) for nic in server["networks"]}
        # What is not there, whoever brings it tells of.
        if other := [one for one in ports if one.groups != nics.get((one.server, one.mac), one.groups)]:
            groups.tell_again(host, other)


class GroupNews(HostNews):
    """Tells the hosts of a conductor's cell of security groups, and of those that ports have."""

    about, away = "security groups", (Unreachable, TimedOut)

    def waiting(self) -> Iterable[str]:
        hosts, cell = self.conductor.states.hosts, self.conductor.cell.id
        return [host for host in self.conductor.services.network.host_groups.hosts()
                if host in hosts and hosts[host].profile.cell_id == cell]

    def tell(self, host: str) -> int:
        groups, ports = self.conductor.services.network.host_groups.due(host)
        ports = self._idle(host, ports)
        if groups or ports:
            with self.conductor.client(host) as client:
                self.each((*(partial(tell, self.conductor, client, host, id) for id in groups),
                           *(partial(self._tell_port, client, host, port) for port in ports)))
        return len(groups) + len(ports)

    def _idle(self, host: str, ports: Sequence[DuePort]) -> list[DuePort]:
        """The ports of servers that are on *host*, with no action in hand."""
        if not ports:
            return []
        with self.conductor.database.read() as connection:
            idle = set(connection.execute(select(servers.c.id).where(
                servers.c.id.in_({one.server for one in ports}), servers.c.host == host,
                servers.c.task_state.is_(None), servers.c.deleted_at.is_(None))).scalars())
        return [one for one in ports if one.server in idle]

    def _tell_port(self, client: Client, host: str, port: DuePort) -> None:
        for id in port.groups or ():
            _bring(self.conductor, client, host, id)
        try:
            client.ensure("interface_attachment", f"{port.server}:{port.mac}", {
                "server": port.server, "mac": port.mac, "security_groups": port.groups})
        except (NotFound, InvalidField):  # it is not there: whoever brings it tells of its groups
            log.debug("NIC %s of server %s is not on host %s", port.mac, port.server, host)
        self.conductor.services.network.host_groups.port_told(host, port)
