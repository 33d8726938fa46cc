# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes that all of Neutron's resources have: list, show, create (one or many), update, delete; and the forms of
the resources (API reference, Networking v2.0)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from magnetar_control.api.values import Number, Truth, to_second
from magnetar_control.services import Page
from magnetar_control.services.network.ports import qos
from magnetar_control.services.network.ports.virtual_functions import is_host_device, vif_type
from magnetar_control.services.network.resources import NetworkStore
from magnetar_control.services.network.security.default_rules import USES
from magnetar_control.services.network.security.group_rules import SAME
from magnetar_control.services.network.tags import tags_of
from magnetar_control.web import Answer, Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.fields import Record
from magnetar_core.query import check_sort
from magnetar_core.values import Nullable

from . import attributes
from .attributes import NAMES

#: Parameters of a list that are no filters.
CONTROLS = frozenset({"fields", "limit", "marker", "page_reverse", "sort_dir", "sort_key"})
#: Attributes for filtering and sorting that no body has.
READ_ONLY = frozenset({"id", "status", "created_at"})
COUNT = Number(0, 999_999_999)
Row = Mapping[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The presentation of a resource type in the Networking API: its names in URLs and JSON, the attributes of request
    bodies, and its view.

    *view*: a function that converts a row to JSON; the second argument is whether the caller is an administrator.
    *store*: the name of the resource type in the network service, if this name differs from *plural* (the name in URLs
    and JSON lists). *above*: the parent resource at the beginning of the URL, ``None`` without a parent. It is a pair:
    the name of the parent's type in the network service, and the name of the column and URL parameter with the parent's
    id.
    """

    name: str
    plural: str
    path: str
    body: Record
    view: Callable[[Row, bool], Document]
    store: str = ""
    above: tuple[str, str] | None = None

    def attribute(self, name: str) -> Any:
        """Return the validator of the attribute *name*; ``None`` for an unknown attribute."""
        usual = attributes.TRUTH if name == "shared" else None  # RBAC policies set it for some resources
        return next((field.value for field in self.body.fields if field.name == name), usual)


def _common_attributes(row: Row, *names: str) -> Document:
    """Return, in Neutron's format, the attributes that most resource types have, such as tags and times, and the
    additional attributes *names* (columns of *row* that need no conversion)."""
    return {"id": row["id"], "project_id": row["project_id"], "tenant_id": row["project_id"],
            "description": row["description"], "created_at": to_second(row["created_at"]),
            "tags": tags_of(row),
            "updated_at": to_second(row["updated_at"] or row["created_at"]), **{name: row[name] for name in names}}


def network_view(row: Row, admin: bool) -> Document:
    """Return the network *row* in the format of Neutron's answers. *admin*: include the provider attributes."""
    provider = {"provider:network_type": row["type"], "provider:physical_network": row["bridge"],
                "provider:segmentation_id": row["segment"]}
    plain = ("name", "admin_state_up", "shared", "is_default", "mtu", "port_security_enabled", "subnets",
             "qos_policy_id", "dns_domain")
    return {**_common_attributes(row, *plain), "status": "ACTIVE", "router:external": row["external"],
            "availability_zones": ["nova"], "availability_zone_hints": [], "pvlan": False,
            **{f"ipv{version}_address_scope": row["scopes"].get(version) for version in (4, 6)},
            **(provider if admin else {})}


def subnet_view(row: Row, _admin: bool) -> Document:
    """Return the subnet *row* in the format of Neutron's answers."""
    plain = ("name", "network_id", "cidr", "gateway_ip", "enable_dhcp", "allocation_pools", "dns_nameservers",
             "host_routes", "ipv6_ra_mode", "ipv6_address_mode", "subnetpool_id")
    return {**_common_attributes(row, *plain), "ip_version": 6 if ":" in row["cidr"] else 4, "service_types": []}


def subnetpool_view(row: Row, _admin: bool) -> Document:
    """Return the subnet pool *row* in the format of Neutron's answers."""
    plain = ("name", "prefixes", "ip_version", "min_prefixlen", "default_prefixlen", "max_prefixlen", "default_quota",
             "shared", "is_default", "address_scope_id")
    return _common_attributes(row, *plain)


def address_scope_view(row: Row, _admin: bool) -> Document:
    """Return the address scope *row* in the format of Neutron's answers. It has no description, times or tags."""
    return _common_attributes(row, "name", "ip_version", "shared")


def port_view(row: Row, admin: bool) -> Document:
    """Return the port *row* in the format of Neutron's answers. *admin*: include the attributes that only
    administrators see: the binding (host, VIF type) and the resource request."""
    plain = ("name", "network_id", "mac_address", "admin_state_up", "status", "device_id", "device_owner",
             "port_security_enabled", "fixed_ips", "security_groups", "qos_policy_id", "dns_name",
             "dns_assignment")
    function = is_host_device(row)
    binding = {"binding:host_id": row["host"], "binding:profile": row["profile"],
               "binding:vif_details": {"port_filter": False} if function and row["host"] else {},
               "binding:vif_type": vif_type(row) if row["host"] else "unbound",
               "resource_request": row["resource_request"]}
    pairs = [{"ip_address": pair["ip_address"], "mac_address": pair.get("mac_address") or row["mac_address"]}
             for pair in row["pairs"]]
    details = {name: row[name] for name in ("trunk_details",) if name in row}  # only for a parent port
    return {**_common_attributes(row, *plain), "allowed_address_pairs": pairs, "extra_dhcp_opts": [],
            "binding:vnic_type": row["vnic_type"], **details, **(binding if admin else {})}


def security_group_view(row: Row, admin: bool) -> Document:
    """Return the security group *row*, with its rules, in the format of Neutron's answers. *admin* has no effect,
    because all callers see the same fields."""
    return {**_common_attributes(row, "name", "stateful", "shared"),
            "security_group_rules": [security_group_rule_view(rule, admin) for rule in row["rules"]]}


def security_group_rule_view(row: Row, _admin: bool) -> Document:
    """Return the security group rule *row* in the format of Neutron's answers. It has no tags."""
    shown = _common_attributes(row, "security_group_id", "direction", "ethertype", "protocol", "port_range_min",
                               "port_range_max",
                               "remote_ip_prefix", "remote_group_id", "remote_address_group_id")
    return {name: value for name, value in shown.items() if name != "tags"}


def default_rule_view(row: Row, _admin: bool) -> Document:
    """Return the default security group rule *row* in the format of Neutron's answers."""
    return {name: row[name] for name in ("id", "description", *SAME, *USES)}


def rbac_policy_view(row: Row, _admin: bool) -> Document:
    """Return the RBAC policy *row* in the format of Neutron's answers."""
    return {**{name: row[name] for name in ("id", "project_id", "object_type", "object_id", "action")},
            "tenant_id": row["project_id"], "target_tenant": row["target_project"]}


def router_view(row: Row, admin: bool) -> Document:
    """Return the router *row* in the format of Neutron's answers. *admin*: include ``distributed`` and ``ha``, which
    are true for all routers."""
    return {**_common_attributes(row, "name", "admin_state_up", "routes"), "status": "ACTIVE",
            "external_gateway_info": row["gateway"], "availability_zones": ["nova"], "availability_zone_hints": [],
            **({"distributed": True, "ha": True} if admin else {})}


def floatingip_view(row: Row, _admin: bool) -> Document:
    """Return the floating IP *row* in the format of Neutron's answers."""
    plain = ("floating_ip_address", "port_id", "fixed_ip_address", "router_id")
    return {**_common_attributes(row, *plain), "floating_network_id": row["network_id"], "dns_name": "",
            "dns_domain": "",
            "status": "ACTIVE" if row["router_id"] else "DOWN", "port_forwardings": [
                {name: forwarding[name] for name in ("id", "protocol", "internal_port_id", "internal_ip_address",
                                                     "internal_port", "external_port")}
                                                     for forwarding in row["forwardings"]]}


def address_group_view(row: Row, _admin: bool) -> Document:
    """Return the address group *row* in the format of Neutron's answers."""
    return _common_attributes(row, "name", "addresses", "shared")


def trunk_view(row: Row, _admin: bool) -> Document:
    """Return the trunk *row*, with its subports, in the format of Neutron's answers."""
    return _common_attributes(row, "name", "admin_state_up", "port_id", "status", "sub_ports")


def port_forwarding_view(row: Row, _admin: bool) -> Document:
    """Return the port forwarding *row* of a floating IP in the format of Neutron's answers."""
    plain = ("id", "floatingip_id", "internal_port_id", "internal_ip_address", "internal_port", "external_port",
             "protocol", "description")
    return {**{name: row[name] for name in plain}, **{
        f"{side}_port_range": f"{row[f'{side}_port']}:{row[f'{side}_port']}" for side in ("internal", "external")}}


def qos_policy_view(row: Row, admin: bool) -> Document:
    """Return the QoS policy *row*, with its rules, in the format of Neutron's answers. *admin* has no effect, because
    all callers see the same fields."""
    return {**_common_attributes(row, "name", "shared", "is_default"), "rules": [
        {**qos_rule_view(rule, admin), "type": rule["kind"]} for rule in row["rules"]]}


def qos_rule_view(row: Row, _admin: bool) -> Document:
    """Return the QoS rule *row* in the format of Neutron's answers."""
    return {"id": row["id"], "qos_policy_id": row["policy_id"], "tags": [],
            **{name: row[name] for name in qos.KINDS[row["kind"]]}}


def _qos_rule(kind: str, body: Record) -> Form:
    return Form(name=f"{kind}_rule", plural=f"{kind}_rules", path=f"qos/policies/{{policy_id}}/{kind}_rules", body=body,
                view=qos_rule_view, above=("qos_policies", "policy_id"))


#: Further resources with an engine of networks.
OF_ENGINE = (Form(name="router", plural="routers", path="routers", body=attributes.ROUTER, view=router_view),
             Form(name="floatingip", plural="floatingips", path="floatingips", body=attributes.FLOATING_IP,
                  view=floatingip_view),
             Form(name="port_forwarding", plural="port_forwardings",
                  path="floatingips/{floatingip_id}/port_forwardings", body=attributes.PORT_FORWARDING,
                  view=port_forwarding_view, above=("floatingips", "floatingip_id")),
             Form(name="address_group", plural="address_groups", path="address-groups",
                  body=attributes.ADDRESS_GROUP, view=address_group_view),
             Form(name="trunk", plural="trunks", path="trunks", body=attributes.TRUNK, view=trunk_view),
             Form(name="policy", plural="policies", path="qos/policies", body=attributes.QOS_POLICY,
                  view=qos_policy_view, store="qos_policies"),
             _qos_rule("bandwidth_limit", attributes.BANDWIDTH_LIMIT_RULE),
             _qos_rule("dscp_marking", attributes.DSCP_MARKING_RULE),
             _qos_rule("minimum_bandwidth", attributes.MINIMUM_BANDWIDTH_RULE))
FORMS = tuple(Form(name=name, plural=f"{name}s", path=f"{name}s".replace("_", "-"), body=body, view=view)
              for name, body, view in (
                  ("network", attributes.NETWORK, network_view), ("subnet", attributes.SUBNET, subnet_view),
                  ("port", attributes.PORT, port_view), ("subnetpool", attributes.SUBNET_POOL, subnetpool_view),
                  ("address_scope", attributes.ADDRESS_SCOPE, address_scope_view),
                  ("security_group", attributes.SECURITY_GROUP, security_group_view),
                  ("security_group_rule", attributes.SECURITY_GROUP_RULE, security_group_rule_view),
                  ("default_security_group_rule", attributes.DEFAULT_SECURITY_GROUP_RULE,
                   default_rule_view)))
FORMS += (Form(name="rbac_policy", plural="rbac_policies", path="rbac-policies", body=attributes.RBAC_POLICY,
               view=rbac_policy_view),)


class NetworkResourceRoutes:
    """The routes of one resource type of the Networking API, such as ports, and their handlers. *stores*: maps each
    resource type to the store that reads and writes its resources. *remove*: a handler of DELETE requests, to use
    instead of the method ``delete``."""

    def __init__(self, stores: Mapping[str, NetworkStore], form: Form,
                 remove: Callable[[Request], None] | None = None) -> None:
        self.resources, self.form = stores[form.store or form.plural], form
        self.remove = remove or self.delete
        self.above = stores[form.above[0]] if form.above else None

    def routes(self) -> list[Guarded]:
        """Return the routes of the resource type, with their handlers."""
        every, resource_path = f"/v2.0/{self.form.path}", f"/v2.0/{self.form.path}/{{id}}"
        routes = [guarded_route(f"GET {every}", self.list), guarded_route(f"POST {every}", self.create, 201),
                  guarded_route(f"GET {resource_path}", self.show),
                  guarded_route(f"DELETE {resource_path}", self.remove, 204)]
        return [*routes,
                guarded_route(f"PUT {resource_path}", self.update)] if self.resources.resource.update else routes

    def list(self, request: Request) -> Document | Answer:
        """Return the resources that match the query, in the requested order, and with a link to the next page. A long
        list is sent as a stream."""
        query = ListQuery(self.form, self.resources, request)
        page = query.page(self._parent_filter(request))
        pieces = self.resources.pieces(request.context, page)
        rows, more = next(pieces), next(pieces, None)
        if more is not None:
            pieces = itertools.chain((rows, more), pieces)
            if request.method == "GET":
                return Answer(self._stream(query, page, pieces))
            rows = [row for piece in pieces for row in piece]
        answer: Document = {self.form.plural: [query.picked(self._view(request, row)) for row in rows]}
        if page.limit and len(rows) == page.limit:
            answer[f"{self.form.plural}_links"] = request.next_page(rows[-1]["id"])
        return answer

    def _stream(self, query: ListQuery, page: Page, pieces: Iterable[Documents]) -> Iterator[bytes]:
        """Yield the JSON text of a long list answer, one of *pieces* (lists of rows) at a time, so that only one piece
        is in memory."""
        request, opening, count, last = query.request, f'{{"{self.form.plural}":['.encode(), 0, ""
        for rows in filter(None, pieces):
            yield opening + b",".join(orjson.dumps(query.picked(self._view(request, row))) for row in rows)
            opening, last, count = b",", rows[-1]["id"], count + len(rows)
        links = {f"{self.form.plural}_links": request.next_page(last)} if count == page.limit else {}
        yield b"]" + (b"," + orjson.dumps(links)[1:] if links else b"}")

    def show(self, request: Request) -> Document:
        """Return the resource that the URL names."""
        shown = self._view(request, self._found(request))
        return {self.form.name: ListQuery(self.form, self.resources, request).picked(shown)}

    def create(self, request: Request) -> Document:
        """Create one resource, or several in one transaction if the body has a list, and return them."""
        name, plural, body = self.form.name, self.form.plural, request.json()
        many = isinstance(body, dict) and isinstance(body.get(plural), list)
        bodies = body[plural] if many else [self._inner(body)]
        place = self._parent_filter(request)
        made = self.resources.create(request.context, *({**as_named(self.form.body.check(resource_body, name)), **place}
                                                        for resource_body in bodies))
        shown = [self._view(request, row) for row in made]
        return {plural: shown} if many else {name: shown[0]}

    def update(self, request: Request) -> Document:
        """Update the attributes that the body contains, and return the resource."""
        values = as_named(self.form.body.changes(self._inner(request.json()), self.form.name))
        if self.above:
            self._found(request)
        return {self.form.name: self._view(request, self.resources.update(
            request.context, request.params["id"], values))}

    def delete(self, request: Request) -> None:
        """Delete the resource that the URL names."""
        if self.above:
            self._found(request)
        self.resources.delete(request.context, request.params["id"])

    def _parent_filter(self, request: Request) -> Document:
        """Return ``{column: id}``, a filter for the resources below the parent resource that the URL names. Return an
        empty dict if the resource type has no parent. Raises ``NotFound`` for an unknown parent."""
        if self.above is None or self.form.above is None:
            return {}
        column = self.form.above[1]
        return {column: self.above.show(request.context, request.params[column])["id"]}

    def _found(self, request: Request) -> Document:
        place, id = self._parent_filter(request), request.params["id"]
        row = self.resources.show(request.context, id)
        if any(row[name] != value for name, value in place.items()):
            words = self.resources.resource.name.replace("_", " ")
            raise NotFound(f"There is no {words} {row['id']} in {', '.join(place.values())}.")
        return row

    def _inner(self, body: Any) -> Any:
        if not isinstance(body, dict) or self.form.name not in body:
            raise InvalidRequest(f"Unable to find '{self.form.name}' in request body")
        return body[self.form.name]

    def _view(self, request: Request, row: Document) -> Document:
        if request.context.project_id in row.get("shared_with", ()):
            row = {**row, "shared": True}
        return self.form.view(row, request.context.is_admin)


def as_named(values: Document) -> Document:
    """Return *values* with column names as keys, in place of attribute names of the Networking API: for example,
    ``bridge`` in place of ``provider:physical_network``. The result has ``project_id`` if project_id or tenant_id in
    *values* is not empty; project_id takes precedence."""
    named = {NAMES.get(name, name): value for name, value in values.items() if name not in ("project_id", "tenant_id")}
    project = values.get("project_id") or values.get("tenant_id")
    return {**named, "project_id": project} if project else named


class ListQuery:
    """The query string of a list request: filters, fields, sort_key and sort_dir, limit and marker."""

    def __init__(self, form: Form, resources: NetworkStore, request: Request) -> None:
        self.form, self.resource, self.request = form, resources.resource, request
        self.given: dict[str, list[str]] = {}
        for name, value in request.query:
            self.given.setdefault(name, []).append(value)
        self._fields = frozenset(self.given.get("fields", ()))

    def page(self, parent_filter: Mapping[str, str]) -> Page:
        """Return the filters, sort keys, limit and marker of the query as a ``Page``. *parent_filter*: additional
        filters, {column: value}, such as the id of the parent resource in the URL.

        Raises ``InvalidRequest`` for an unknown parameter.
        """
        keys, directions = self.given.get("sort_key", []), self.given.get("sort_dir", [])
        sort = [(self._column_name(name, "sorting"), directions[at:at + 1] == ["desc"]) for at, name in enumerate(keys)]
        try:
            check_sort("sort_key", [name for name, _down in sort])
            limit = COUNT.check(self.given.get("limit", ["0"])[-1], "limit")
        except InvalidField as error:
            raise InvalidRequest(error.message, type="BadRequest") from None
        filters = {**self._filters(), **{name: [value] for name, value in parent_filter.items()}}
        return Page(filters=filters, sort=sort, limit=limit, marker=self.given.get("marker", [None])[-1])

    def _filters(self) -> dict[str, list[Any]]:
        filters: dict[str, list[Any]] = {}
        for name, values in self.given.items():
            if name in CONTROLS:
                continue
            column = self._column_name(name, "filtering")
            value = None if column in self.resource.all_filters else self.form.attribute(name)
            value = value.value if isinstance(value, Nullable) else value
            kind = COUNT if isinstance(value, Number) else value if isinstance(value, Truth) else None
            filters[column] = values if kind is None else [kind.check(text, name) for text in values]
        return filters

    def _column_name(self, name: str, purpose: str) -> str:
        """Return the column of the attribute or list filter *name*. *purpose*: ``sorting`` or ``filtering``. Raises
        ``InvalidRequest`` for an unknown name. Other callers than administrators get this error also for an attribute
        that only administrators see. As an exception, such a caller may filter by a list filter that is open to all
        callers."""
        column = NAMES.get(name, name)
        hidden = column in self.resource.admin and name in NAMES and not self.request.context.is_admin
        private = hidden and column in self.resource.private
        if column in self.resource.all_filters and purpose == "filtering" and not private:
            return column
        if hidden or (name not in READ_ONLY and self.form.attribute(name) is None):
            raise InvalidRequest(f"['{name}'] is invalid attribute for {purpose}")
        return column

    def picked(self, document: Document) -> Document:
        """Return the fields of *document* that the query parameter ``fields`` names; all fields if the query has no
        such parameter."""
        fields = self._fields
        return {name: document[name] for name in document if name in fields} if fields else document
