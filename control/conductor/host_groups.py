# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells hosts of the security groups that they filter by, where no engine does (``services.network.host_groups``).

A host has a group before the first NIC that names it comes (``bring``). What changes afterwards is told by a thread for
each host, so that a slow one keeps nobody; one that is away is told when it is back. A server with an action in hand is
told after it. Telling again does no harm, and what is older than what a host knows changes nothing there, so that two
conductors may do it at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.tables import servers
from magnetar_core.client import Client
from magnetar_core.errors import InvalidField, MagnetarError, NotFound, TimedOut, Unreachable

from .environment import Environment

if TYPE_CHECKING:
    from magnetar_control.services.network.host_groups import DuePort

log = logging.getLogger(__name__)
NOUN = "group_filter"
#: Seconds until a host is asked again that could not be told.
PAUSE = 5.0


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


def compare(conductor: Environment, client: Client, host: str) -> None:
    """Note what *host* has otherwise than it should, so that it is told."""
    conductor.services.network.host_groups.compare(host, {one["id"]: one["revision"] for one in client.list(NOUN)})


class GroupNews:
    """Tells the hosts of a conductor's cell."""

    def __init__(self, conductor: Environment, over: threading.Event,
                 start: Callable[[threading.Thread], None] = threading.Thread.start) -> None:
        self.conductor, self._over, self._start = conductor, over, start
        self._threads: dict[str, threading.Thread] = {}

    def look(self) -> None:
        """Begin to tell those hosts that are up and that nobody tells now."""
        self._threads = {host: thread for host, thread in self._threads.items() if thread.is_alive()}
        hosts = self.conductor.states.hosts
        for host in self.conductor.services.network.host_groups.hosts():
            mine = host in hosts and hosts[host].profile.cell_id == self.conductor.cell.id
            if mine and host not in self._threads and self.conductor.is_up(host):
                thread = threading.Thread(target=self._tell, args=(host,), name=f"groups of {host}", daemon=True)
                self._threads[host] = thread
                self._start(thread)

    def _tell(self, host: str) -> None:
        try:
            while not self._over.is_set() and self.tell(host):
                pass
        except (MagnetarError, DBAPIError, OSError) as error:
            log.info("host %s is told of security groups later: %s", host, error, extra={"host": host})
            self._over.wait(PAUSE)

    def tell(self, host: str) -> int:
        """Tell *host* of the first groups and ports that are due; returns how many. Raises what the agent refuses, when
        all others are told, and ``Unreachable``."""
        groups, ports = self.conductor.services.network.host_groups.due(host)
        ports = self._idle(host, ports)
        if not (groups or ports):
            return 0
        refused = None
        with self.conductor.client(host) as client:
            for act in (*(partial(tell, self.conductor, client, host, id) for id in groups),
                        *(partial(self._tell_port, client, host, port) for port in ports)):
                try:
                    act()
                except (Unreachable, TimedOut):
                    raise
                except MagnetarError as error:
                    refused = error
        if refused is not None:
            raise refused
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
