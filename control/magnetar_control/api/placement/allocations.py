# SPDX-License-Identifier: GPL-3.0-or-later
"""``/allocations``: the allocations of a consumer, shown and changed, in the form of each microversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Anything, build_record
from magnetar_control.compute.placement.consumers import UNKNOWN, ConsumerRequest, Consumers, normal_uuid
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Integer, ListOf, MapOf, Nullable, Text, Value

from . import views
from .writing import NAME

RESOURCES = MapOf(NAME, Integer(1), 500)
#: The form until 1.11, and the form since 1.12.
OF_LIST = ListOf(build_record({"resource_provider": build_record({"uuid": Text(1, 36)}, "uuid"),
                               "resources": RESOURCES},
                              "resource_provider", "resources"), 500)
BY_PROVIDER = MapOf(Text(1, 36), build_record({"resources": RESOURCES, "generation": Integer()}, "resources"), 500)
WHO = Text(1, 255)


def allocation_body(minor: int) -> Value:
    """Return a validator of the request body with the allocations of one consumer, at microversion 1.*minor*."""
    fields: dict[str, Value] = {"allocations": BY_PROVIDER if minor >= 12 else OF_LIST}
    required = ["allocations"]
    if minor >= 8:
        fields |= {"project_id": WHO, "user_id": WHO}
        required += ["project_id", "user_id"]
    if minor >= 28:
        fields["consumer_generation"] = Nullable(Integer())
        required.append("consumer_generation")
    if minor >= 34:
        fields["mappings"] = Anything()  # the provider of each group of a request: accepted, and not stored
    if minor >= 38:
        fields["consumer_type"] = NAME
        required.append("consumer_type")
    return build_record(fields, *required)


class AllocationRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement, self.consumers = placement, Consumers(placement)

    def routes(self) -> list[Guarded]:
        """Return the routes of allocations, with their handlers. Only administrators and services may use them."""
        return [guarded_route(where, handler, status, "service") for where, handler, status in (
            ("GET /allocations/{uuid}", self.show, 200), ("PUT /allocations/{uuid}", self.replace, 204),
            ("DELETE /allocations/{uuid}", self.remove, 204), ("POST /allocations", self.replace_many, 204))]

    def show(self, request: Request) -> Document:
        """Return the allocations of the consumer in the URL; an empty object if it has none, as in Placement."""
        consumer, providers = self.placement.consumer(normal_uuid(request.params["uuid"]))
        if consumer is None:
            return {"allocations": {}}
        minor, allocations = views.minor_version(request), {
            id: {"resources": resources, "generation": providers[id].generation}
            for id, resources in consumer.held.items() if id in providers}
        more: dict[str, Any] = {"project_id": consumer.project_id, "user_id": consumer.user_id} if minor >= 12 else {}
        more |= {"consumer_generation": consumer.generation} if minor >= 28 else {}
        return {"allocations": allocations, **more, **({"consumer_type": consumer.type} if minor >= 38 else {})}

    def replace(self, request: Request) -> None:
        """Replace the allocations of a consumer by those in the body. Since 1.28, the body may contain none."""
        minor = views.minor_version(request)
        body = allocation_body(minor).check(request.json(), "")
        if not body["allocations"] and minor < 28:
            raise InvalidField("allocations", "must not be empty: DELETE removes them")
        self.consumers.replace({normal_uuid(request.params["uuid"]): _consumer_request(body, minor)})

    def replace_many(self, request: Request) -> None:
        """Replace the allocations of several consumers in one transaction: POST /allocations (1.13)."""
        views.require_minor_version(request, 13)
        minor = views.minor_version(request)
        bodies = MapOf(Text(1, 36), allocation_body(minor), 500).check(request.json(), "")
        if not bodies:
            raise InvalidField("body", "must have a consumer")
        self.consumers.replace(consumer_requests(bodies, minor))

    def remove(self, request: Request) -> None:
        """Remove the allocations of a consumer."""
        self.consumers.release(normal_uuid(request.params["uuid"]))


def consumer_requests(bodies: Mapping[str, Document], minor: int) -> dict[str, ConsumerRequest]:
    """Convert request bodies to ``ConsumerRequest`` objects, and return them by the consumer's uuid. *bodies*: a body
    of microversion 1.*minor* for each consumer's uuid. Raises ``InvalidRequest`` if a consumer occurs twice, with its
    uuid written in two ways."""
    requests_by_consumer = {normal_uuid(id): _consumer_request(body, minor) for id, body in bodies.items()}
    if len(requests_by_consumer) < len(bodies):
        raise InvalidRequest("A consumer is named twice: write each consumer_uuid once, with dashes.")
    return requests_by_consumer


def _consumer_request(body: Document, minor: int) -> ConsumerRequest:
    allocations = body["allocations"]
    if minor < 12:
        allocations = {allocation["resource_provider"]["uuid"]: allocation for allocation in allocations}
    claims = {id.lower(): allocation["resources"] for id, allocation in allocations.items() if allocation["resources"]}
    return ConsumerRequest(claims, body.get("project_id", ""), body.get("user_id", ""),
                           body.get("consumer_type", UNKNOWN),
                           body.get("consumer_generation"), minor >= 28)
