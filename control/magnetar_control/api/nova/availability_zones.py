# SPDX-License-Identifier: GPL-3.0-or-later
"""os-availability-zone: the zones that users may request, and (detail) their hosts and services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from magnetar_control.compute.hosts import availability_zones
from magnetar_control.compute.hosts.availability_zones import Zone

from .operation import operation_factory

_row = operation_factory("os-availability-zone", "/os-availability-zone", strict=102)


def _render_zones(zones: Sequence[Zone], hosts: Callable[[Zone], Any]) -> dict[str, Any]:
    return {"availabilityZoneInfo": [{"zoneName": zone.name, "zoneState": {"available": zone.available},
                                      "hosts": hosts(zone)} for zone in zones]}


def _services(zone: Zone) -> dict[str, Any] | None:
    shown: dict[str, Any] = {}
    for service in zone.services:
        shown.setdefault(service.host, {})[service.binary] = {
            "active": not service.disabled, "available": service.up, "updated_at": service.seen_at}
    return shown if zone.available else None


OPERATIONS = (
    _row("GET", "", "list", availability_zones.list_availability_zones, shown=lambda _call,
         zones: _render_zones(zones, lambda _zone: None)),
    _row("GET", "/detail", "detail.list", availability_zones.list_zone_details,
         shown=lambda _call, zones: _render_zones(zones, _services)),
)
