# SPDX-License-Identifier: GPL-3.0-or-later
"""usage: what projects have used in a period."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from magnetar_control.api.v1.servers.server_view import stamp
from magnetar_control.compute.accounts import usage
from magnetar_control.compute.accounts.usage import Period, ProjectUsage, ServerUsage
from magnetar_control.compute.caller import Caller
from magnetar_control.store.engine.database import moment
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import Usage
from magnetar_core.reconcile import Document

from .driver import ALL_PROJECTS, CloudDriver

#: Servers that are asked for at once.
PAGE = 1000
SIZES = {"vcpu_hours": "vcpus", "memory_mb_hours": "memory_mb", "disk_gb_hours": "local_gb"}


class Usages(CloudDriver):
    """Of the project, or for administrators of all. Without a period, it is the moment."""

    kind, makeable, of_all_projects = Usage, False, True

    def every(self, caller: Caller) -> list[Document]:
        return self.filtered(caller, {})

    def filtered(self, caller: Caller, filters: dict[str, Any]) -> list[Document]:
        """GET /v1/usage?begin=…&end=…"""
        period = Period(begin=_moment(filters, "begin"), end=_moment(filters, "end"), limit=PAGE)
        everywhere = filters.pop(ALL_PROJECTS, False)
        found: dict[str, list[ProjectUsage]] = {}
        for one in _pages(caller, period, everywhere=everywhere):
            found.setdefault(one.project_id, []).append(one)
        return [_shown(parts) for parts in found.values()]


def _pages(caller: Caller, period: Period, *, everywhere: bool) -> Iterator[ProjectUsage]:
    """All that was used, a project in several parts where it has many servers."""
    while True:
        if everywhere:
            page = usage.page(caller, period)
        else:
            own = usage.show(caller, caller.project, period)
            page = [own] if own else []
        yield from page
        if sum(len(one.servers) for one in page) < PAGE:
            return
        period = replace(period, marker=page[-1].servers[-1].id)


def _moment(filters: dict[str, Any], name: str) -> str | None:
    text = filters.pop(name, None)
    try:
        return None if text is None else moment(text)
    except ValueError:
        raise InvalidField(name, "must be a day or a moment in ISO 8601, such as 2026-11-21T10:00:00Z", text) from None


def _shown(parts: list[ProjectUsage]) -> Document:
    one = parts[0]
    return {"name": one.project_id, "begin": stamp(one.begin), "end": stamp(one.end),
            "hours": sum(part.hours for part in parts),
            **{name: sum(part.total(size) for part in parts) for name, size in SIZES.items()},
            "servers": [_server(server) for part in parts for server in part.servers]}


def _server(one: ServerUsage) -> Document:
    return {"id": one.id, "name": one.name, "flavor": one.flavor, "vcpus": one.vcpus, "memory_mb": one.memory_mb,
            "disk_gb": one.local_gb, "started_at": stamp(one.started_at), "ended_at": stamp(one.ended_at),
            "state": one.state, "hours": one.hours, "uptime": one.uptime}
