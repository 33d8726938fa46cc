# SPDX-License-Identifier: GPL-3.0-or-later
"""os-availability-zone: the zones that users may ask for, and (detail) what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.store import services
from magnetar_control.store.services import COMPUTE, INTERNAL, Service

RULE = "os_compute_api:os-availability-zone:"
PATH = "/os-availability-zone"


def _zone(name: str, available: bool, hosts: Any) -> dict[str, Any]:
    return {"zoneName": name, "zoneState": {"available": available}, "hosts": hosts}


def index(call: Call) -> dict[str, Any]:
    """GET /os-availability-zone: a zone is available when one of its hosts is not disabled."""
    hosts = call.cloud.hosts.all().values()
    good = {host.zone for host in hosts if not host.disabled}
    bad = {host.zone for host in hosts} - good
    return {"availabilityZoneInfo": [*(_zone(name, True, None) for name in sorted(good)),
                                     *(_zone(name, False, None) for name in sorted(bad))]}


def detail(call: Call) -> dict[str, Any]:
    """GET /os-availability-zone/detail: with the services of each zone."""
    every = services.every(call.cloud.store, call.settings.default_availability_zone, call.settings.host_down_after)
    zones: dict[str, list[Service]] = {}
    for service in every:
        zones.setdefault(service.zone, []).append(service)
    good = [name for name, found in zones.items() if any(not one.disabled for one in found)]
    good.sort(key=lambda name: (name != INTERNAL, name))
    return {"availabilityZoneInfo": [
        *(_zone(name, True, _services(zones[name])) for name in good),
        *(_zone(name, False, None) for name in sorted(set(zones) - set(good)))]}


def _services(found: Sequence[Service]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for one in found:
        if one.binary != COMPUTE or not one.disabled:
            shown.setdefault(one.host, {})[one.binary] = {
                "active": not one.disabled, "available": one.up, "updated_at": one.seen_at}
    return shown


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="os-availability-zone.list", rule=f"{RULE}list", strict=102),
    Operation(method="GET", path=PATH + "/detail", handler=detail, name="os-availability-zone.detail.list",
              rule=f"{RULE}detail", strict=102),
)
