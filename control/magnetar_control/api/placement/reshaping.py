# SPDX-License-Identifier: GPL-3.0-or-later
"""``POST /reshaper`` (1.30): inventories of providers and allocations of consumers at once, all or nothing."""

from __future__ import annotations

from magnetar_control.api.values import record
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.values import MapOf, Text, Value

from . import allocations, views
from .writing import INVENTORIES


def form(minor: int) -> Value:
    """The body at 1.*minor*: of providers what PUT of their inventories takes, of consumers what PUT of their
    allocations takes."""
    return record({"inventories": MapOf(Text(1, 36), INVENTORIES, 500),
                   "allocations": MapOf(Text(1, 36), allocations.form(minor), 500)}, "inventories", "allocations")


class ReshapingRoutes:
    def __init__(self, placement: Placement) -> None:
        self.providers = Providers(placement)

    def routes(self) -> list[Guarded]:
        """It is for administrators."""
        return [route("POST /reshaper", self.reshape, 204, "service")]

    def reshape(self, request: Request) -> None:
        """What consumers hold goes from provider to provider together with the inventories."""
        views.since(request, 30)
        minor = views.minor(request)
        given = form(minor).check(request.json(), "")
        self.providers.reshape(
            {id.lower(): (one["resource_provider_generation"], one["inventories"])
             for id, one in given["inventories"].items()},
            allocations.wishes(given["allocations"], minor))
