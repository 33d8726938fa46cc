# SPDX-License-Identifier: GPL-3.0-or-later
"""Security groups on hosts, which filter packets where no network engine does
(``services.network.security.host_groups``).

A host gets a group before its first NIC with that group (``bring_security_groups``); later changes are sent by
``GroupUpdateSender``. While an action of a server runs, changes of its ports wait for the end of the action. Two
conductors may send the same message at the same time: repeating one does no harm, and a host ignores messages older
than its own state.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import select

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.documents import ServerNic
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import servers
from magnetar_core.errors import InvalidField, NotFound, TimedOut, Unreachable
from magnetar_core.http.client import Client

from .host_updates import HostUpdateSender

if TYPE_CHECKING:
    from magnetar_control.services.network.security.host_groups import DuePort

log = logging.getLogger(__name__)
NOUN = "group_filter"


def bring_security_groups(conductor: Conductor, client: Client, host: str, nics: Iterable[ServerNic]) -> None:
    """Send to *host* the security groups of *nics*, and the groups that the rules of these groups refer to, except
    groups that the host has already. *client*: calls the agent of *host*."""
    for nic in nics:
        for id in nic["on_host"].get("security_groups") or ():
            _bring(conductor, client, host, id)


def _bring(conductor: Conductor, client: Client, host: str, id: str) -> None:
    key = ("group", host, id)
    if key in conductor.delivery.known:
        return
    conductor.delivery.remember(key)  # a group may name itself
    try:
        conductor.services.network.host_groups.claim(host, id)
        tell_security_group(conductor, client, host, id)
    except BaseException:
        conductor.delivery.known.discard(key)
        raise


def tell_security_group(conductor: Conductor, client: Client, host: str, id: str) -> None:
    """Send to *host* the security group *id* and the groups that its rules refer to. If the group was deleted, delete
    it on the host. *client*: calls the agent of *host*."""
    groups = conductor.services.network.host_groups
    document = groups.document(id)
    if document is None:
        client.delete(NOUN, id)
        groups.gone(host, id)
        return
    for named in dict.fromkeys(rule["remote_group"] for rule in document["rules"] if rule["remote_group"]):
        _bring(conductor, client, host, named)
    client.ensure(NOUN, id, document)
    groups.mark_group_sent(host, id, document["revision"])


def compare_security_groups(conductor: Conductor, client: Client, host: str, server_ids: Collection[str]) -> None:
    """Find the security groups on *host* that differ from the database. Also find the NICs of the servers *server_ids*
    (uuids) that have other security groups on the host than in the database. Queue these groups and NICs for
    ``GroupUpdateSender``, which then sends the state in the database to the host. *client*: calls the agent of *host*.
    """
    groups = conductor.services.network.host_groups
    groups.compare(host, {group_filter["id"]: group_filter["revision"] for group_filter in client.list(NOUN)})
    if ports := groups.held(host, server_ids):
        nics = {(server["id"], nic["mac"]): nic.get("security_groups")
                for server in client.list("server", fields=["id", "networks"]) for nic in server["networks"]}
        # A NIC that is missing gets its groups from the action that attaches it.
        if other := [port for port in ports if port.groups != nics.get((port.server, port.mac), port.groups)]:
            groups.tell_again(host, other)


class GroupUpdateSender(HostUpdateSender):
    """A sender of changes to the hosts of a conductor's cell: changed security groups, and ports whose security groups
    have changed."""

    about, away = "security groups", (Unreachable, TimedOut)

    @property
    def database(self) -> Database:
        database: Database = self.conductor.services.network.host_groups.database
        return database

    def waiting(self) -> Iterable[str]:
        hosts, cell = self.conductor.states.hosts, self.conductor.cell.id
        return [host for host in self.conductor.services.network.host_groups.hosts()
                if host in hosts and hosts[host].profile.cell_id == cell]

    def tell(self, host: str) -> int:
        groups, ports = self.conductor.services.network.host_groups.due(host)
        ports = self._idle(host, ports)
        if groups or ports:
            with self.conductor.client(host) as client:
                self.each((*(partial(tell_security_group, self.conductor, client, host, id) for id in groups),
                           *(partial(self._tell_port, client, host, port) for port in ports)))
        return len(groups) + len(ports)

    def _idle(self, host: str, ports: Sequence[DuePort]) -> list[DuePort]:
        """Return the elements of *ports* that belong to idle servers: existing servers on *host* without a task_state.
        Ports of other servers are left out, because a running action may still be changing these ports."""
        if not ports:
            return []
        with self.conductor.database.read() as connection:
            idle = set(connection.execute(select(servers.c.id).where(
                servers.c.id.in_({port.server for port in ports}), servers.c.host == host,
                servers.c.task_state.is_(None), servers.c.deleted_at.is_(None))).scalars())
        return [port for port in ports if port.server in idle]

    def _tell_port(self, client: Client, host: str, port: DuePort) -> None:
        for id in port.groups or ():
            _bring(self.conductor, client, host, id)
        try:
            client.ensure("interface_attachment", f"{port.server}:{port.mac}", {
                "server": port.server, "mac": port.mac, "security_groups": port.groups})
        except (NotFound, InvalidField):  # the action that attaches it brings its groups
            log.debug("NIC %s of server %s is not on host %s", port.mac, port.server, host)
        self.conductor.services.network.host_groups.mark_port_sent(host, port)
