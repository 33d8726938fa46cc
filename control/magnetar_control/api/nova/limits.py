# SPDX-License-Identifier: GPL-3.0-or-later
"""GET /limits: the limits of a project, and its usage."""

from __future__ import annotations

from typing import Any

from magnetar_control.compute.accounts import quotas
from magnetar_core.values import Text

from .fields import ApiField, Fields, View
from .operation import ApiOperation, Call, Query

FIELDS = Fields(
    *(ApiField(wire, name=name, shows="show") for wire, name in (
        ("maxServerMeta", "metadata_items"), ("maxTotalInstances", "instances"), ("maxTotalCores", "cores"),
        ("maxTotalRAMSize", "ram"), ("maxTotalKeypairs", "key_pairs"), ("maxServerGroups", "server_groups"),
        ("maxServerGroupMembers", "server_group_members"), ("totalInstancesUsed", "instances_used"),
        ("totalCoresUsed", "cores_used"), ("totalRAMUsed", "ram_used"),
        ("totalServerGroupsUsed", "server_groups_used"))),
    ApiField("maxPersonality", name="injected_files", shows="show", until=56),
    ApiField("maxPersonalitySize", name="injected_file_content_bytes", shows="show", until=56),
    ApiField("maxImageMeta", name="metadata_items", shows="show", until=38),
    ApiField("maxSecurityGroups", name="security_groups", shows="show", until=35),
    ApiField("maxSecurityGroupRules", name="security_group_rules", shows="show", until=35),
    ApiField("maxTotalFloatingIps", name="floating_ips", shows="show", until=35),
    # Resources that the network service counts are 0 here.
    ApiField("totalSecurityGroupsUsed", shows="show", until=35, show=lambda _view, _row: 0),
    ApiField("totalFloatingIpsUsed", shows="show", until=35, show=lambda _view, _row: 0),
    mapping=True)


def _render_limits(call: Call, limits_and_usage: tuple[quotas.Limits, quotas.Limits]) -> dict[str, Any]:
    most, used = limits_and_usage
    row = {**most, **{f"{name}_used": number for name, number in used.items()}}
    return {"limits": {"rate": [], "absolute": View(call, FIELDS).document(row)}}


OPERATIONS = (
    ApiOperation(method="GET", path="/limits", use=quotas.show_quota_limits, name="limits.list", strict=75,
                 shown=_render_limits, given=lambda call: {"project": call.query.get("tenant_id")},
                 query={"tenant_id": Query(value=Text(1, 255))}),
)
