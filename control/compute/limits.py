# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits: what a project may use, and what it uses."""

from __future__ import annotations

from magnetar_control.compute import quotas
from magnetar_control.compute.caller import Caller, use_case

RULE = "os_compute_api:limits"


@use_case(RULE)
def show(caller: Caller, project: str | None = None) -> quotas.Detail:
    """Of the caller's project; of another one for administrators."""
    if project is not None:
        caller.check(f"{RULE}:other_project")
    return quotas.Detail(quotas.limits(caller, project), {
        **quotas.used(caller, project), "server_groups": quotas.groups_used(caller, project)})
