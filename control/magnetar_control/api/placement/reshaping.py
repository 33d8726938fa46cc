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
    """Return the value type of the body at microversion 1.*minor*: inventories and allocations, in the form of PUT of a
    provider's inventories and of a consumer's allocations."""
    return build_record({"inventories": MapOf(Text(1, 36), INVENTORIES, 500),
                         "allocations": MapOf(Text(1, 36), allocations.allocation_body(minor), 500)}, "inventories",
                        "allocations")


class ReshapingRoutes:
    def __init__(self, placement: Placement) -> None:
        self.providers = Providers(placement)

    def routes(self) -> list[Guarded]:
        """Return the route. It is for administrators."""
        return [guarded_route("POST /reshaper", self.reshape, 204, "service")]

    def reshape(self, request: Request) -> None:
        """Set inventories of providers and allocations of consumers together, so that allocations can move with
        inventories."""
        views.require_minor_version(request, 30)
        minor = views.minor_version(request)
        body = reshaping_body(minor).check(request.json(), "")
        self.providers.reshape(
            {id.lower(): (provider_body["resource_provider_generation"], provider_body["inventories"])
             for id, provider_body in body["inventories"].items()},
            allocations.consumer_requests(body["allocations"], minor))
