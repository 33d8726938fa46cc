# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of unified limits (Identity API v3, "Unified limits"): registered limits, and limits of projects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from magnetar_control.api.query import check_known
from magnetar_control.api.values import record
from magnetar_control.services import Document, Documents
from magnetar_control.services.identity.limits import UnifiedLimits
from magnetar_control.services.lacking import Lacking
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import Forbidden, InvalidField
from magnetar_core.fields import Record
from magnetar_core.values import Integer, Nullable, Text

from .views import body, resource, resources

LIMIT, WORD = Integer(-1, 2**31 - 1), Text(1, 255)
#: What limits here have not. ``UnifiedLimits`` looks at region_id.
UNSAID = {"region_id": Nullable(WORD),
          "domain_id": Lacking("must be null: limits are of projects. Set one for each project", ""),
          "description": Lacking("must be null: no description of a limit is kept", "")}
NEW = record({**UNSAID, "service_id": WORD, "project_id": WORD, "resource_name": WORD, "resource_limit": LIMIT},
             "service_id", "project_id", "resource_name", "resource_limit")
CHANGED = record({**UNSAID, "resource_limit": LIMIT}, "resource_limit")
REGISTERED = record({**UNSAID, "default_limit": LIMIT, "service_id": WORD, "resource_name": WORD}, "default_limit")
FILTERS = ("service_id", "region_id", "resource_name", "project_id", "domain_id")
MODEL = {"model": {"name": "flat", "description": "Limits of projects do not depend on each other."}}


def routes(limits: UnifiedLimits) -> list[Guarded]:
    """All of them."""
    def shown(request: Request, name: str, found: Document) -> Document:
        return {name: resource(request, f"{name}s", found)}

    def create(request: Request) -> Document:
        given = request.json()
        wanted = given.get("limits") if isinstance(given, dict) else None
        if not isinstance(wanted, list) or not wanted:
            raise InvalidField("limits", "is required: a list of limits")
        checked = [NEW.check(limit, f"limits[{at}]") for at, limit in enumerate(wanted)]
        for at, limit in enumerate(checked):
            limits.check_region(limit.get("region_id"), f"limits[{at}].region_id")
        made = limits.create(request.context, *checked)
        return {"limits": [resource(request, "limits", one) for one in made]}

    def refused(_request: Request) -> NoReturn:
        raise Forbidden("The registered limits are those that services have: set the limit of one, or of a project.")

    changed = partial(_changed, limits)
    one, registered = "/v3/limits/{id}", "/v3/registered_limits"
    return [
        route("GET /v3/limits/model", lambda _request: MODEL),
        route("GET /v3/limits", lambda request: resources(request, "limits", _some(
            request, limits, limits.list(request.context)))),
        route("POST /v3/limits", create, 201, "admin"),
        route(f"GET {one}", lambda request: shown(request, "limit", limits.find(
            limits.list(request.context), "limit", request.params["id"]))),
        route(f"PATCH {one}", lambda request: shown(request, "limit", limits.update(
            *request.named(changed(request, "limit", CHANGED, "resource_limit")))), who="admin"),
        route(f"DELETE {one}", lambda request: limits.delete(*request.named()), 204, "admin"),
        route(f"GET {registered}", lambda request: resources(request, "registered_limits", _some(
            request, limits, limits.registered()))),
        route(f"POST {registered}", refused, who="admin"),
        route(f"GET {registered}/{{id}}", lambda request: shown(request, "registered_limit", limits.find(
            limits.registered(), "registered limit", request.params["id"]))),
        route(f"PATCH {registered}/{{id}}", lambda request: shown(request, "registered_limit", limits.register(
            request.params["id"], changed(request, "registered_limit", REGISTERED, "default_limit"))), who="admin"),
        route(f"DELETE {registered}/{{id}}", refused, who="admin")]


def _changed(limits: UnifiedLimits, request: Request, name: str, value: Record, field: str) -> int:
    """Return the number that the body says for *field*."""
    wanted = value.check(body(request, name), name)
    limits.check_region(wanted.get("region_id"), f"{name}.region_id")
    return int(wanted[field])


def _some(request: Request, limits: UnifiedLimits, found: Sequence[Document]) -> Documents:
    """Return those that the query names. The only region has all of them."""
    check_known(request, FILTERS, "limits are")
    query = [(name, value) for name, value in request.query if (name, value) != ("region_id", limits.only_region())]
    return [limit for limit in found if all(limit.get(name) == value for name, value in query)]
