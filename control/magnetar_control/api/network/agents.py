# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of network agents (API reference, "Agents"), for administrators. The agent of each compute host is one.
They are read-only here: users change the compute service instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from magnetar_control.api.values import to_second
from magnetar_control.store.hosts.services import Service
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

#: Filters of the list.
FILTERS = ("id", "host", "agent_type", "binary", "topic", "availability_zone", "alive", "admin_state_up")


class AgentRoutes:
    """The routes of Neutron's network agents. The agent of each compute host is shown as a network agent. *hosts*: a
    function that returns the compute hosts."""

    def __init__(self, hosts: Callable[[], Sequence[Service]]) -> None:
        self.hosts = hosts

    def routes(self) -> list[Guarded]:
        """Return the routes of network agents, with their handlers."""
        return [guarded_route("GET /v2.0/agents", self.list), guarded_route("GET /v2.0/agents/{id}", self.show),
                *(guarded_route(f"{method} /v2.0/agents/{{id}}", self.refuse, who="admin")
                  for method in ("PUT", "DELETE"))]

    def list(self, request: Request) -> Document:
        """Return the network agents that match the query: GET /v2.0/agents. Callers who are not administrators get an
        empty list, as in Neutron."""
        agents = [network_agent_view(host) for host in self.hosts()] if request.context.is_admin else []
        for name in FILTERS:
            if accepted := {value.lower() for parameter, value in request.query if parameter == name}:
                agents = [agent for agent in agents if str(agent[name]).lower() in accepted]
        return {"agents": agents}

    def show(self, request: Request) -> Document:
        """Return the network agent that the URL names. Raises ``NotFound``."""
        for host in self.hosts() if request.context.is_admin else ():
            if host.id == request.params["id"]:
                return {"agent": network_agent_view(host)}
        raise NotFound(f"Agent {request.params['id']} could not be found", type="AgentNotFound")

    def refuse(self, _request: Request) -> NoReturn:
        """Refuse to update or delete a network agent by raising ``InvalidRequest``. The error refers to the API of
        compute services, which can disable or delete the host."""
        raise InvalidRequest("A network agent is the agent of a compute host: disable or remove that one, as a compute "
                             "service (openstack compute service set, or delete).")


def network_agent_view(host: Service) -> Document:
    """Return the compute host *host* as a network agent, in the format of Neutron's answers."""
    begun = to_second(host.created_at) if host.created_at else None
    return {"id": host.id, "agent_type": "Magnetar host agent", "binary": "magnetar-agent", "topic": "N/A",
            "host": host.host, "availability_zone": host.zone, "alive": host.up, "admin_state_up": not host.disabled,
            "description": host.disabled_reason or "", "created_at": begun, "started_at": begun,
            "heartbeat_timestamp": to_second(host.seen_at) if host.seen_at else None,
            "configurations": {}, "resources_synced": None}
