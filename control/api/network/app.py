# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a table take the same arguments
"""The routes of Neutron's API v2.0: the resources, extensions, quotas, and what there is none of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from magnetar_control.services.network import Embedded
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, Routed
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound

from .resources import FORMS, ResourceRoutes

#: Alias to name of the extensions that hold here.
EXTENSIONS = {
    "availability_zone": "Availability Zone", "binding": "Port Binding",
    "external-net": "Neutron external network", "filter-validation": "Filter parameters validation",
    "net-mtu": "Network MTU", "pagination": "Pagination support", "port-security": "Port Security",
    "project-id": "project_id field enabled", "provider": "Provider Network", "quota_details": "Quota details",
    "quotas": "Quota management support", "security-group": "security-group", "sorting": "Sorting support",
    "standard-attr-description": "standard-attr-description", "standard-attr-timestamp": "Resource timestamps"}
#: What Neutron has and a host's own networks have not: path to key of the empty list.
NONE_OF = {"routers": "routers", "floatingips": "floatingips", "agents": "agents", "subnetpools": "subnetpools",
           "trunks": "trunks", "service-providers": "service_providers", "rbac-policies": "rbac_policies"}
#: Type in an error by its status, where the handler names none.
TYPES = {401: "HTTPUnauthorized", 403: "PolicyNotAuthorized", 404: "HTTPNotFound", 405: "HTTPMethodNotAllowed",
         409: "Conflict", 413: "HTTPRequestEntityTooLarge", 415: "HTTPUnsupportedMediaType",
         500: "HTTPInternalServerError", 503: "HTTPServiceUnavailable"}
UNLIMITED = ("network", "subnet", "port", "security_group", "security_group_rule")
PROJECT = ("tenant_id", "project_id")
NOTHING = ("router", "floatingip", "subnetpool", "rbac_policy", "trunk")


def refused(fault: Fault) -> Answer:
    """A fault in Neutron's form."""
    type = fault.details.get("type") or TYPES.get(fault.status, "HTTPBadRequest")
    return Answer({"NeutronError": {"type": type, "message": fault.message, "detail": ""}}, fault.status)


class Application(Routed):
    """Mounted at ``/network``. *authenticate* sets ``request.context`` or raises ``Fault`` 401."""

    def __init__(self, service: Embedded, authenticate: Callable[[Request], None]) -> None:
        routes = [Guarded(method="GET", path="/", handler=versions, who="anyone"),
                  Guarded(method="GET", path="/v2.0", handler=resources, who="anyone"),
                  Guarded(method="GET", path="/v2.0/extensions", handler=extensions),
                  Guarded(method="GET", path="/v2.0/extensions/{alias}", handler=extension),
                  Guarded(method="GET", path="/v2.0/availability_zones", handler=zones),
                  Guarded(method="GET", path="/v2.0/quotas", handler=quotas, who="admin"),
                  Guarded(method="GET", path="/v2.0/quotas/{id}", handler=quota),
                  Guarded(method="GET", path="/v2.0/quotas/{id}/default", handler=quota),
                  Guarded(method="PUT", path="/v2.0/quotas/{id}", handler=set_quota, who="admin"),
                  Guarded(method="DELETE", path="/v2.0/quotas/{id}", handler=reset_quota, who="admin"),
                  *(route for form in FORMS for route in ResourceRoutes(service.resources[form.plural], form).routes()),
                  *(route for path, key in NONE_OF.items() for route in _none_of(path, key))]
        super().__init__(routes, authenticate, refused)


def versions(request: Request) -> Answer:
    """The one version."""
    return Answer({"versions": [{"id": "v2.0", "status": "CURRENT", "links": [
        {"rel": "self", "href": request.base + "/v2.0/"}]}]})


def resources(request: Request) -> Answer:
    """What the version has."""
    return Answer({"resources": [{"name": form.name, "collection": form.plural, "links": [
        {"rel": "self", "href": f"{request.base}/v2.0/{form.path}"}]} for form in FORMS]})


def _extension(alias: str) -> dict[str, object]:
    return {"alias": alias, "name": EXTENSIONS[alias], "description": EXTENSIONS[alias], "links": [],
            "updated": "2026-11-21T00:00:00-00:00"}


def extensions(request: Request) -> Answer:
    """What clients look for before they use it."""
    return Answer({"extensions": [_extension(alias) for alias in EXTENSIONS]})


def extension(request: Request) -> Answer:
    """One; 404 when it does not hold here."""
    alias = request.params["alias"]
    if alias not in EXTENSIONS:
        raise NotFound(f"Extension with alias {alias} does not exist", type="ExtensionNotFound")
    return Answer({"extension": _extension(alias)})


def zones(request: Request) -> Answer:
    """One zone, the one that all networks are in."""
    return Answer({"availability_zones": [{"name": "nova", "resource": "network", "state": "available"}]})


def quotas(request: Request) -> Answer:
    """Projects with quotas of their own: none."""
    return Answer({"quotas": []})


def quota(request: Request) -> Answer:
    """Without limit; none of what there is none of."""
    if request.params["id"] != request.context.project_id and not request.context.is_admin:
        raise Forbidden("Only admins may see the quota of another project.")
    return Answer({"quota": {**dict.fromkeys(UNLIMITED, -1), **dict.fromkeys(NOTHING, 0)}})


def set_quota(request: Request) -> Answer:
    """Nothing is counted, so the only limit that can be set is none: -1."""
    given = request.json()
    wanted = given.get("quota") if isinstance(given, dict) else None
    if not isinstance(wanted, dict):
        raise InvalidField("quota", "is required: an object of resources and limits")
    for name, limit in wanted.items():
        if name not in UNLIMITED + NOTHING + PROJECT:
            raise InvalidField(f"quota.{name[:60]}", f"is no resource; known are {', '.join(UNLIMITED + NOTHING)}")
        if name in UNLIMITED and limit != -1:
            raise InvalidField(f"quota.{name}", "must be -1: networks and what belongs to them have no limit here")
    return quota(request)


def reset_quota(request: Request) -> Answer:
    """To the defaults, which all projects have."""
    return Answer(None, 204)


def _none_of(path: str, key: str) -> list[Guarded]:
    words = path.replace("-", " ")

    def listed(request: Request) -> Answer:
        return Answer({key: []})

    def made(request: Request) -> NoReturn:
        raise InvalidRequest(f"Embedded networking has no {words}: servers reach out through their host (nat), or "
                             "are on a bridge of it (flat).")

    def shown(request: Request) -> NoReturn:
        raise NotFound(f"Embedded networking has no {words}, so there is no {request.params['id']}.")

    one = f"/v2.0/{path}/{{id}}"
    return [Guarded(method="GET", path=f"/v2.0/{path}", handler=listed),
            Guarded(method="POST", path=f"/v2.0/{path}", handler=made),
            *(Guarded(method=method, path=one, handler=shown) for method in ("GET", "PUT", "DELETE"))]
