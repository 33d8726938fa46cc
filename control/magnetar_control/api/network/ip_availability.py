# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of IP availability, for administrators: total and used addresses of networks (API reference, "Network IP
availability")."""

from __future__ import annotations

import orjson

from magnetar_control.services import Page
from magnetar_control.services.network.subnets.ip_availability import network_ip_availability
from magnetar_control.store.engine.database import Database
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import NotFound
from magnetar_core.values import Choices

from .resources import COUNT

NAME, PLURAL, PATH = "network_ip_availability", "network_ip_availabilities", "/v2.0/network-ip-availabilities"
VERSIONS = Choices("4", "6")
#: The largest number that JSON's writer accepts: two subnets of /64 have more addresses.
LARGEST = 2**64 - 1


class IpAvailabilityRoutes:
    """The routes that report the used and total IP addresses of networks. *database*: the API database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def routes(self) -> list[Guarded]:
        """Return the routes of network IP availability, with their handlers."""
        return [guarded_route(f"GET {PATH}", self.list), guarded_route(f"GET {PATH}/{{id}}", self.show)]

    def list(self, request: Request) -> Document:
        """Return the numbers of used and total IP addresses for each network that matches the query. Callers who are
        not administrators get an empty list, as in Neutron."""
        if not request.context.is_admin:
            return {PLURAL: []}
        parameters: dict[str, list[str]] = {}
        for name, value in request.query:
            parameters.setdefault(name, []).append(VERSIONS.check(value, name) if name == "ip_version" else value)
        limit = COUNT.check(parameters.pop("limit", ["0"])[-1], "limit")
        fields, marker = parameters.pop("fields", []), parameters.pop("marker", [None])[-1]
        networks = network_ip_availability(self.database, Page(filters=parameters, limit=limit, marker=marker))
        answer: Document = {PLURAL: [_view(network, fields) for network in networks]}
        if limit and len(networks) == limit:
            answer[f"{PLURAL}_links"] = request.next_page(networks[-1]["network_id"])
        return answer

    def show(self, request: Request) -> Document:
        """Return the numbers of used and total IP addresses of one network. Raises ``NotFound`` for an unknown network,
        and for callers who are not administrators."""
        id = request.params["id"]
        for network in network_ip_availability(self.database, Page(
            filters={"network_id": [id]})) if request.context.is_admin else ():
            return {NAME: _view(network, [value for name, value in request.query if name == "fields"])}
        raise NotFound(f"Network {id} could not be found.", type="NetworkNotFound")


def _view(network: Document, fields: list[str]) -> Document:
    total = network["total_ips"]
    shown = {**network, "total_ips": total if total <= LARGEST else orjson.Fragment(str(total))}
    return {name: value for name, value in shown.items() if not fields or name in fields}
