# SPDX-License-Identifier: GPL-3.0-or-later
"""Capacity: whether the cloud, its zones and its aggregates have room for the servers of a failed host."""

from __future__ import annotations

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.scheduler.room_report import RoomReport, report_room

from .hypervisors import RULE


@use_case(f"{RULE}list-detail")
def list_room_reports(caller: Caller, zone: str | None = None, aggregate: str | None = None) -> list[RoomReport]:
    """Return reports about possible host failures: one for the whole cloud, one for each availability zone, and one for
    each aggregate. A report says for each host whether other hosts have room for the servers of this host. *zone*,
    *aggregate*: return only the report on this zone or aggregate. Raises ``InvalidField`` for an unknown zone or
    aggregate."""
    cloud = caller.cloud
    return report_room(cloud.store, cloud.services.volume, cloud.settings, zone, aggregate)
