# SPDX-License-Identifier: GPL-3.0-or-later
"""Network agents: the agent of each compute host, which makes the networks there (API reference, "Agents"). For
administrators; they are not changed here but as compute services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from magnetar_control.api.values import to_second
from magnetar_control.services import Document
from magnetar_control.store.hosts.services import Service
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidRequest, NotFound

#: By these a list is filtered.
FILTERS = ("id", "host", "agent_type", "binary", "topic", "availability_zone", "alive", "admin_state_up")


class AgentRoutes:
    """The routes of agents. *hosts* finds the compute hosts."""

    def __init__(self, hosts: Callable[[], Sequence[Service]]) -> None:
        self.hosts = hosts

    def routes(self) -> list[Guarded]:
        """Where they are."""
        return [route("GET /v2.0/agents", self.list), route("GET /v2.0/agents/{id}", self.show),
                *(route(f"{method} /v2.0/agents/{{id}}", self.refuse, who="admin") for method in ("PUT", "DELETE"))]

    def list(self, request: Request) -> Document:
        """All that fit the filters; none for who is no administrator, as in Neutron."""
        found = [agent(one) for one in self.hosts()] if request.context.is_admin else []
        for name in FILTERS:
            if wanted := {value.lower() for given, value in request.query if given == name}:
                found = [one for one in found if str(one[name]).lower() in wanted]
        return {"agents": found}

    def show(self, request: Request) -> Document:
        """One. Raises ``NotFound``."""
        for one in self.hosts() if request.context.is_admin else ():
            if one.id == request.params["id"]:
                return {"agent": agent(one)}
        raise NotFound(f"Agent {request.params['id']} could not be found", type="AgentNotFound")

    def refuse(self, _request: Request) -> NoReturn:
        """Change or removal."""
        raise InvalidRequest("A network agent is the agent of a compute host: disable or remove that one, as a compute "
                             "service (openstack compute service set, or delete).")


def agent(host: Service) -> Document:
    """How a host's agent looks."""
    begun = to_second(host.row["created_at"]) if host.row else None
    return {"id": host.id, "agent_type": "Magnetar host agent", "binary": "magnetar-agent", "topic": "N/A",
            "host": host.host, "availability_zone": host.zone, "alive": host.up, "admin_state_up": not host.disabled,
            "description": host.disabled_reason or "", "created_at": begun, "started_at": begun,
            "heartbeat_timestamp": to_second(host.seen_at) if host.seen_at else None,
            "configurations": {}, "resources_synced": None}
