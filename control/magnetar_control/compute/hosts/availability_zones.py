# SPDX-License-Identifier: GPL-3.0-or-later
"""Availability zones that users may ask for, and their services."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts.services import COMPUTE, INTERNAL, Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Text

from . import services

#: Names of zones. A colon would separate a zone from a host (``parse_forced_host``).
NAME = Text(1, 255, r"[^\s\x00-\x1f\x7f:](?:[^\x00-\x1f\x7f:]*[^\s\x00-\x1f\x7f:])?",
            "must be printable text without a colon, and without a blank at the beginning or the end")
RULE = "os_compute_api:os-availability-zone:"


class Zone(NamedTuple):
    """An availability zone. *services*: the services in the zone that the API shows; empty in results of
    ``list_availability_zones``."""

    name: str
    available: bool
    services: Sequence[Service] = ()


@use_case(f"{RULE}list")
def list_availability_zones(caller: Caller) -> list[Zone]:
    """Return all availability zones that have hosts: first the available ones, then the unavailable ones, each group
    sorted by name. A zone is available when at least one of its hosts is enabled."""
    hosts = caller.cloud.hosts.all().values()
    good = {host.zone for host in hosts if not host.disabled}
    bad = {host.zone for host in hosts} - good
    return [*(Zone(name, True) for name in sorted(good)), *(Zone(name, False) for name in sorted(bad))]


@use_case(f"{RULE}detail")
def list_zone_details(caller: Caller) -> list[Zone]:
    """Return all availability zones with their services: first the zone of the conductors (``internal``), then other
    available zones by name, then unavailable ones. Disabled hosts are left out, and unavailable zones have no services.
    """
    zones: dict[str, list[Service]] = {}
    for service in services.read_services(caller):
        zones.setdefault(service.zone, []).append(service)
    good = [name for name, zone_services in zones.items() if any(not service.disabled for service in zone_services)]
    good.sort(key=lambda name: (name != INTERNAL, name))
    return [*(Zone(name, True, [service for service in zones[name] if service.binary != COMPUTE
                                or not service.disabled])
              for name in good),
            *(Zone(name, False) for name in sorted(set(zones) - set(good)))]


def parse_forced_host(text: str) -> tuple[str, str]:
    """Split *text*, the availability zone in a request that forces a host: ``ZONE:HOST``, ``ZONE:HOST:NODE`` or
    ``ZONE::NODE``. Return (zone, host), in which each item may be empty; the node counts as the host. Raises
    ``InvalidField``."""
    words = text.split(":")
    if len(words) > 3:
        raise InvalidField("server.availability_zone", "must be ZONE, ZONE:HOST or ZONE:HOST:NODE", text)
    return words[0], words[-1] or words[1]
