# SPDX-License-Identifier: GPL-3.0-or-later
"""What projects have used: the hours of their servers, times the sizes of these. All of it is computed from the rows
of servers, deleted ones too, until these are removed for good (``purge_deleted_after``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.compute.hosts.services import read_all
from magnetar_control.notifications.audit_period import last_period
from magnetar_control.store.engine.database import now, stored
from magnetar_control.store.hosts.services import COMPUTE
from magnetar_control.store.servers import servers, usage
from magnetar_core.errors import InvalidRequest

RULE = "os_compute_api:os-simple-tenant-usage:"
AUDIT_RULE = "os_compute_api:os-instance-usage-audit-log:"
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class ServerUsage:
    """A server in the period. *hours*: for which it was there in it; *uptime*: seconds from its start to its end, or to
    now."""

    id: str
    name: str
    project_id: str
    flavor: str
    vcpus: int
    memory_mb: int
    local_gb: int
    started_at: str
    ended_at: str | None
    state: str
    hours: float
    uptime: int


@dataclass(frozen=True)
class ProjectUsage:
    """The servers of a project in the period."""

    project_id: str
    begin: str
    end: str
    servers: Sequence[ServerUsage]

    def total(self, size: str) -> float:
        """The hours of all servers, times that size of each."""
        return float(sum(getattr(one, size) * one.hours for one in self.servers))

    @property
    def hours(self) -> float:
        """The hours of all servers."""
        return sum(one.hours for one in self.servers)


@dataclass(frozen=True, kw_only=True)
class Period:
    """What is asked: from *begin* to *end* (now where left out), at most *limit* servers, those after the server
    *marker*."""

    begin: str | None = None
    end: str | None = None
    limit: int
    marker: str | None = None


@use_case(f"{RULE}list")
def page(caller: Caller, period: Period) -> list[ProjectUsage]:
    """What each project used that had servers in the period; a project goes on in the next page where one has not all
    of its servers. Raises ``InvalidRequest``."""
    return _page(caller, period, None)


def show(caller: Caller, project: str, period: Period) -> ProjectUsage | None:
    """What one project used; ``None`` when it had no server in the period. Raises ``Forbidden``, ``InvalidRequest``."""
    caller.check_policy(f"{RULE}show", Owner(project))
    return next(iter(_page(caller, period, project)), None)


def _page(caller: Caller, period: Period, project: str | None) -> list[ProjectUsage]:
    moment = now()
    begin, end = period.begin or moment, period.end or moment
    if begin > end or (begin == end and (period.begin or period.end)):
        raise InvalidRequest("Invalid start time. The start time cannot occur after the end time.")
    end = min(end, moment)
    after = None if period.marker is None else _marked(caller, period.marker, project)
    rows = usage.of_period(caller.cloud.store, begin, end, project=project, limit=period.limit, after=after,
                           timeout=caller.settings.cell_timeout)
    return [ProjectUsage(id, begin, end, [_of_server(row, begin, end, moment) for row in found])
            for id, found in groupby(rows, lambda row: str(row.project_id))]


def _marked(caller: Caller, id: str, project: str | None) -> usage.After:
    """What the server *id* sorts by. It may have been deleted since the page before."""
    found = servers.find(caller.cloud.store, id, deleted=True) if len(id) == 36 else None
    if found is None or project not in (None, found[1].project_id):
        raise InvalidRequest(f"Marker {id[:80]} could not be found.")
    return found[1].project_id, found[1].id


def _of_server(row: Any, begin: str, end: str, moment: str) -> ServerUsage:
    flavor, ended = orjson.loads(row.flavor), row.terminated_at
    return ServerUsage(
        id=row.id, name=row.name, project_id=row.project_id, flavor=flavor["name"], vcpus=flavor["vcpus"],
        memory_mb=flavor["ram"], local_gb=flavor["disk"] + flavor.get("ephemeral", 0), started_at=row.launched_at,
        ended_at=ended, state="terminated" if ended else row.vm_state,
        hours=_between(max(row.launched_at, begin), min(ended or end, end)) / HOUR,
        uptime=int(_between(row.launched_at, ended or moment).total_seconds()))


def _between(begin: str, end: str) -> timedelta:
    return max(datetime.fromisoformat(end) - datetime.fromisoformat(begin), timedelta())


# Audits of hosts ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Audit:
    """How many servers each host had in a period: *counts* by host. *left*: hosts of which nobody can tell."""

    begin: datetime
    end: datetime
    counts: Mapping[str, int]
    left: Sequence[str]
    message: str


@use_case(f"{AUDIT_RULE}list")
def audit(caller: Caller, before: datetime | None = None) -> Audit:
    """Of the last period that was over at *before* (now where left out), as the setting
    ``instance_usage_audit_period`` divides time. Nothing writes logs of it: the servers are counted when it is asked
    for. Nobody can tell of hosts whose cell does not answer, and of periods that are not over."""
    moment = datetime.fromisoformat(now())
    begin, end = last_period(caller.settings.instance_usage_audit_period, before or moment)
    hosts = [one for one in read_all(caller) if one.binary == COMPUTE]
    cells = usage.of_hosts(caller.cloud.store, stored(begin), stored(end)) if end <= moment else {}
    told = {one.host: counts.get(one.host, 0) for one in hosts if (counts := cells.get(one.cell_id)) is not None}
    days = caller.settings.purge_deleted_after
    purged = bool(days) and begin < moment - timedelta(days=days)
    return Audit(begin, end, told, [one.host for one in hosts if one.host not in told],
                 "Counted when it was asked for, from the rows of servers" + (
                     f"; those deleted more than {days:g} days ago are not among them." if purged else "."))


#: As ``audit``, for who names a moment.
audit_before = use_case(f"{AUDIT_RULE}show")(audit.function)
