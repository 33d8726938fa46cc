# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-security-groups, and until 2.35 os-security-groups and os-security-group-rules: security groups in
Nova's form, which is older than Neutron's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Number, Wrapped
from magnetar_control.compute.proxies import security_groups
from magnetar_core.document import Documents
from magnetar_core.values import Choices, Nullable, Text

from .fields import ApiField, Fields
from .operation import ApiOperation, Call, Query, operation_factory
from .paging import Limit
from .values import PROXIES, TRUTH, body_object

#: Ports of rules for protocols without ports.
NO_PORTS = (-1, -1)


def _is_expressible(rule: Mapping[str, Any]) -> bool:
    """Return whether Nova's API can show the Neutron security group rule *rule*: an ingress rule whose source is a
    network or an existing security group, not an address group."""
    return rule["direction"] == "ingress" and not rule["remote_address_group_id"] and (
        not rule["remote_group_id"] or bool(rule["remote_group"]))


def render_security_group_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return *rule*, a security group rule of the network service, in the format of Nova's answers."""
    protocol, ports, remote = rule["protocol"], (rule["port_range_min"], rule["port_range_max"]), rule["remote_group"]
    if protocol and ports == (None, None):
        ports = security_groups.ALL_PORTS.get(protocol.lower(), NO_PORTS)
    return {"id": rule["id"], "parent_group_id": rule["security_group_id"], "ip_protocol": protocol,
            "from_port": ports[0], "to_port": ports[1],
            "group": {"name": remote["name"], "tenant_id": remote["project_id"]} if remote else {},
            "ip_range": {} if remote else {"cidr": rule["remote_ip_prefix"] or security_groups.ANYWHERE}}


FIELDS = Fields(
    *(ApiField(name, shows="show") for name in ("id", "name", "description")),
    ApiField("tenant_id", name="project_id", shows="show"),
    ApiField("rules", shows="show", show=lambda _view, group: [
        render_security_group_rule(rule) for rule in group["rules"] if _is_expressible(rule)]),
    mapping=True)


def _page(call: Call, groups: Documents) -> dict[str, Any]:
    begin, most = call.query.get("offset", 0), call.settings.max_limit
    return FIELDS.many("security_groups")(call, groups[begin:begin + min(call.query.get("limit") or most, most)])


def _new_rule(call: Call) -> dict[str, Any]:
    want = call.body
    protocol = want.get("ip_protocol")
    return {"group_id": want["parent_group_id"], "remote_group_id": want.get("group_id"), "cidr": want.get("cidr"),
            "protocol": None if protocol is None else protocol.lower(),
            "ports": (want.get("from_port"), want.get("to_port"))}


TEXT = Text(0, 255)
GROUP = Wrapped("security_group", body_object({"name": TEXT, "description": TEXT}, "name", "description"))
RULE = Wrapped("security_group_rule", body_object({
    "parent_group_id": Text(1, 255), "group_id": Nullable(Text(1, 255)), "cidr": Nullable(TEXT),
    "ip_protocol": Nullable(Choices("tcp", "udp", "icmp", "TCP", "UDP", "ICMP")),
    "from_port": Nullable(Number(-1, 65535)), "to_port": Nullable(Number(-1, 65535))}, "parent_group_id"))
ONE = FIELDS.one("security_group")
_row = operation_factory("os-security-groups", "/os-security-groups", until=PROXIES)
_rule = operation_factory("os-security-group-rules", "/os-security-group-rules", until=PROXIES)
OPERATIONS = (
    ApiOperation(method="GET", path="/servers/{server_id}/os-security-groups", name="servers.os-security-groups.list",
                 target="server", use=security_groups.list_server_security_groups, shown=FIELDS.many("security_groups"),
                 strict=102),
    _row("GET", "", "list", security_groups.list_security_groups, shown=_page,
         given=lambda call: {"everywhere": call.query.get("all_tenants", False)},
         query={"all_tenants": Query(value=TRUTH), "limit": Query(value=Limit()), "offset": Query(value=Limit())}),
    _row("POST", "", "create", security_groups.create_security_group, body=GROUP, given=lambda call: call.body,
         shown=ONE),
    _row("GET", "/{id}", "show", security_groups.show_security_group, shown=ONE),
    _row("PUT", "/{id}", "update", security_groups.update_security_group, body=GROUP, given=lambda call: call.body,
         shown=ONE),
    _row("DELETE", "/{id}", "delete", security_groups.delete_security_group, status=202),
    _rule("POST", "", "create", security_groups.create_security_group_rule, body=RULE, given=_new_rule,
          shown=lambda _call, made: {"security_group_rule": render_security_group_rule(made)}),
    _rule("DELETE", "/{id}", "delete", security_groups.delete_security_group_rule, status=202),
)
