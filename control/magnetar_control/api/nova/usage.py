# SPDX-License-Identifier: GPL-3.0-or-later
"""os-simple-tenant-usage: the resource usage of projects in a period. os-instance_usage_audit_log: the number of
servers of each host in a period."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from magnetar_control.api.values import Anything, Parsed
from magnetar_control.compute.accounts import usage
from magnetar_control.compute.accounts.usage import Audit, Period, ProjectUsage
from magnetar_control.store.engine.database import parse_moment
from magnetar_core.errors import InvalidRequest

from .fields import ApiField, Fields, View
from .history import ApiChange
from .operation import ApiOperation, Call, Query, operation_factory
from .paging import next_link, page_size, paging_parameters

#: Forms of a time in UTC that Nova accepts: in queries, and in the path of an audit.
MOMENTS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%d %H:%M:%S.%f")
AUDITED = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f")
SERVER = Fields(
    ApiField("instance_id", name="id", shows="show"),
    ApiField("tenant_id", name="project_id", shows="show"),
    *(ApiField(name, shows="show") for name in ("name", "flavor", "vcpus", "memory_mb", "local_gb", "hours",
                                                "started_at", "ended_at", "state", "uptime")))
FIELDS = Fields(
    ApiField("tenant_id", name="project_id", shows="list show"),
    ApiField("start", name="begin", shows="list show"),
    ApiField("stop", name="end", shows="list show"),
    ApiField("total_hours", name="hours", shows="list show"),
    ApiField("total_vcpus_usage", shows="list show", show=lambda _view, project_usage: project_usage.total("vcpus")),
    ApiField("total_memory_mb_usage", shows="list show", show=lambda _view,
             project_usage: project_usage.total("memory_mb")),
    ApiField("total_local_gb_usage", shows="list show", show=lambda _view,
             project_usage: project_usage.total("local_gb")),
    ApiField("server_usages", shows="show", show=lambda view, project_usage: [
        *map(View(view.call, SERVER).document, project_usage.servers)]))


def _moment(text: Any) -> str | None:
    parsed = _parsed(text, MOMENTS) if text else None
    return None if parsed is None else parse_moment(parsed.isoformat())


def _parsed(text: str, forms: Sequence[str]) -> datetime:
    for form in forms:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form)  # noqa: DTZ007 - all of it is UTC
    raise ValueError(text)


MOMENT = Query(value=Parsed(_moment, "must be a moment in UTC such as 2026-11-21T10:00:00", type="string"))


def _period(call: Call) -> dict[str, Period]:
    query = call.query
    return {"period": Period(begin=query.get("start"), end=query.get("end"), limit=page_size(call),
                             marker=query.get("marker"))}


def _linked(call: Call, key: str, path: str, shown: Any, usages: Sequence[ProjectUsage]) -> dict[str, Any]:
    """Return the answer ``{key: shown}``; add a link to the next page if *usages* has as many servers as a full page.
    *path*: the path of the link."""
    counted = [server for project in usages for server in project.servers]
    more = call.at(ApiChange.USAGE_PAGES) and counted and len(counted) >= page_size(call)
    return {key: shown, **({f"{key}_links": next_link(call, path, counted[-1].id)} if more else {})}


def _listed(call: Call, usages: Sequence[ProjectUsage]) -> dict[str, Any]:
    view = View(call, FIELDS, "show" if call.query.get("detailed") == "1" else "list")
    return _linked(call, "tenant_usages", "/os-simple-tenant-usage", [*map(view.document, usages)], usages)


def _render_project_usage(call: Call, project_usage: ProjectUsage | None) -> dict[str, Any]:
    """Return the answer with the usage of one project. *project_usage*: ``None`` if the project had no servers in the
    period; then the usage is an empty object."""
    document = View(call, FIELDS).document(project_usage) if project_usage else {}
    return _linked(call, "tenant_usage", f"/os-simple-tenant-usage/{call.params['id']}", document,
                   [project_usage] if project_usage else [])


def _audit(_call: Call, audit: Audit) -> dict[str, Any]:
    done, total = len(audit.counts), len(audit.counts) + len(audit.left)
    return {"period_beginning": str(audit.begin), "period_ending": str(audit.end), "num_hosts": total,
            "num_hosts_done": done, "num_hosts_running": 0, "num_hosts_not_run": len(audit.left),
            "hosts_not_run": audit.left, "total_instances": sum(audit.counts.values()), "total_errors": 0,
            "overall_status": f"{'ALL' if done == total else f'{done} of {total}'} hosts done. 0 errors.",
            "log": {host: {"state": "DONE", "instances": count, "errors": 0, "message": audit.message}
                    for host, count in audit.counts.items()}}


def _audited_before(call: Call) -> dict[str, Any]:
    """Return the usage audit of the last complete period before the time in the URL. Raises ``InvalidRequest`` for an
    invalid time, and for a time in year 1, because no year precedes it."""
    usage.show_usage_audit_before.check_allowed(call)
    try:
        reference_time = _parsed(call.params["id"], AUDITED)
        if reference_time.year == 1:
            raise ValueError(reference_time)
    except ValueError:
        raise InvalidRequest(f"Invalid timestamp for date {call.params['id'][:80]}: it must be a moment in UTC such as "
                             "2026-11-21 10:00:00.") from None
    return {"instance_usage_audit_log": _audit(call, usage.show_usage_audit_before(call, reference_time))}


QUERY = {"start": MOMENT, "end": MOMENT, **paging_parameters(ApiChange.USAGE_PAGES.version)}
_row = operation_factory("os-simple-tenant-usage", "/os-simple-tenant-usage", strict=75, given=_period)
OPERATIONS = (
    _row("GET", "", "list", usage.list_project_usage, shown=_listed,
         query={**QUERY, "detailed": Query(value=Anything())}),
    _row("GET", "/{id}", "show", usage.show_project_usage, shown=_render_project_usage, query=QUERY),
    ApiOperation(method="GET", path="/os-instance_usage_audit_log", name="os-instance_usage_audit_log.list",
                 use=usage.show_usage_audit, strict=102, shown=lambda call, audit: {
                     "instance_usage_audit_logs": _audit(call, audit)}),
    ApiOperation(method="GET", path="/os-instance_usage_audit_log/{id}", name="os-instance_usage_audit_log.show",
                 use=usage.show_usage_audit_before, strict=102, handler=_audited_before),
)
