# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a server would be: the scheduler is asked, and nothing claimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.compute.cloud import Cloud
from magnetar_control.scheduler.choose import NO_VALID_HOST, explain, rules_of
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request import Request, amounts_of
from magnetar_control.store import hosts
from magnetar_control.store.allocations import Amounts
from magnetar_core.errors import NoSpace


def states(cloud: Cloud) -> HostStates:
    """All hosts as they are now."""
    found = HostStates(cloud.settings.default_availability_zone, rules_of(cloud.settings))
    with cloud.store.api.read() as connection:
        rows, aggregates = hosts.every(connection), hosts.every_aggregate(connection)
    for host in cloud.hosts.all(fresh=True).values():
        found.up(host.name, host.up)
    found.refresh(rows, aggregates)
    return found


def host_for(cloud: Cloud, row: Mapping[str, Any], admin: bool, freed: Mapping[str, Any] | None = None) -> str:
    """The host that a new server (a row to be) would get at this moment. Raises ``NoSpace``; admins are told why.
    *freed*: the flavor of the server whose place it takes; its amounts are taken for free, wherever it is."""
    asked = orjson.loads(row["request"])
    image = orjson.loads(row["image"])
    blocks = asked.get("blocks") or ()
    volumes = [block["uuid"] for block in blocks if block["source_type"] == "volume"]
    amounts = amounts_of(orjson.loads(row["flavor"]), any(
        block["boot_index"] == 0 and block["destination_type"] == "volume" for block in blocks))
    if freed:
        amounts = Amounts(*(max(0, new - old) for new, old in zip(amounts, amounts_of(freed), strict=True)))
    found = explain(states(cloud), Request(
        server_id=row["id"], project_id=row["project_id"], flavor_name=orjson.loads(row["flavor"])["name"],
        amounts=amounts,
        extra_specs=orjson.loads(row["flavor"]).get("extra_specs") or {}, image=image.get("properties") or {},
        availability_zone=row["pinned_availability_zone"] or row["availability_zone"],
        volume_hosts=frozenset(map(cloud.services.volume.where, volumes)) if volumes else None))
    if not found.candidates:
        raise NoSpace(f"{NO_VALID_HOST} {found.text()}" if admin else NO_VALID_HOST)
    return found.candidates[0].host
