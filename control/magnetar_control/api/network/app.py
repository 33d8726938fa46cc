# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of Neutron's API v2.0: the resources, extensions, quotas, and absent resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import NoReturn

from magnetar_control.api.failures import RoutedService
from magnetar_control.api.fault_forms import keystone_document
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.auto_topologies import AutoTopologies
from magnetar_control.services.network.ports.trunks import TrunkStore
from magnetar_control.services.network.routers.routers import RouterStore
from magnetar_control.services.network.security.address_groups import AddressGroupStore
from magnetar_control.store.hosts.services import Service
from magnetar_control.web import Answer, Fault, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_control.web.routing import ANY_SLASH
from magnetar_core.document import Document
from magnetar_core.errors import InvalidRequest, NotFound

from . import attributes, lacking, qos_rules, without
from .agents import AgentRoutes
from .ip_availability import IpAvailabilityRoutes
from .quotas import QuotaRoutes
from .resources import FORMS, OF_ENGINE, NetworkResourceRoutes, address_group_view, router_view, trunk_view
from .tags import TagRoutes

#: Alias to name of the supported extensions, which clients check before they use one.
EXTENSIONS = {
    "address-scope": "Address scope", "agent": "agent",
    "availability_zone": "Availability Zone", "binding": "Port Binding",
    "default-subnetpools": "Default Subnetpools",
    "external-net": "Neutron external network", "filter-validation": "Filter parameters validation",
    "net-mtu": "Network MTU", "network-ip-availability": "Network IP Availability",
    "pagination": "Pagination support", "port-security": "Port Security",
    "project-id": "project_id field enabled", "provider": "Provider Network",
    "quota-check-limit": "Quota engine limit check", "quota_details": "Quota details",
    "quotas": "Quota management support", "rbac-policies": "RBAC Policies",
    "rbac-address-scope": "Add address_scope type to RBAC", "rbac-security-groups":
    "Add security_group type to network RBAC", "rbac-subnetpool": "Add subnetpool type to RBAC",
    "security-group": "security-group", "security-groups-default-rules": "Default rules for security groups",
    "sorting": "Sorting support",
    "standard-attr-description": "standard-attr-description",
    "standard-attr-tag": "Tag support for resources with standard attribute",
    "standard-attr-timestamp": "Resource timestamps",
    "subnet_allocation": "Subnet Allocation"}
#: Further extensions with an engine of networks.
WITH_ENGINE = {"address-group": "Address group", "port-resource-request": "Port Resource Request",
               "port-resource-request-groups": "Port resource request groups",
               "qos-bw-minimum-ingress": "Ingress direction for QoS minimum bandwidth rule",
               "rbac-address-group": "Add address_group type to RBAC",
               "security-groups-remote-address-group": "Remote address group id field for security group rules",
               "allowed-address-pairs": "Allowed Address Pairs",
               "dns-integration": "DNS Integration",
               "ext-gw-mode": "Neutron L3 Configurable external gateway mode",
               "expose-port-forwarding-in-fip": "Expose Port Forwarding in FIP",
               "extraroute": "Neutron Extra Route",
               "extraroute-atomic": "Atomically add/remove extra routes", "qos": "Quality of Service",
               "floating-ip-port-forwarding": "Floating IP Port Forwarding",
               "qos-bw-limit-direction": "Direction for QoS bandwidth limit rule",
               "qos-default": "QoS default policy", "qos-rule-type-details": "Details of QoS rule types",
               "auto-allocated-topology": "Auto Allocated Topology Services",
               "router": "Neutron L3 Router", "trunk": "Trunk Extension", "trunk-details": "Trunk port details"}
#: Resources of Neutron that a host's own networks do not have: path to key of the empty list.
NONE_OF = {"routers": "routers", "floatingips": "floatingips", "trunks": "trunks",
           "service-providers": "service_providers"}
#: Error type by status, for handlers that name none.
TYPES = {403: "PolicyNotAuthorized", 404: "HTTPNotFound", 405: "HTTPMethodNotAllowed",
         409: "Conflict", 413: "HTTPRequestEntityTooLarge", 415: "HTTPUnsupportedMediaType",
         500: "HTTPInternalServerError", 503: "HTTPServiceUnavailable"}


def render_neutron_fault(fault: Fault) -> Answer:
    """Return the HTTP answer for *fault* in the format of Neutron's errors; status 401 has Keystone's format, as
    keystonemiddleware answers."""
    if fault.status == HTTPStatus.UNAUTHORIZED:
        return Answer(keystone_document(fault), fault.status)
    type = fault.details.get("type") or TYPES.get(fault.status, "HTTPBadRequest")
    return Answer({"NeutronError": {"type": type, "message": fault.message, "detail": ""}}, fault.status)


