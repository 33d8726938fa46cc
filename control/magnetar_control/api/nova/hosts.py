# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hosts, until 2.42: the services on hosts, and the used resources of a compute host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.values import Anything
from magnetar_control.compute.hosts import hosts
from magnetar_control.store.hosts.services import Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices

from .operation import Call, Query, operation_factory
from .values import body_object

WORD = Choices("enable", "Enable", "ENABLE", "disable", "Disable", "DISABLE")
LAST = 42


def _listed(_call: Call, services: Sequence[Service]) -> dict[str, Any]:
    return {"hosts": [{"host_name": service.host, "service": service.binary.removeprefix("nova-"), "zone": service.zone}
                      for service in services]}


def _render_usages(call: Call, usages: Sequence[tuple[str, Mapping[str, int]]]) -> dict[str, Any]:
    return {"host": [{"resource": {
        "host": call.params["id"], "project": project, "cpu": sizes["vcpus"], "memory_mb": sizes["memory_mb"],
        "disk_gb": sizes["disk_gb"]}} for project, sizes in usages]}


def _change(call: Call) -> dict[str, Any]:
    if not call.body:
        raise InvalidField("body", "must have status or maintenance_mode")
    status = call.body.get("status")
    return {"enabled": None if status is None else status.lower() == "enable",
            "maintenance": "maintenance_mode" in call.body}


def _changed(call: Call, _none: None) -> dict[str, Any]:
    return {"host": call.params["id"], "status": f"{call.body['status'].lower()}d"}


_row = operation_factory("os-hosts", "/os-hosts", until=LAST)
OPERATIONS = (
    _row("GET", "", "list", hosts.list_hosts, shown=_listed, query={"zone": Query(value=Anything())},
         given=lambda call: {"zone": call.query.get("zone")}),
    _row("GET", "/{id}", "show", hosts.show_host, shown=_render_usages),
    _row("PUT", "/{id}", "update", hosts.update_host, body=body_object({"status": WORD, "maintenance_mode": WORD}),
         given=_change, shown=_changed),
    *(_row("GET", f"/{{id}}/{power_action}", f"{power_action}.list", use) for power_action, use in hosts.POWER.items()),
)
