# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hypervisors: the compute hosts, what they have, and (with_servers) what is on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.api.values import Id
from magnetar_control.compute.hosts import hypervisors
from magnetar_control.compute.hosts.hypervisors import SUMMED
from magnetar_control.store.hosts.services import Service
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Text
from magnetar_core.version import version_number

from .fields import ApiField, Fields, View
from .history import Gate
from .operation import Call, Query, noun, shown_as
from .paging import next_link, pages, size
from .values import TRUTH


def _service(id: str) -> Callable[[View, Mapping[str, Any]], dict[str, Any]]:
    return lambda _view, row: {"id": row[id], "host": row["host"], "disabled_reason": row["disabled_reason"]}


#: list: GET /os-hypervisors; show: the others.
FIELDS = Fields(
    ApiField("id", name="number", shows="list show", until=52),
    ApiField("id", shows="list show", since=53),
    ApiField("hypervisor_hostname", name="host", shows="list show"),
    ApiField("state", shows="list show"),
    ApiField("status", shows="list show"),
    ApiField("host_ip", shows="show"),
    ApiField("hypervisor_type", shows="show"),
    ApiField("hypervisor_version", shows="show"),
    ApiField("service", shows="show", until=52, show=_service("number")),
    ApiField("service", shows="show", since=53, show=_service("id")),
    ApiField("uptime", shows="show", since=88),
    *(ApiField(name, shows="show", until=87) for name in SUMMED),
    ApiField("cpu_info", shows="show", until=27, show=lambda _view, row: orjson.dumps(row["cpu_info"]).decode()),
    ApiField("cpu_info", shows="show", since=28, until=87),
    mapping=True)


def _brief_row(one: Service) -> dict[str, Any]:
    return {"id": one.id, "number": one.number, "host": one.host, "state": "up" if one.up else "down",
            "status": "disabled" if one.disabled else "enabled"}


def _shown(call: Call, found: Sequence[Service], *, servers: bool, brief: bool = False) -> list[dict[str, Any]]:
    """The documents. *servers*: whether these are asked for."""
    view = View(call, FIELDS, "list" if brief else "show")
    rows = [*map(_brief_row, found)] if brief else _full_rows(call, found)
    shown = view.documents(rows)
    if servers:
        on = hypervisors.servers_on(call, found)
        for one, document in zip(found, shown, strict=True):
            if on.get(one.host) or call.at(Gate.HYPERVISOR_SERVERS):
                document["servers"] = [{"uuid": row.id, "name": row.name} for row in on.get(one.host) or ()]
    return shown


def _full_rows(call: Call, found: Sequence[Service]) -> list[dict[str, Any]]:
    """With what the hosts say of themselves, and what is known of them at the version."""
    up = hypervisors.uptimes(call, found) if call.at(Gate.HYPERVISOR_UPTIME) else {}
    loads = {} if call.at(Gate.HYPERVISOR_UPTIME) else hypervisors.workloads(call, found)
    rows = []
    for one in found:
        row: Any = one.row
        info = orjson.loads(row["info"])
        shown = {**_brief_row(one), "host_ip": hypervisors.address(row["endpoint"]),
                 "hypervisor_type": info.get("hypervisor_type") or "unknown",
                 "hypervisor_version": version_number(str(info.get("hypervisor_version") or "")),
                 "disabled_reason": one.disabled_reason, "uptime": up.get(one.host)}
        if not call.at(Gate.HYPERVISOR_UPTIME):
            shown.update(hypervisors.sizes(row, info, loads.get(one.host, (0, 0))),
                         cpu_info=hypervisors.processor(row["vcpus"], info))
        rows.append(shown)
    return rows


def _listed(call: Call, path: str, *, brief: bool) -> dict[str, Any]:
    query, by_uuid = call.query, call.at(Gate.HOST_UUIDS)
    pattern, marker, limit = query.get("hypervisor_hostname_pattern"), query.get("marker"), None
    if pattern is not None:
        if "limit" in query or "marker" in query:
            raise InvalidRequest("Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not "
                                 "supported.")
    elif call.at(Gate.HYPERVISOR_PAGES):
        limit = size(call)
    if marker is not None and by_uuid:
        marker = Id().check(marker, "marker")
    page = hypervisors.page if brief else hypervisors.page_detail
    found = page(call, limit, marker, pattern=pattern, by_uuid=by_uuid)
    answer: dict[str, Any] = {"hypervisors": _shown(call, found, servers=query.get("with_servers", False), brief=brief)}
    if limit is not None and len(found) >= limit > 0:
        answer["hypervisors_links"] = next_link(call, path, found[-1].id if by_uuid else str(found[-1].number))
    return answer


def _by_uuid(call: Call) -> dict[str, bool]:
    return {"by_uuid": call.at(Gate.HOST_UUIDS)}


def _one(call: Call, found: Service) -> dict[str, Any]:
    return {"hypervisor": _shown(call, [found], servers=call.query.get("with_servers", False))[0]}


def _uptime(call: Call, found: tuple[Service, str]) -> dict[str, Any]:
    return {"hypervisor": {**_shown(call, [found[0]], servers=False, brief=True)[0], "uptime": found[1]}}


_WITH = {"with_servers": Query(value=TRUTH, since=53)}
LIST_QUERY = {**_WITH, "hypervisor_hostname_pattern": Query(value=Text(1, 255), since=53),
              **pages(Gate.HYPERVISOR_PAGES.version)}
_row = noun("os-hypervisors", "/os-hypervisors", strict=53)
# The id of search and servers is a part of the host's name.
OPERATIONS = (
    _row("GET", "", "list", hypervisors.page, query=LIST_QUERY,
         handler=lambda call: _listed(call, "/os-hypervisors", brief=True)),
    _row("GET", "/detail", "detail.list", hypervisors.page_detail, query=LIST_QUERY,
         handler=lambda call: _listed(call, "/os-hypervisors/detail", brief=False)),
    _row("GET", "/statistics", "statistics.list", hypervisors.statistics, until=87,
         shown=shown_as("hypervisor_statistics")),
    _row("GET", "/{id}", "show", hypervisors.show, given=_by_uuid, shown=_one, query=_WITH),
    _row("GET", "/{id}/search", "search.list", hypervisors.search, until=52,
         shown=lambda call, found: {"hypervisors": _shown(call, found, servers=False, brief=True)}),
    _row("GET", "/{id}/servers", "servers.list", hypervisors.search_servers, until=52,
         shown=lambda call, found: {"hypervisors": _shown(call, found, servers=True, brief=True)}),
    _row("GET", "/{id}/uptime", "uptime.list", hypervisors.uptime, until=87, given=_by_uuid, shown=_uptime,
         waits=True),
)
