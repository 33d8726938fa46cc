# SPDX-License-Identifier: GPL-3.0-or-later
"""``POST /reshaper`` (1.30): inventories of providers and allocations of consumers in one transaction."""

from __future__ import annotations

from magnetar_control.api.values import build_record
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.values import MapOf, Text, Value

from . import allocations, views
from .writing import INVENTORIES


def reshaping_body(minor: int) -> Value:
    """Return a validator of the body of POST /reshaper at microversion 1.*minor*: ``inventories`` by provider and
    ``allocations`` by consumer."""
    return build_record({"inventories": MapOf(Text(1, 36), INVENTORIES, 500),
                         "allocations": MapOf(Text(1, 36), allocations.allocation_body(minor), 500)}, "inventories",
                        "allocations")


class ReshapingRoutes:
    def __init__(self, placement: Placement) -> None:
        self.providers = Providers(placement)

    def routes(self) -> list[Guarded]:
        """Return the route POST /reshaper. Only administrators may use it."""
        return [guarded_route("POST /reshaper", self.reshape, 204, "service")]

    def reshape(self, request: Request) -> None:
        """Set inventories of providers and allocations of consumers in one transaction, so that allocations can be
        moved together with the inventory: POST /reshaper."""
        views.require_minor_version(request, 30)
        minor = views.minor_version(request)
        body = reshaping_body(minor).check(request.json(), "")
        self.providers.reshape(
            {id.lower(): (provider_body["resource_provider_generation"], provider_body["inventories"])
             for id, provider_body in body["inventories"].items()},
            allocations.consumer_requests(body["allocations"], minor))
