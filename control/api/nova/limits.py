# SPDX-License-Identifier: GPL-3.0-or-later
"""limits: what a project may use, and what it uses."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.compute import quotas as quota
from magnetar_core.values import Text

RULE = "os_compute_api:limits"
#: Key of the answer, last version, resource.
MOST = (
    ("maxServerMeta", 104, "metadata_items"), ("maxTotalInstances", 104, "instances"), ("maxTotalCores", 104, "cores"),
    ("maxTotalRAMSize", 104, "ram"), ("maxTotalKeypairs", 104, "key_pairs"), ("maxServerGroups", 104, "server_groups"),
    ("maxServerGroupMembers", 104, "server_group_members"), ("maxPersonality", 56, "injected_files"),
    ("maxPersonalitySize", 56, "injected_file_content_bytes"), ("maxImageMeta", 38, "metadata_items"),
    ("maxSecurityGroups", 35, "security_groups"), ("maxSecurityGroupRules", 35, "security_group_rules"),
    ("maxTotalFloatingIps", 35, "floating_ips"))
#: What other services count is 0 here; last version as above.
ELSEWHERE = (("totalSecurityGroupsUsed", 35), ("totalFloatingIpsUsed", 35))


def show(call: Call) -> dict[str, Any]:
    """GET /limits; of another project for administrators."""
    project = call.query.get("tenant_id")
    if project is not None:
        call.check(f"{RULE}:other_project")
    most, used = quota.limits(call, project), quota.used(call, project)
    absolute = {key: most[resource] for key, until, resource in MOST if call.version <= until}
    absolute.update((key, 0) for key, until in ELSEWHERE if call.version <= until)
    absolute.update(totalInstancesUsed=used["instances"], totalCoresUsed=used["cores"], totalRAMUsed=used["ram"],
                    totalServerGroupsUsed=quota.groups_used(call, project))
    return {"limits": {"rate": [], "absolute": absolute}}


OPERATIONS = (
    Operation(method="GET", path="/limits", handler=show, name="limits.list", rule=RULE, strict=75,
              query={"tenant_id": Query(value=Text(1, 255))}),
)
