# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type usage: the resources that projects have used in a period."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from magnetar_control.api.v1.servers.server_view import agent_timestamp
from magnetar_control.compute.accounts import usage
from magnetar_control.compute.accounts.usage import Period, ProjectUsage, ServerUsage
from magnetar_control.compute.caller import Caller
from magnetar_control.store.engine.database import parse_moment
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Usage

from .driver import ALL_PROJECTS, CloudDriver

#: Limit of servers in one query.
PAGE = 1000
SIZES = {"vcpu_hours": "vcpus", "memory_mb_hours": "memory_mb", "disk_gb_hours": "local_gb"}


class Usages(CloudDriver):
    """The driver of the v1 API for usage (vCPU, memory and disk hours of servers). It reports the caller's project or,
    for administrators, all projects. The parameters ``begin`` and ``end`` of a list request limit the period; if one is
    missing, the present time is used."""

    kind, makeable, of_all_projects = Usage, False, True

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """Return the usage of each project in a period: GET /v1/usage?begin=…&end=…, both ISO 8601 times."""
        period = Period(begin=_moment(filters, "begin"), end=_moment(filters, "end"), limit=PAGE)
        everywhere = filters.pop(ALL_PROJECTS, False)
        parts_by_project: dict[str, list[ProjectUsage]] = {}
        for part in _pages(caller, period, everywhere=everywhere):
            parts_by_project.setdefault(part.project_id, []).append(part)
        return [_usage_document(parts) for parts in parts_by_project.values()]


def _pages(caller: Caller, period: Period, *, everywhere: bool) -> Iterator[ProjectUsage]:
    """Yield the usage in *period* of the caller's project, or of all projects if *everywhere* is true. A project with
    many servers is yielded several times, each time with a part of its servers."""
    while True:
        if everywhere:
            page = usage.list_project_usage(caller, period)
        else:
            project_usage = usage.show_project_usage(caller, caller.project, period)
            page = [project_usage] if project_usage else []
        yield from page
        if sum(len(part.servers) for part in page) < PAGE:
            return
        period = replace(period, marker=page[-1].servers[-1].id)


def _moment(filters: dict[str, Any], name: str) -> str | None:
    text = filters.pop(name, None)
    try:
        return None if text is None else parse_moment(text)
    except ValueError:
        raise InvalidField(name, "must be a day or a moment in ISO 8601, such as 2026-11-21T10:00:00Z", text) from None


def _usage_document(parts: list[ProjectUsage]) -> Document:
    first = parts[0]
    return {"name": first.project_id, "begin": agent_timestamp(first.begin), "end": agent_timestamp(first.end),
            "hours": sum(part.hours for part in parts),
            **{name: sum(part.total(size) for part in parts) for name, size in SIZES.items()},
            "servers": [_server(server) for part in parts for server in part.servers]}


def _server(server: ServerUsage) -> Document:
    return {"id": server.id, "name": server.name, "flavor": server.flavor, "vcpus": server.vcpus,
            "memory_mb": server.memory_mb,
            "disk_gb": server.local_gb, "started_at": agent_timestamp(server.started_at),
            "ended_at": agent_timestamp(server.ended_at),
            "state": server.state, "hours": server.hours, "uptime": server.uptime}
