# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulation: all hosts by the places where they listen, and the one application that answers for them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from magnetar_agent.api.app import AgentApplication
from magnetar_core.errors import InvalidField

from .current import CurrentFeed, CurrentHost, use_host
from .host import CONDITIONS, DEAD, SILENT, SLOW, UP, SharedParts, SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from magnetar_agent.agent import ManagedHost
    from magnetar_agent.api.watch import Feed

    from .links import SimulatedLinks

#: Where a listener is: the path of a unix socket, or an IP address.
Place = str


class Simulation:
    """All simulated hosts. A host object is created at its first use. Methods must be called in the event loop."""

    def __init__(self, names: Mapping[Place, str], addresses: Mapping[str, str], parts: SharedParts) -> None:
        #: Host names as given at the start, by place.
        self.names, self.addresses, self.parts = dict(names), dict(addresses), parts
        self._hosts: dict[str, SimulatedHost] = {}
        self.listener: Callable[[SimulatedHost], None] = lambda _host: None

    def host(self, name: str) -> SimulatedHost:
        """Return the simulated host that had this *name* at the start of the simulation; later renames are ignored.
        Raises ``InvalidField`` if there is none."""
        host = self._hosts.get(name)
        if host is None:
            if name not in self.addresses:
                raise InvalidField("hosts", "must name simulated hosts", name)
            host = self._hosts[name] = SimulatedHost(name, self.addresses[name], self.parts, self._find_links)
            self.listener(host)
        return host

    def host_at(self, place: Place) -> SimulatedHost | None:
        """Return the simulated host that listens on *place*, an IP address or the path of a unix socket; ``None`` if
        there is none."""
        name = self.names.get(place)
        return None if name is None else self.host(name)

    def summary(self) -> dict[str, Any]:
        """Return ``{"hosts", "conditions", "servers"}``: the number of hosts, ``{condition: number of hosts}``, and the
        number of servers."""
        conditions = Counter(host.condition for host in self._hosts.values())
        conditions[UP] += len(self.addresses) - len(self._hosts)
        return {"hosts": len(self.addresses), "conditions": {name: conditions[name] for name in CONDITIONS},
                "servers": sum(host.host.documents.count("server") for host in self._hosts.values())}

    def set_condition(self, condition: str, names: Collection[str] | None = None, share: float = 0.1,
                      delay: float = 1.0, seconds: float | None = None) -> list[str]:
        """Set the *condition* (up, silent, slow, dead; see ``SimulatedHost``) of the hosts *names*, and return their
        names. If *names* is ``None``, choose hosts: for ``up``, all hosts that are not up; otherwise random hosts that
        are up. The number of these random hosts is *share* multiplied by the number of all hosts.

        - *delay*: seconds before each response of a slow host.
        - *seconds*: after this time the hosts are up again; ``None`` for never.
        """
        hosts = [self.host(name) for name in names] if names is not None else self._choose_hosts(condition, share)
        for host in hosts:
            host.set_condition(condition, delay)
        if seconds is not None:
            for host in hosts:
                self.parts.loop.call_later(seconds, self._heal, host, condition)
        return [name for name, host in self._hosts.items() if host in hosts]

    def rename_hosts(self, names: Mapping[str, str]) -> None:
        """Rename hosts. *names*: ``{name at the start of the simulation: new name}``. Raises ``InvalidField`` if
        another host has the new name."""
        hosts = {self.host(name): new_name for name, new_name in names.items()}
        other_names = {host.host.name for host in self._hosts.values() if host not in hosts} | (
            self.addresses.keys() - self._hosts.keys())
        for name, new_name in names.items():
            if new_name in other_names or [*names.values()].count(new_name) > 1:
                raise InvalidField(name, "must be a name that no other host has", new_name)
        for host, new_name in hosts.items():
            host.rename(new_name)

    def _choose_hosts(self, condition: str, share: float) -> list[SimulatedHost]:
        if condition == UP:
            return [host for host in self._hosts.values() if host.condition != UP]
        able = [name for name in self.addresses if name not in self._hosts or self._hosts[name].condition == UP]
        count = min(len(able), round(share * len(self.addresses)))
        return [self.host(name) for name in random.sample(able, count)]

    @staticmethod
    def _heal(host: SimulatedHost, condition: str) -> None:
        if host.condition == condition:
            host.set_condition(UP)

    def close(self) -> None:
        """Close all simulated hosts."""
        for host in self._hosts.values():
            host.close()

    def close_feeds(self) -> None:
        """End the event streams of all hosts."""
        for host in self._hosts.values():
            host.feed.close()

    def _find_links(self, peer: str) -> SimulatedLinks | None:
        for host in self._hosts.values():
            if host.host.name == peer:
                return None if host.condition in (DEAD, SILENT) else host.links
        return self.host(peer).links if peer in self.addresses and peer not in self._hosts else None


class SimulatedApplication(AgentApplication):
    """The agent's ASGI application, serving all simulated hosts: the address or socket of a connection determines the
    host. *control*: the application for connections to any other address or socket."""

    def __init__(self, simulation: Simulation, control: ASGIApp) -> None:
        self.simulation, self.control = simulation, control
        with use_host(simulation.host(next(iter(simulation.addresses)))):
            super().__init__(cast("ManagedHost", CurrentHost()),
                             cast("Feed", CurrentFeed(simulation.close_feeds)))
        simulation.listener = self._count_operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request for the host at whose address or socket it arrived."""
        if scope["type"] == "lifespan":
            return
        host = self.simulation.host_at(scope["server"][0])
        if host is None:
            await self.control(scope, receive, send)
            return
        with use_host(host):
            if host.condition in (SILENT, SLOW):
                await host.wait_to_answer()
            await super().__call__(scope, receive, _patient(host, send))

    def _count_operations(self, host: SimulatedHost) -> None:
        host.host.operations.listen(self.metrics.count_operation)

    def admit_connection(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether to accept the new connection *transport*: not if its host has the condition dead."""
        place = transport.get_extra_info("sockname")
        host = self.simulation.host_at(place if isinstance(place, str) else place[0])
        if host is not None:
            host.transports.add(transport)
        return host is None or host.condition != DEAD

    def accept_link(self, transport: asyncio.BaseTransport, admitted: Callable[[], None]) -> None:
        """Refuse *transport*, a TLS connection from another agent: simulated hosts connect to each other without TLS.
        """
        transport.abort()  # type: ignore[attr-defined]


def _patient(host: SimulatedHost, send: Send) -> Send:
    """Return an ASGI function that calls *send*, but first waits as long as *host* has the condition silent."""

    async def send_when_allowed(message: Message) -> None:
        if host.condition == SILENT:
            await host.wait_to_answer()
        await send(message)

    return send_when_allowed
