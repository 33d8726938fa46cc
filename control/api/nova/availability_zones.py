# SPDX-License-Identifier: GPL-3.0-or-later
"""os-availability-zone: the zones that users may ask for, and (detail) what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar_control.api.nova.operation import Call, Operation
from magnetar_control.compute import availability_zones
from magnetar_control.compute.availability_zones import Zone
from magnetar_control.store.services import Service

PATH = "/os-availability-zone"


def _shown(zone: Zone, hosts: Any) -> dict[str, Any]:
    return {"zoneName": zone.name, "zoneState": {"available": zone.available}, "hosts": hosts}


def index(call: Call) -> dict[str, Any]:
    """GET /os-availability-zone."""
    return {"availabilityZoneInfo": [_shown(zone, None) for zone in availability_zones.every(call)]}


def detail(call: Call) -> dict[str, Any]:
    """GET /os-availability-zone/detail: with the services of each zone."""
    return {"availabilityZoneInfo": [_shown(zone, _services(zone.services) if zone.available else None)
                                     for zone in availability_zones.detail(call)]}


def _services(found: Sequence[Service]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for one in found:
        shown.setdefault(one.host, {})[one.binary] = {
            "active": not one.disabled, "available": one.up, "updated_at": one.seen_at}
    return shown


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, use=availability_zones.every,
              name="os-availability-zone.list", strict=102),
    Operation(method="GET", path=PATH + "/detail", handler=detail, use=availability_zones.detail,
              name="os-availability-zone.detail.list", strict=102),
)
