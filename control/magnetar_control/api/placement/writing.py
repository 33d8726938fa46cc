# SPDX-License-Identifier: GPL-3.0-or-later
"""What Placement lets operators change: custom traits and resource classes, traits, inventories and aggregates of
providers. Providers themselves are hosts, which come and go with their agents."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import Decimal, record
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.services import Document
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest
from magnetar_core.values import Integer, ListOf, MapOf, Text, Value

from . import views

NAME = Text(1, 255, r"[A-Z0-9_]+", "must be capital letters, digits and _")
GENERATION = {"resource_provider_generation": Integer()}
FIELDS: dict[str, Value] = {
    "total": Integer(1), "reserved": Integer(), "min_unit": Integer(1), "max_unit": Integer(1),
    "step_size": Integer(1), "allocation_ratio": Decimal(1e30)}
CLASS = record({"name": NAME}, "name")
TRAITS = record({**GENERATION, "traits": ListOf(NAME, 1000, unique=True)}, *GENERATION, "traits")
INVENTORIES = record({**GENERATION, "inventories": MapOf(NAME, record(FIELDS, "total"), 500)}, *GENERATION,
                     "inventories")
INVENTORY = record({**GENERATION, **FIELDS}, *GENERATION, "total")
NEW_INVENTORY = record({**GENERATION, "resource_class": NAME, **FIELDS}, "resource_class", "total")
UUIDS = ListOf(Text(1, 36), 1000, unique=True)
AGGREGATES = record({**GENERATION, "aggregates": UUIDS}, *GENERATION, "aggregates")
#: Bodies by route, for those who ask with anything.
BODIES: dict[tuple[str, str], Value] = {
    ("POST", "/resource_classes"): CLASS, ("PUT", "/resource_providers/{uuid}/traits"): TRAITS,
    ("PUT", "/resource_providers/{uuid}/inventories"): INVENTORIES,
    ("POST", "/resource_providers/{uuid}/inventories"): NEW_INVENTORY,
    ("PUT", "/resource_providers/{uuid}/inventories/{name}"): INVENTORY,
    ("PUT", "/resource_providers/{uuid}/aggregates"): AGGREGATES}


class WritingRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement, self.providers = placement, Providers(placement)

    def routes(self) -> list[Guarded]:
        """All are for administrators and services."""
        one = "resource_providers/{uuid}"
        return [route(where, handler, status, "service") for where, handler, status in (
            ("PUT /traits/{name}", self.make_trait, 204), ("DELETE /traits/{name}", self.drop_trait, 204),
            ("POST /resource_classes", self.new_class, 201), ("PUT /resource_classes/{name}", self.make_class, 204),
            ("DELETE /resource_classes/{name}", self.drop_class, 204),
            (f"PUT /{one}/traits", self.set_traits, 200), (f"DELETE /{one}/traits", self.drop_traits, 204),
            (f"PUT /{one}/inventories", self.set_inventories, 200),
            (f"POST /{one}/inventories", self.new_inventory, 201),
            (f"DELETE /{one}/inventories", self.drop_inventories, 204),
            (f"PUT /{one}/inventories/{{name}}", self.set_inventory, 200),
            (f"DELETE /{one}/inventories/{{name}}", self.drop_inventory, 204),
            (f"PUT /{one}/aggregates", self.set_aggregates, 200),
            ("POST /resource_providers", self.refuse, 200), (f"PUT /{one}", self.refuse, 200),
            (f"DELETE /{one}", self.refuse, 204))]

    def refuse(self, request: Request) -> None:
        """What is done to providers themselves. Raises ``Fault``."""
        raise Fault(405, f"{request.method} is not possible at {request.path}: a resource provider is a host, which "
                         "comes with its agent and has its name, or what its agent tells is below it. Add and remove "
                         "hosts (openstack compute service delete); inventories, traits and aggregates can be set.",
                    {"Allow": "GET"})

    def make_trait(self, request: Request) -> Answer:
        """201 for a new one, 204 for one that there is."""
        views.since(request, 6)
        name = NAME.check(request.params["name"], "name")
        made = self.providers.make_trait(name)
        return Answer(None, 201 if made else 204, {"Location": f"/placement/traits/{name}"})

    def drop_trait(self, request: Request) -> None:
        views.since(request, 6)
        self.providers.drop_trait(request.params["name"])

    def new_class(self, request: Request) -> Answer:
        views.since(request, 2)
        name = CLASS.check(request.json(), "")["name"]
        if not self.providers.make_class(name):
            raise Conflict(f"Conflicting resource class already exists: {name}.")
        return Answer(None, 201, {"Location": f"/placement/resource_classes/{name}"})

    def make_class(self, request: Request) -> Answer:
        """201 for a new one, 204 for one that there is (1.7)."""
        views.since(request, 2)
        if views.minor(request) < 7:
            raise InvalidRequest("A resource class is not renamed here: flavors and hosts speak of it by its name. "
                                 "Make another; from microversion 1.7 on this request makes one.")
        name = NAME.check(request.params["name"], "name")
        made = self.providers.make_class(name)
        return Answer(None, 201 if made else 204, {"Location": f"/placement/resource_classes/{name}"})

    def drop_class(self, request: Request) -> None:
        views.since(request, 2)
        self.providers.drop_class(request.params["name"])

    def set_traits(self, request: Request) -> Document:
        """What an operator gives it, beside what its agent tells, which stays."""
        views.since(request, 6)
        given = TRAITS.check(request.json(), "")
        return views.traits(self.providers.set_traits(
            request.params["uuid"], given["resource_provider_generation"], given["traits"]))

    def drop_traits(self, request: Request) -> None:
        """Those that operators have given it."""
        views.since(request, 6)
        self.providers.set_traits(request.params["uuid"], None, ())

    def set_inventories(self, request: Request) -> Document:
        """All: of classes that are not named goes what operators have set."""
        given = INVENTORIES.check(request.json(), "")
        return views.inventories(self.providers.set_inventories(
            request.params["uuid"], given["resource_provider_generation"], given["inventories"], whole=True))

    def new_inventory(self, request: Request) -> Answer:
        """One of a class that it has none of."""
        given = NEW_INVENTORY.check(request.json(), "")
        id, name, generation = request.params["uuid"], given.pop("resource_class"), given.pop(*GENERATION, None)
        if name in self.placement.provider(id).inventories:
            raise Conflict(f"Inventory for {name} on resource provider {id} already exists: PUT changes it.")
        found = self.providers.set_inventories(id, generation, {name: given})
        return Answer(views.inventory(found, name), 201, {
            "Location": f"/placement/resource_providers/{id}/inventories/{name}"})

    def drop_inventories(self, request: Request) -> None:
        """What operators have set (1.5)."""
        views.since(request, 5)
        self.providers.set_inventories(request.params["uuid"], None, {}, whole=True)

    def set_inventory(self, request: Request) -> Document:
        """That of a class."""
        given = INVENTORY.check(request.json(), "")
        name = NAME.check(request.params["name"], "name")
        found = self.providers.set_inventories(request.params["uuid"], given.pop(*GENERATION), {name: given})
        return views.inventory(found, name)

    def drop_inventory(self, request: Request) -> None:
        """What operators have set of a class."""
        id, name = request.params["uuid"], request.params["name"]
        views.inventory(self.placement.provider(id), name)
        self.providers.set_inventories(id, None, {name: None})

    def set_aggregates(self, request: Request) -> Document:
        """The host aggregates that the host is in: a list of uuids until 1.18, with the generation since 1.19."""
        views.since(request, 1)
        given: Any = request.json()
        generation = None
        if views.minor(request) >= 19:
            given = AGGREGATES.check(given, "")
            generation, given = given["resource_provider_generation"], given["aggregates"]
        elif not isinstance(given, list):
            raise InvalidField("body", "must be a list of uuids of host aggregates", given)
        caller = Caller(self.placement.cloud, request.context, request.id)
        return views.aggregates(request, self.providers.set_aggregates(
            caller, request.params["uuid"], generation, UUIDS.check(given, "aggregates")))
