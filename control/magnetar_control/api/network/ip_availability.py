# SPDX-License-Identifier: GPL-3.0-or-later
"""How many addresses networks have left (API reference, "Network IP availability"). For administrators."""

from __future__ import annotations

import orjson

from magnetar_control.services import Document, Page
from magnetar_control.services.network.subnets.ip_availability import availability
from magnetar_control.store.engine.database import Database
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import NotFound
from magnetar_core.values import Choices

from .resources import COUNT

NAME, PLURAL, PATH = "network_ip_availability", "network_ip_availabilities", "/v2.0/network-ip-availabilities"
VERSIONS = Choices("4", "6")
#: What JSON's writer takes as a whole number: two subnets of /64 have more addresses.
LARGEST = 2**64 - 1


class IpAvailabilityRoutes:
    """The routes, of the networks in the API *database*."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def routes(self) -> list[Guarded]:
        """Where they are."""
        return [route(f"GET {PATH}", self.list), route(f"GET {PATH}/{{id}}", self.show)]

    def list(self, request: Request) -> Document:
        """Those that fit the query; none for who is no administrator, as in Neutron."""
        if not request.context.is_admin:
            return {PLURAL: []}
        given: dict[str, list[str]] = {}
        for name, value in request.query:
            given.setdefault(name, []).append(VERSIONS.check(value, name) if name == "ip_version" else value)
        limit = COUNT.check(given.pop("limit", ["0"])[-1], "limit")
        fields, marker = given.pop("fields", []), given.pop("marker", [None])[-1]
        found = availability(self.database, Page(filters=given, limit=limit, marker=marker))
        answer: Document = {PLURAL: [_view(one, fields) for one in found]}
        if limit and len(found) == limit:
            answer[f"{PLURAL}_links"] = request.next_page(found[-1]["network_id"])
        return answer

    def show(self, request: Request) -> Document:
        """That of one network. Raises ``NotFound``, also to who is no administrator."""
        id = request.params["id"]
        for one in availability(self.database, Page(filters={"network_id": [id]})) if request.context.is_admin else ():
            return {NAME: _view(one, [value for name, value in request.query if name == "fields"])}
        raise NotFound(f"Network {id} could not be found.", type="NetworkNotFound")


def _view(found: Document, fields: list[str]) -> Document:
    total = found["total_ips"]
    shown = {**found, "total_ips": total if total <= LARGEST else orjson.Fragment(str(total))}
    return {name: value for name, value in shown.items() if not fields or name in fields}
