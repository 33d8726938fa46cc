# SPDX-License-Identifier: GPL-3.0-or-later
"""The changeable part of Placement: custom traits and resource classes; traits, inventories and aggregates of
providers. Providers themselves are hosts, which appear and disappear with their agents."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import Decimal, build_record
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.compute.placement.providers import Providers
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest
from magnetar_core.values import Integer, ListOf, MapOf, Text, Value

from . import views

NAME = Text(1, 255, r"[A-Z0-9_]+", "must be capital letters, digits and _")
GENERATION = {"resource_provider_generation": Integer()}
FIELDS: dict[str, Value] = {
    "total": Integer(1), "reserved": Integer(), "min_unit": Integer(1), "max_unit": Integer(1),
    "step_size": Integer(1), "allocation_ratio": Decimal(1e30)}
CLASS = build_record({"name": NAME}, "name")
TRAITS = build_record({**GENERATION, "traits": ListOf(NAME, 1000, unique=True)}, *GENERATION, "traits")
INVENTORIES = build_record({**GENERATION, "inventories": MapOf(NAME, build_record(FIELDS, "total"), 500)}, *GENERATION,
                           "inventories")
INVENTORY = build_record({**GENERATION, **FIELDS}, *GENERATION, "total")
NEW_INVENTORY = build_record({**GENERATION, "resource_class": NAME, **FIELDS}, "resource_class", "total")
UUIDS = ListOf(Text(1, 36), 1000, unique=True)
AGGREGATES = build_record({**GENERATION, "aggregates": UUIDS}, *GENERATION, "aggregates")
#: Bodies by route, for fuzz tests.
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
        """Return the routes that change resource providers, traits and resource classes, with their handlers. Only
        administrators and services may use them."""
        provider_path = "resource_providers/{uuid}"
        return [guarded_route(where, handler, status, "service") for where, handler, status in (
            ("PUT /traits/{name}", self.make_trait, 204), ("DELETE /traits/{name}", self.drop_trait, 204),
            ("POST /resource_classes", self.new_class, 201), ("PUT /resource_classes/{name}", self.make_class, 204),
            ("DELETE /resource_classes/{name}", self.drop_class, 204),
            (f"PUT /{provider_path}/traits", self.set_traits, 200),
            (f"DELETE /{provider_path}/traits", self.drop_traits, 204),
            (f"PUT /{provider_path}/inventories", self.set_inventories, 200),
            (f"POST /{provider_path}/inventories", self.new_inventory, 201),
            (f"DELETE /{provider_path}/inventories", self.drop_inventories, 204),
            (f"PUT /{provider_path}/inventories/{{name}}", self.set_inventory, 200),
            (f"DELETE /{provider_path}/inventories/{{name}}", self.drop_inventory, 204),
            (f"PUT /{provider_path}/aggregates", self.set_aggregates, 200),
            ("POST /resource_providers", self.refuse, 200), (f"PUT /{provider_path}", self.refuse, 200),
            (f"DELETE /{provider_path}", self.refuse, 204))]

    def refuse(self, request: Request) -> None:
        """Raise ``Fault`` 405 for a request to create, update or delete a resource provider. Each provider belongs to a
        host, and exists as long as that host."""
        raise Fault(405, f"{request.method} is not possible at {request.path}: a resource provider is a host, which "
                         "comes with its agent and has its name, or what its agent tells is below it. Add and remove "
                         "hosts (openstack compute service delete); inventories, traits and aggregates can be set.",
                    {"Allow": "GET"})

    def make_trait(self, request: Request) -> Answer:
        """Create a custom trait. Return 201 for a new trait, 204 for an existing one."""
        views.require_minor_version(request, 6)
        name = NAME.check(request.params["name"], "name")
        made = self.providers.make_trait(name)
        return Answer(None, 201 if made else 204, {"Location": f"/placement/traits/{name}"})

    def drop_trait(self, request: Request) -> None:
        views.require_minor_version(request, 6)
        self.providers.drop_trait(request.params["name"])

    def new_class(self, request: Request) -> Answer:
        views.require_minor_version(request, 2)
        name = CLASS.check(request.json(), "")["name"]
        if not self.providers.make_class(name):
            raise Conflict(f"Conflicting resource class already exists: {name}.")
        return Answer(None, 201, {"Location": f"/placement/resource_classes/{name}"})

    def make_class(self, request: Request) -> Answer:
        """Create a custom resource class (1.7). Return 201 for a new class, 204 for an existing one."""
        views.require_minor_version(request, 2)
        if views.minor_version(request) < 7:
            raise InvalidRequest("A resource class is not renamed here: flavors and hosts speak of it by its name. "
                                 "Make another; from microversion 1.7 on this request makes one.")
        name = NAME.check(request.params["name"], "name")
        made = self.providers.make_class(name)
        return Answer(None, 201 if made else 204, {"Location": f"/placement/resource_classes/{name}"})

    def drop_class(self, request: Request) -> None:
        views.require_minor_version(request, 2)
        self.providers.drop_class(request.params["name"])

    def set_traits(self, request: Request) -> Document:
        """Replace the traits that operators have set on a provider, and return all its traits. Traits that the host's
        agent reports do not change."""
        views.require_minor_version(request, 6)
        body = TRAITS.check(request.json(), "")
        return views.traits_view(self.providers.set_traits(
            request.params["uuid"], body["resource_provider_generation"], body["traits"]))

    def drop_traits(self, request: Request) -> None:
        """Remove the traits that operators have set on a provider. Traits that the agent of the host reports do not
        change."""
        views.require_minor_version(request, 6)
        self.providers.set_traits(request.params["uuid"], None, ())

    def set_inventories(self, request: Request) -> Document:
        """Replace the inventories that operators have set on a provider, and return all its inventories. For each
        resource class that the body does not contain, the values that operators have set are removed. Inventories that
        the host's agent reports remain."""
        body = INVENTORIES.check(request.json(), "")
        return views.inventories_view(self.providers.set_inventories(
            request.params["uuid"], body["resource_provider_generation"], body["inventories"], whole=True))

    def new_inventory(self, request: Request) -> Answer:
        """Create an inventory of a resource class that the provider does not have yet, and return it."""
        inventory = NEW_INVENTORY.check(request.json(), "")
        id, name, generation = request.params["uuid"], inventory.pop("resource_class"), inventory.pop(*GENERATION, None)
        if name in self.placement.provider(id).inventories:
            raise Conflict(f"Inventory for {name} on resource provider {id} already exists: PUT changes it.")
        provider = self.providers.set_inventories(id, generation, {name: inventory})
        return Answer(views.inventory_view(provider, name), 201, {
            "Location": f"/placement/resource_providers/{id}/inventories/{name}"})

    def drop_inventories(self, request: Request) -> None:
        """Remove the inventories that operators have set on a provider (1.5)."""
        views.require_minor_version(request, 5)
        self.providers.set_inventories(request.params["uuid"], None, {}, whole=True)

    def set_inventory(self, request: Request) -> Document:
        """Set the inventory of one resource class of a provider, and return it."""
        inventory = INVENTORY.check(request.json(), "")
        name = NAME.check(request.params["name"], "name")
        provider = self.providers.set_inventories(request.params["uuid"], inventory.pop(*GENERATION), {name: inventory})
        return views.inventory_view(provider, name)

    def drop_inventory(self, request: Request) -> None:
        """Remove one inventory that an operator has set on a provider. The URL names its resource class."""
        id, name = request.params["uuid"], request.params["name"]
        views.inventory_view(self.placement.provider(id), name)
        self.providers.set_inventories(id, None, {name: None})

    def set_aggregates(self, request: Request) -> Document:
        """Set the aggregates of a host, and return their uuids. Until 1.18 the request is a list of uuids; since 1.19
        it is an object with the uuids and the provider's generation."""
        views.require_minor_version(request, 1)
        body: Any = request.json()
        generation = None
        if views.minor_version(request) >= 19:
            body = AGGREGATES.check(body, "")
            generation, body = body["resource_provider_generation"], body["aggregates"]
        elif not isinstance(body, list):
            raise InvalidField("body", "must be a list of uuids of host aggregates", body)
        caller = Caller(self.placement.cloud, request.context, request.id)
        return views.aggregates_view(request, self.providers.set_aggregates(
            caller, request.params["uuid"], generation, UUIDS.check(body, "aggregates")))
