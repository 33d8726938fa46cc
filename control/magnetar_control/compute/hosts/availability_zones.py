# SPDX-License-Identifier: GPL-3.0-or-later
"""Availability zones that users may ask for, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts.services import COMPUTE, INTERNAL, Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Text

from . import services

#: What a zone may be called: a colon would part it from a host (``forced_in``).
NAME = Text(1, 255, r"[^\s\x00-\x1f\x7f:](?:[^\x00-\x1f\x7f:]*[^\s\x00-\x1f\x7f:])?",
            "must be printable text without a colon, and without a blank at the beginning or the end")
RULE = "os_compute_api:os-availability-zone:"


class Zone(NamedTuple):
    """A zone; *services*: those in it that it shows."""

    name: str
    available: bool
    services: Sequence[Service] = ()


@use_case(f"{RULE}list")
def every(caller: Caller) -> list[Zone]:
    """All zones of hosts by name, first those that are available: one of their hosts is not disabled."""
    hosts = caller.cloud.hosts.all().values()
    good = {host.zone for host in hosts if not host.disabled}
    bad = {host.zone for host in hosts} - good
    return [*(Zone(name, True) for name in sorted(good)), *(Zone(name, False) for name in sorted(bad))]


@use_case(f"{RULE}detail")
def detail(caller: Caller) -> list[Zone]:
    """All zones, that of the conductors first; the available ones with their services, without disabled hosts."""
    zones: dict[str, list[Service]] = {}
    for service in services.read_all(caller):
        zones.setdefault(service.zone, []).append(service)
    good = [name for name, found in zones.items() if any(not one.disabled for one in found)]
    good.sort(key=lambda name: (name != INTERNAL, name))
    return [*(Zone(name, True, [one for one in zones[name] if one.binary != COMPUTE or not one.disabled])
              for name in good),
            *(Zone(name, False) for name in sorted(set(zones) - set(good)))]


def forced_in(text: str) -> tuple[str, str]:
    """Zone and host of ``ZONE:HOST``, ``ZONE:HOST:NODE`` and ``ZONE::NODE``, either of which may be empty. Raises
    ``InvalidField``."""
    words = text.split(":")
    if len(words) > 3:
        raise InvalidField("server.availability_zone", "must be ZONE, ZONE:HOST or ZONE:HOST:NODE", text)
    return words[0], words[-1] or words[1]
