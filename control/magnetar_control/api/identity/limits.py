# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of unified limits (Identity API v3, "Unified limits"): registered limits, and limits of projects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from magnetar_control.api.query import check_known
from magnetar_control.api.values import build_record
from magnetar_control.services.identity.limits import UnifiedLimits
from magnetar_control.services.lacking import Lacking
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Forbidden, InvalidField
from magnetar_core.fields import Record
from magnetar_core.values import Integer, Nullable, Text

from .views import render_resource, render_resources, request_object

LIMIT, WORD = Integer(-1, 2**31 - 1), Text(1, 255)
#: Fields that limits here do not have. ``UnifiedLimits`` checks region_id.
UNSAID = {"region_id": Nullable(WORD),
          "domain_id": Lacking("must be null: limits are of projects. Set one for each project", ""),
          "description": Lacking("must be null: no description of a limit is kept", "")}
NEW = build_record({**UNSAID, "service_id": WORD, "project_id": WORD, "resource_name": WORD, "resource_limit": LIMIT},
                   "service_id", "project_id", "resource_name", "resource_limit")
CHANGED = build_record({**UNSAID, "resource_limit": LIMIT}, "resource_limit")
REGISTERED = build_record({**UNSAID, "default_limit": LIMIT, "service_id": WORD, "resource_name": WORD},
                          "default_limit")
FILTERS = ("service_id", "region_id", "resource_name", "project_id", "domain_id")
MODEL = {"model": {"name": "flat", "description": "Limits of projects do not depend on each other."}}


def unified_limit_routes(limits: UnifiedLimits) -> list[Guarded]:
    """Return the routes of Keystone's unified limits: ``/v3/limits`` and ``/v3/registered_limits``."""
    def shown(request: Request, name: str, document: Document) -> Document:
        return {name: render_resource(request, f"{name}s", document)}

    def create(request: Request) -> Document:
        content = request.json()
        requested = content.get("limits") if isinstance(content, dict) else None
        if not isinstance(requested, list) or not requested:
            raise InvalidField("limits", "is required: a list of limits")
        checked = [NEW.check(limit, f"limits[{at}]") for at, limit in enumerate(requested)]
        for at, limit in enumerate(checked):
            limits.check_region(limit.get("region_id"), f"limits[{at}].region_id")
        made = limits.create(request.context, *checked)
        return {"limits": [render_resource(request, "limits", limit) for limit in made]}

    def refused(_request: Request) -> NoReturn:
        raise Forbidden("The registered limits are those that services have: set the limit of one, or of a project.")

    changed = partial(_changed, limits)
    limit_path, registered = "/v3/limits/{id}", "/v3/registered_limits"
    return [
        guarded_route("GET /v3/limits/model", lambda _request: MODEL),
        guarded_route("GET /v3/limits", lambda request: render_resources(request, "limits", _filter_limits(
            request, limits, limits.list(request.context)))),
        guarded_route("POST /v3/limits", create, 201, "admin"),
        guarded_route(f"GET {limit_path}", lambda request: shown(request, "limit", limits.find(
            limits.list(request.context), "limit", request.params["id"]))),
        guarded_route(f"PATCH {limit_path}", lambda request: shown(request, "limit", limits.update(
            *request.service_arguments(changed(request, "limit", CHANGED, "resource_limit")))), who="admin"),
        guarded_route(f"DELETE {limit_path}", lambda request: limits.delete(*request.service_arguments()), 204,
                      "admin"),
        guarded_route(f"GET {registered}", lambda request: render_resources(
            request, "registered_limits", _filter_limits(request, limits, limits.registered()))),
        guarded_route(f"POST {registered}", refused, who="admin"),
        guarded_route(f"GET {registered}/{{id}}", lambda request: shown(request, "registered_limit", limits.find(
            limits.registered(), "registered limit", request.params["id"]))),
        guarded_route(f"PATCH {registered}/{{id}}", lambda request: shown(request, "registered_limit", limits.register(
            request.params["id"], changed(request, "registered_limit", REGISTERED, "default_limit"))), who="admin"),
        guarded_route(f"DELETE {registered}/{{id}}", refused, who="admin")]


def _changed(limits: UnifiedLimits, request: Request, name: str, value: Record, field: str) -> int:
    """Return the limit that the request body sets. The body has an object under the key *name*; the limit is the number
    in the field *field* of this object. *value*: the validator of this object. Raises ``InvalidField``, and
    ``InvalidRequest`` if the body has no such object."""
    change = value.check(request_object(request, name), name)
    limits.check_region(change.get("region_id"), f"{name}.region_id")
    return int(change[field])


def _filter_limits(request: Request, limits: UnifiedLimits, documents: Sequence[Document]) -> Documents:
    """Return those *documents* (limits) that match the query parameters. The parameter ``region_id`` is ignored if it
    names the only region of the service catalog."""
    check_known(request, FILTERS, "limits are")
    query = [(name, value) for name, value in request.query if (name, value) != ("region_id", limits.only_region())]
    return [limit for limit in documents if all(limit.get(name) == value for name, value in query)]
