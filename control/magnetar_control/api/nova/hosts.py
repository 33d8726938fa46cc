# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hosts, until 2.42: the services on hosts, and what is used of a compute host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.values import Anything
from magnetar_control.compute.hosts import hosts
from magnetar_control.store.hosts.services import Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices

from .operation import Call, Query, noun
from .values import record

WORD = Choices("enable", "Enable", "ENABLE", "disable", "Disable", "DISABLE")
LAST = 42


def _listed(_call: Call, found: Sequence[Service]) -> dict[str, Any]:
    return {"hosts": [{"host_name": one.host, "service": one.binary.removeprefix("nova-"), "zone": one.zone}
                      for one in found]}


def _shown(call: Call, found: Sequence[tuple[str, Mapping[str, int]]]) -> dict[str, Any]:
    return {"host": [{"resource": {
        "host": call.params["id"], "project": project, "cpu": sizes["vcpus"], "memory_mb": sizes["memory_mb"],
        "disk_gb": sizes["disk_gb"]}} for project, sizes in found]}


def _change(call: Call) -> dict[str, Any]:
    if not call.body:
        raise InvalidField("body", "must have status or maintenance_mode")
    status = call.body.get("status")
    return {"enabled": None if status is None else status.lower() == "enable",
            "maintenance": "maintenance_mode" in call.body}


def _changed(call: Call, _none: None) -> dict[str, Any]:
    return {"host": call.params["id"], "status": f"{call.body['status'].lower()}d"}


_row = noun("os-hosts", "/os-hosts", until=LAST)
OPERATIONS = (
    _row("GET", "", "list", hosts.every, shown=_listed, query={"zone": Query(value=Anything())},
         given=lambda call: {"zone": call.query.get("zone")}),
    _row("GET", "/{id}", "show", hosts.show, shown=_shown),
    _row("PUT", "/{id}", "update", hosts.update, body=record({"status": WORD, "maintenance_mode": WORD}),
         given=_change, shown=_changed),
    *(_row("GET", f"/{{id}}/{word}", f"{word}.list", use) for word, use in hosts.POWER.items()),
)
