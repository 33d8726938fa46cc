# SPDX-License-Identifier: GPL-3.0-or-later
"""``/allocations``: what a consumer holds, shown and changed, in the form of each microversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Anything, record
from magnetar_control.compute.placement.consumers import UNKNOWN, Consumers, Wish, normal_uuid
from magnetar_control.compute.placement.placement import Placement
from magnetar_control.services import Document
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Integer, ListOf, MapOf, Nullable, Text, Value

from . import views
from .writing import NAME

RESOURCES = MapOf(NAME, Integer(1), 500)
#: Until 1.11, and since 1.12.
OF_LIST = ListOf(record({"resource_provider": record({"uuid": Text(1, 36)}, "uuid"), "resources": RESOURCES},
                        "resource_provider", "resources"), 500)
BY_PROVIDER = MapOf(Text(1, 36), record({"resources": RESOURCES, "generation": Integer()}, "resources"), 500)
WHO = Text(1, 255)


def form(minor: int) -> Value:
    """The body for one consumer at 1.*minor*."""
    fields: dict[str, Value] = {"allocations": BY_PROVIDER if minor >= 12 else OF_LIST}
    required = ["allocations"]
    if minor >= 8:
        fields |= {"project_id": WHO, "user_id": WHO}
        required += ["project_id", "user_id"]
    if minor >= 28:
        fields["consumer_generation"] = Nullable(Integer())
        required.append("consumer_generation")
    if minor >= 34:
        fields["mappings"] = Anything()  # which provider each group of a request got: it is told, and not kept
    if minor >= 38:
        fields["consumer_type"] = NAME
        required.append("consumer_type")
    return record(fields, *required)


class AllocationRoutes:
    def __init__(self, placement: Placement) -> None:
        self.placement, self.consumers = placement, Consumers(placement)

    def routes(self) -> list[Guarded]:
        """All are for administrators and services."""
        return [route(where, handler, status, "service") for where, handler, status in (
            ("GET /allocations/{uuid}", self.show, 200), ("PUT /allocations/{uuid}", self.replace, 204),
            ("DELETE /allocations/{uuid}", self.remove, 204), ("POST /allocations", self.replace_many, 204))]

    def show(self, request: Request) -> Document:
        """What a consumer holds; nothing of one that holds nothing, as in Placement."""
        found, providers = self.placement.consumer(normal_uuid(request.params["uuid"]))
        if found is None:
            return {"allocations": {}}
        minor, held = views.minor(request), {
            id: {"resources": resources, "generation": providers[id].generation}
            for id, resources in found.held.items() if id in providers}
        more: dict[str, Any] = {"project_id": found.project_id, "user_id": found.user_id} if minor >= 12 else {}
        more |= {"consumer_generation": found.generation} if minor >= 28 else {}
        return {"allocations": held, **more, **({"consumer_type": found.type} if minor >= 38 else {})}

    def replace(self, request: Request) -> None:
        """Have a consumer hold what the body says; since 1.28 that may be nothing."""
        minor = views.minor(request)
        given = form(minor).check(request.json(), "")
        if not given["allocations"] and minor < 28:
            raise InvalidField("allocations", "must not be empty: DELETE removes them")
        self.consumers.replace({normal_uuid(request.params["uuid"]): _wish(given, minor)})

    def replace_many(self, request: Request) -> None:
        """The same for several consumers at once (1.13), all of them or none."""
        views.since(request, 13)
        minor = views.minor(request)
        given = MapOf(Text(1, 36), form(minor), 500).check(request.json(), "")
        if not given:
            raise InvalidField("body", "must have a consumer")
        self.consumers.replace(wishes(given, minor))

    def remove(self, request: Request) -> None:
        """Have a consumer hold nothing."""
        self.consumers.release(normal_uuid(request.params["uuid"]))


def wishes(given: Mapping[str, Document], minor: int) -> dict[str, Wish]:
    """Return what consumers must hold, by uuid, of bodies at 1.*minor*. Raises ``InvalidRequest`` for a consumer that
    is named twice."""
    found = {normal_uuid(id): _wish(one, minor) for id, one in given.items()}
    if len(found) < len(given):
        raise InvalidRequest("A consumer is named twice: write each consumer_uuid once, with dashes.")
    return found


def _wish(given: Document, minor: int) -> Wish:
    said = given["allocations"]
    if minor < 12:
        said = {one["resource_provider"]["uuid"]: one for one in said}
    held = {id.lower(): one["resources"] for id, one in said.items() if one["resources"]}
    return Wish(held, given.get("project_id", ""), given.get("user_id", ""), given.get("consumer_type", UNKNOWN),
                given.get("consumer_generation"), minor >= 28)
