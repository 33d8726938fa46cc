# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-security-groups: the security groups of a server in Nova's form, which is older than Neutron's."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields
from magnetar_control.api.nova.operation import ApiOperation, Call
from magnetar_control.compute import security_groups
from magnetar_control.services import Documents

#: Protocols of which a rule without ports means all: as Nova shows that.
ALL_PORTS = {"tcp": (1, 65535), "udp": (1, 65535)}
#: Of other protocols, which have none.
NO_PORTS = (-1, -1)
ANYWHERE = "0.0.0.0/0"


def _known(one: Mapping[str, Any]) -> bool:
    """Whether Nova knows such rules: those for what comes in, from a group that is there still, or from addresses."""
    return one["direction"] == "ingress" and (not one["remote_group_id"] or bool(one["remote_group"]))


def rule(one: Mapping[str, Any]) -> dict[str, Any]:
    """A rule of the network service as Nova shows it."""
    protocol, ports, remote = one["protocol"], (one["port_range_min"], one["port_range_max"]), one["remote_group"]
    if protocol and ports == (None, None):
        ports = ALL_PORTS.get(protocol.lower(), NO_PORTS)
    return {"id": one["id"], "parent_group_id": one["security_group_id"], "ip_protocol": protocol,
            "from_port": ports[0], "to_port": ports[1],
            "group": {"name": remote["name"], "tenant_id": remote["project_id"]} if remote else {},
            "ip_range": {} if remote else {"cidr": one["remote_ip_prefix"] or ANYWHERE}}


FIELDS = Fields(
    *(ApiField(name, shows="show") for name in ("id", "name", "description")),
    ApiField("tenant_id", name="project_id", shows="show"),
    ApiField("rules", shows="show", show=lambda _view, group: [
        rule(one) for one in group["rules"] if _known(one)]),
    mapping=True)


def _of_server(call: Call, found: Documents) -> dict[str, Any]:
    return FIELDS.many("security_groups")(call, sorted(found, key=itemgetter("project_id", "name")))


OPERATIONS = (
    ApiOperation(method="GET", path="/servers/{server_id}/os-security-groups", name="servers.os-security-groups.list",
                 target="server", use=security_groups.of_one, shown=_of_server, strict=102),
)
