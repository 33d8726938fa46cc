# SPDX-License-Identifier: GPL-3.0-or-later
"""Usage of projects: hours of their servers, times vCPUs, memory and disk. It is computed from the rows of servers,
including deleted ones until they are purged (``purge_deleted_after``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.notifications.audit_period import last_period
from magnetar_control.store.engine.database import format_moment, utc_now
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.host_row import ServiceHost
from magnetar_control.store.servers import servers, usage
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import InvalidRequest

RULE = "os_compute_api:os-simple-tenant-usage:"
AUDIT_RULE = "os_compute_api:os-instance-usage-audit-log:"
HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class ServerUsage:
    """The usage of a server in a reporting period. *hours*: the hours within the period in which the server existed.
    *uptime*: the seconds from the server's start to its end, or until now."""

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
    """The resource usage of a project's servers in a reporting period from *begin* to *end*."""

    project_id: str
    begin: str
    end: str
    servers: Sequence[ServerUsage]

    def total(self, size: str) -> float:
        """Return the sum of *size* times hours over all servers. *size*: the name of a field of ``ServerUsage``, such
        as vcpus."""
        return float(sum(getattr(server, size) * server.hours for server in self.servers))

    @property
    def hours(self) -> float:
        """The sum of the hours of all servers."""
        return sum(server.hours for server in self.servers)


@dataclass(frozen=True, kw_only=True)
class Period:
    """A reporting period from *begin* to *end*, and one page of its result. If *begin* or *end* is ``None``, the
    current time is used. The page has at most *limit* servers that follow the server *marker*."""

    begin: str | None = None
    end: str | None = None
    limit: int
    marker: str | None = None


@use_case(f"{RULE}list")
def list_project_usage(caller: Caller, period: Period) -> list[ProjectUsage]:
    """Return the usage of each project that had servers in *period*. If not all servers of a project fit on a page, the
    next page has the remaining ones. Raises ``InvalidRequest``."""
    return _usage_of_period(caller, period, None)


def show_project_usage(caller: Caller, project: str, period: Period) -> ProjectUsage | None:
    """Return the usage of *project* in *period*; ``None`` when it had no server in that time. Raises ``Forbidden``,
    ``InvalidRequest``."""
    caller.check_policy(f"{RULE}show", Owner(project))
    return next(iter(_usage_of_period(caller, period, project)), None)


def _usage_of_period(caller: Caller, period: Period, project: str | None) -> list[ProjectUsage]:
    moment = utc_now()
    begin, end = period.begin or moment, period.end or moment
    if begin > end or (begin == end and (period.begin or period.end)):
        raise InvalidRequest("Invalid start time. The start time cannot occur after the end time.")
    end = min(end, moment)
    marker_keys = None if period.marker is None else _marker_keys(caller, period.marker, project)
    rows = usage.fetch_servers_of_period(caller.cloud.store, begin, end, project=project, limit=period.limit,
                                         marker=marker_keys, timeout=caller.settings.cell_timeout)
    return [ProjectUsage(id, begin, end, [_server_usage(row, begin, end, moment) for row in project_rows])
            for id, project_rows in groupby(rows, lambda row: str(row.project_id))]


def _marker_keys(caller: Caller, id: str, project: str | None) -> usage.After:
    """Return (project id, server id) of the server *id*, the last server of the previous page. The server may be
    deleted. Raises ``InvalidRequest`` when the server does not exist, or belongs to another project than *project*
    (``None``: any project)."""
    located_server = servers.find_server_row(caller.cloud.store, id, deleted=True) if len(id) == 36 else None
    if located_server is None or project not in (None, located_server[1].project_id):
        raise InvalidRequest(f"Marker {id[:80]} could not be found.")
    return located_server[1].project_id, located_server[1].id


def _server_usage(row: ServerRow, begin: str, end: str, moment: str) -> ServerUsage:
    flavor, launched, ended = row.flavor, str(row.launched_at), row.terminated_at
    return ServerUsage(
        id=row.id, name=row.name, project_id=row.project_id, flavor=flavor["name"], vcpus=flavor["vcpus"],
        memory_mb=flavor["ram"], local_gb=flavor["disk"] + flavor.get("ephemeral", 0), started_at=launched,
        ended_at=ended, state="terminated" if ended else row.vm_state,
        hours=_between(max(launched, begin), min(ended or end, end)) / HOUR,
        uptime=int(_between(launched, ended or moment).total_seconds()))


def _between(begin: str, end: str) -> timedelta:
    return max(datetime.fromisoformat(end) - datetime.fromisoformat(begin), timedelta())


# Audits of hosts ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Audit:
    """An answer of the API os-instance_usage_audit_log: the number of servers on each host in a period. *counts*: the
    numbers by host. *left*: the hosts for which the number is unknown."""

    begin: datetime
    end: datetime
    counts: Mapping[str, int]
    left: Sequence[str]
    message: str


@use_case(f"{AUDIT_RULE}list")
def show_usage_audit(caller: Caller, before: datetime | None = None) -> Audit:
    """Return the number of servers on each host in the last audit period that ended before *before* (default: now). The
    setting ``instance_usage_audit_period`` defines the periods. The servers are counted for each request; no audit log
    is stored. The number of servers is unknown on hosts in a cell that does not answer. It is unknown on all hosts if
    the period has not ended yet, because *before* is in the future."""
    moment = datetime.fromisoformat(utc_now())
    begin, end = last_period(caller.settings.instance_usage_audit_period, before or moment)
    rows = caller.fetch(hosts.fetch_every_host, ServiceHost)
    cells = usage.count_servers_by_host(caller.cloud.store, format_moment(begin),
                                        format_moment(end)) if end <= moment else {}
    counts_by_host = {row.name: counts.get(row.name, 0) for row in rows
                      if (counts := cells.get(row.cell_id)) is not None}
    days = caller.settings.purge_deleted_after
    purged = bool(days) and begin < moment - timedelta(days=days)
    return Audit(begin, end, counts_by_host, [row.name for row in rows if row.name not in counts_by_host],
                 "Counted when it was asked for, from the rows of servers" + (
                     f"; those deleted more than {days:g} days ago are not among them." if purged else "."))


#: As ``show_usage_audit``, for requests that name a moment.
show_usage_audit_before = use_case(f"{AUDIT_RULE}show")(show_usage_audit.function)
