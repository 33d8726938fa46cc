# SPDX-License-Identifier: GPL-3.0-or-later
"""os-simple-tenant-usage: what projects have used in a period. os-instance_usage_audit_log: how many servers each host
had in one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from magnetar_control.api.values import Anything, Parsed
from magnetar_control.compute.accounts import usage
from magnetar_control.compute.accounts.usage import Audit, Period, ProjectUsage
from magnetar_control.store.engine.database import moment
from magnetar_core.errors import InvalidRequest

from .fields import ApiField, Fields, View
from .history import Gate
from .operation import ApiOperation, Call, Query, noun
from .paging import next_link, pages, size

#: Forms of a moment, which is in UTC, that Nova takes: in queries, and in the path of an audit.
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
    ApiField("total_vcpus_usage", shows="list show", show=lambda _view, one: one.total("vcpus")),
    ApiField("total_memory_mb_usage", shows="list show", show=lambda _view, one: one.total("memory_mb")),
    ApiField("total_local_gb_usage", shows="list show", show=lambda _view, one: one.total("local_gb")),
    ApiField("server_usages", shows="show", show=lambda view, one: [
        *map(View(view.call, SERVER).document, one.servers)]))


def _moment(text: Any) -> str | None:
    found = _parsed(text, MOMENTS) if text else None
    return None if found is None else moment(found.isoformat())


def _parsed(text: str, forms: Sequence[str]) -> datetime:
    for form in forms:
        with contextlib.suppress(ValueError):
            return datetime.strptime(text, form)  # noqa: DTZ007 - all of it is UTC
    raise ValueError(text)


MOMENT = Query(value=Parsed(_moment, "must be a moment in UTC such as 2026-11-21T10:00:00", type="string"))


def _period(call: Call) -> dict[str, Period]:
    query = call.query
    return {"period": Period(begin=query.get("start"), end=query.get("end"), limit=size(call),
                             marker=query.get("marker"))}


def _linked(call: Call, key: str, path: str, shown: Any, found: Sequence[ProjectUsage]) -> dict[str, Any]:
    """With a link to the next page, where there may be one: pages are of servers."""
    counted = [server for project in found for server in project.servers]
    more = call.at(Gate.USAGE_PAGES) and counted and len(counted) >= size(call)
    return {key: shown, **({f"{key}_links": next_link(call, path, counted[-1].id)} if more else {})}


def _listed(call: Call, found: Sequence[ProjectUsage]) -> dict[str, Any]:
    view = View(call, FIELDS, "show" if call.query.get("detailed") == "1" else "list")
    return _linked(call, "tenant_usages", "/os-simple-tenant-usage", [*map(view.document, found)], found)


def _shown(call: Call, found: ProjectUsage | None) -> dict[str, Any]:
    """A project without servers in the period has an empty document."""
    document = View(call, FIELDS).document(found) if found else {}
    return _linked(call, "tenant_usage", f"/os-simple-tenant-usage/{call.params['id']}", document,
                   [found] if found else [])


def _audit(_call: Call, found: Audit) -> dict[str, Any]:
    done, total = len(found.counts), len(found.counts) + len(found.left)
    return {"period_beginning": str(found.begin), "period_ending": str(found.end), "num_hosts": total,
            "num_hosts_done": done, "num_hosts_running": 0, "num_hosts_not_run": len(found.left),
            "hosts_not_run": found.left, "total_instances": sum(found.counts.values()), "total_errors": 0,
            "overall_status": f"{'ALL' if done == total else f'{done} of {total}'} hosts done. 0 errors.",
            "log": {host: {"state": "DONE", "instances": count, "errors": 0, "message": found.message}
                    for host, count in found.counts.items()}}


def _audited_before(call: Call) -> dict[str, Any]:
    """The id is a moment. There is no year before the first."""
    usage.audit_before.check_allowed(call)
    try:
        before = _parsed(call.params["id"], AUDITED)
        if before.year == 1:
            raise ValueError(before)
    except ValueError:
        raise InvalidRequest(f"Invalid timestamp for date {call.params['id'][:80]}: it must be a moment in UTC such as "
                             "2026-11-21 10:00:00.") from None
    return {"instance_usage_audit_log": _audit(call, usage.audit_before(call, before))}


QUERY = {"start": MOMENT, "end": MOMENT, **pages(Gate.USAGE_PAGES.version)}
_row = noun("os-simple-tenant-usage", "/os-simple-tenant-usage", strict=75, given=_period)
OPERATIONS = (
    _row("GET", "", "list", usage.page, shown=_listed, query={**QUERY, "detailed": Query(value=Anything())}),
    _row("GET", "/{id}", "show", usage.show, shown=_shown, query=QUERY),
    ApiOperation(method="GET", path="/os-instance_usage_audit_log", name="os-instance_usage_audit_log.list",
                 use=usage.audit, strict=102, shown=lambda call, found: {
                     "instance_usage_audit_logs": _audit(call, found)}),
    ApiOperation(method="GET", path="/os-instance_usage_audit_log/{id}", name="os-instance_usage_audit_log.show",
                 use=usage.audit_before, strict=102, handler=_audited_before),
)