def network_application(service: EmbeddedNetworks, authenticate: Callable[[Request], None],
                        hosts: Callable[[], Sequence[Service]] = tuple,
                        delete_port: Callable[[Request], None] | None = None) -> RoutedService:
    """Return the web application of the Networking API, mounted at ``/network``. *authenticate*: sets
    ``request.context``, or raises ``Fault`` 401. *hosts*: returns the compute hosts. *delete_port*: handles DELETE of a
    port, even if a server uses the port; ``None``: a port in use cannot be deleted."""
    extensions = {**EXTENSIONS, **(WITH_ENGINE if service.worker else {})}
    forms = (*FORMS, *(OF_ENGINE if service.worker else ()))
    return RoutedService([
        guarded_route("GET /", lambda request: {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [
            {"rel": "self", "href": request.base + "/v2.0/"}]}]}, who="anyone"),
        guarded_route("GET /v2.0", lambda request: {"resources": [{"name": form.name, "collection": form.plural,
                                                                   "links": [
            {"rel": "self", "href": f"{request.base}/v2.0/{form.path}"}]} for form in forms]}, who="anyone"),
        guarded_route("GET /v2.0/extensions", lambda _request: {"extensions": [_extension(extensions, alias)
                                                                               for alias in extensions]}),
        guarded_route("GET /v2.0/extensions/{alias}",
                      lambda request: {"extension": _extension(extensions, request.params["alias"])}),
        guarded_route("GET /v2.0/availability_zones", lambda _request: {"availability_zones": [
            {"name": "nova", "resource": "network", "state": "available"}]}),
        *without.absent_network_routes(), *AgentRoutes(hosts).routes(), *QuotaRoutes(service).routes(),
        *IpAvailabilityRoutes(service.database).routes(),
        *(route for form in forms for route in NetworkResourceRoutes(
            service.resources, form, delete_port if form.name == "port" else None).routes()),
        *(route for form in forms for route in TagRoutes(
            service.resources[form.store or form.plural], form.path).routes()),
        *(route for path, key in NONE_OF.items()
          if key not in service.resources for route in _none_of(path, key)),
        *((*_interfaces(service.routers), *_addresses(service.addresses), *_subports(service.trunks),
           *qos_rules.qos_rule_routes(), *_topologies(service.topologies))
          if service.worker else ()),
    ], authenticate, render_neutron_fault, ANY_SLASH)


def _interfaces(routers: RouterStore) -> list[Guarded]:
    def done(request: Request, put: bool) -> Document:
        wish = attributes.INTERFACE.check(request.json(), "body")
        wish = {name: value for name, value in wish.items() if name not in lacking.INTERFACE}
        return routers.interface(request.context, request.params["id"], wish, put=put)

    def routed(request: Request, put: bool) -> Document:
        wish = attributes.EXTRA_ROUTES.check(request.json(), "body")["router"]
        updated_router = routers.routes(request.context, request.params["id"], wish["routes"], put=put)
        return {"router": router_view(updated_router, request.context.is_admin)}

    return [guarded_route(f"PUT /v2.0/routers/{{id}}/{verb}_{target}", partial(act, put=verb == "add"))
            for target, act in (("router_interface", done), ("extraroutes", routed)) for verb in ("add", "remove")]


def _addresses(groups: AddressGroupStore) -> list[Guarded]:
    def done(request: Request, put: bool) -> Document:
        wish = attributes.ADDRESSES.check(request.json(), "body")
        group = groups.move(request.context, request.params["id"], wish["addresses"], put=put)
        return {"address_group": address_group_view(group, request.context.is_admin)}

    return [guarded_route(f"PUT /v2.0/address-groups/{{id}}/{verb}_addresses", partial(done, put=verb == "add"))
            for verb in ("add", "remove")]


def _topologies(topologies: AutoTopologies) -> list[Guarded]:
    """Return the routes of a project's auto-allocated topology. A GET with ``fields=dry-run`` only checks whether the
    topology can be created."""
    def show(request: Request) -> Document:
        project, dry = request.params["id"], ("fields", "dry-run") in request.query
        topology_id = "dry-run=pass"
        if dry:
            topologies.check(request.context, project)
        else:
            topology_id = topologies.find(request.context, project)
        return {"auto_allocated_topology": {"id": topology_id, "project_id": project, "tenant_id": project}}

    return [guarded_route("GET /v2.0/auto-allocated-topology/{id}", show),
            guarded_route("DELETE /v2.0/auto-allocated-topology/{id}",
                          lambda request: topologies.delete(request.context, request.params["id"]), 204)]


def _subports(trunks: TrunkStore) -> list[Guarded]:
    """Return the routes that list, add and remove the subports of a trunk. As in Neutron, the answer to a change is the
    trunk itself, not an object with the key ``trunk``."""
    def done(request: Request, put: bool) -> Document:
        wish = (attributes.SUB_PORTS if put else attributes.GONE_PORTS).check(request.json(), "body")
        changed_trunk = trunks.move(request.context, request.params["id"], wish["sub_ports"], put=put)
        return trunk_view(changed_trunk, request.context.is_admin)

    return [guarded_route("GET /v2.0/trunks/{id}/get_subports", lambda request: {
                "sub_ports": trunks.show(request.context, request.params["id"])["sub_ports"]}),
            *(guarded_route(f"PUT /v2.0/trunks/{{id}}/{verb}_subports", partial(done, put=verb == "add"))
              for verb in ("add", "remove"))]


def _extension(extensions: Mapping[str, str], alias: str) -> Document:
    if alias not in extensions:
        raise NotFound(f"Extension with alias {alias} does not exist", type="ExtensionNotFound")
    return {"alias": alias, "name": extensions[alias], "description": extensions[alias], "links": [],
            "updated": "2026-11-21T00:00:00-00:00"}


def _none_of(path: str, key: str) -> list[Guarded]:
    words = path.replace("-", " ")

    def made(_request: Request) -> NoReturn:
        raise InvalidRequest(f"Embedded networking has no {words}: servers reach out through their host (nat), or "
                             "are on a bridge of it (flat).")

    def shown(request: Request) -> NoReturn:
        raise NotFound(f"Embedded networking has no {words}, so there is no {request.params['id']}.")

    return [guarded_route(f"GET /v2.0/{path}", lambda _request: {key: []}), guarded_route(f"POST /v2.0/{path}", made),
            *(guarded_route(f"{method} /v2.0/{path}/{{id}}", shown) for method in ("GET", "PUT", "DELETE"))]
