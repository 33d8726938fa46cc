# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hypervisors: the compute hosts, their resources, and (with_servers) their servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.api.values import Id
from magnetar_control.compute.hosts import hypervisors
from magnetar_control.compute.hosts.hypervisors import SUMMED, HypervisorPage, SizedHypervisor
from magnetar_control.store.hosts.services import Service
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import Text
from magnetar_core.version import version_number

from .fields import ApiField, Fields, View
from .history import ApiChange
from .operation import Call, Query, operation_factory, shown_as
from .paging import next_link, page_size, paging_parameters
from .values import TRUTH


def _service(id: str) -> Callable[[View, Mapping[str, Any]], dict[str, Any]]:
    return lambda _view, row: {"id": row[id], "host": row["host"], "disabled_reason": row["disabled_reason"]}


#: The number of hosts whose servers are read at once.
BATCH_SIZE = 100
#: The fields by answer; list is GET /os-hypervisors, show all others.
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


def _brief_row(service: Service) -> dict[str, Any]:
    return {"id": service.id, "number": service.number, "host": service.host, "state": "up" if service.up else "down",
            "status": "disabled" if service.disabled else "enabled"}


def _briefly(call: Call, services: Sequence[Service], *, servers: bool) -> list[dict[str, Any]]:
    """Return *services* (compute hosts) for a list without details. *servers*: include the servers of each host."""
    return _render_hypervisors(call, "list", [*map(_brief_row, services)], servers=servers)


def _fully(call: Call, hosts: Sequence[SizedHypervisor], *, servers: bool) -> list[dict[str, Any]]:
    """Return *hosts* with all fields. *servers*: include the servers of each host."""
    return _render_hypervisors(call, "show", _full_rows(call, hosts), servers=servers)


def _render_hypervisors(call: Call, answer: str, rows: Sequence[dict[str, Any]], *,
                        servers: bool) -> list[dict[str, Any]]:
    shown = View(call, FIELDS, answer).documents(rows)
    names = [row["host"] for row in rows] if servers else []
    for at in range(0, len(names), BATCH_SIZE):
        _add_servers(call, names[at:at + BATCH_SIZE], shown[at:at + BATCH_SIZE])
    return shown


def _add_servers(call: Call, names: Sequence[str], shown: Sequence[dict[str, Any]]) -> None:
    """Add the key ``servers`` to each dict of *shown*: uuid and name of the servers on the host with the same index in
    *names*. The value is JSON text, because dicts would take ten times the memory."""
    on = hypervisors.servers_of_hypervisors(call, names)
    for name, document in zip(names, shown, strict=True):
        if on.get(name) or call.at(ApiChange.HYPERVISOR_SERVERS):
            document["servers"] = orjson.Fragment(orjson.dumps(
                [{"uuid": server.id, "name": server.name} for server in on.get(name) or ()]))


def _full_rows(call: Call, hosts: Sequence[SizedHypervisor]) -> list[dict[str, Any]]:
    """Return a dict with all shown fields for each of *hosts*. Since the version ``ApiChange.HYPERVISOR_UPTIME`` the
    dicts include the uptime; in earlier versions they include the sizes and the CPU information instead."""
    up = hypervisors.list_uptimes(call, hosts) if call.at(ApiChange.HYPERVISOR_UPTIME) else {}
    loads = {} if call.at(ApiChange.HYPERVISOR_UPTIME) else hypervisors.hypervisor_workloads(
        call, [host.row.name for host in hosts])
    rows = []
    for host in hosts:
        row, info = host.row, host.row.info
        shown = {**_brief_row(host.service), "host_ip": hypervisors.agent_address(row.endpoint),
                 "hypervisor_type": info.get("hypervisor_type") or "unknown",
                 "hypervisor_version": version_number(str(info.get("hypervisor_version") or "")),
                 "disabled_reason": host.service.disabled_reason, "uptime": up.get(row.name)}
        if not call.at(ApiChange.HYPERVISOR_UPTIME):
            shown.update(hypervisors.hypervisor_sizes(row, info, loads.get(row.name, (0, 0))),
                         cpu_info=hypervisors.processor_info(row.vcpus, info))
        rows.append(shown)
    return rows


def _page(call: Call) -> HypervisorPage:
    """Return the limit, the marker and the name pattern of the requested page of hypervisors. Raises
    ``InvalidRequest``."""
    query, by_uuid = call.query, call.at(ApiChange.HOST_UUIDS)
    pattern, marker, limit = query.get("hypervisor_hostname_pattern"), query.get("marker"), None
    if pattern is not None:
        if "limit" in query or "marker" in query:
            raise InvalidRequest("Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not "
                                 "supported.")
    elif call.at(ApiChange.HYPERVISOR_PAGES):
        limit = page_size(call)
    if marker is not None and by_uuid:
        marker = Id().check(marker, "marker")
    return HypervisorPage(limit, marker, by_uuid, pattern)


def _list(call: Call) -> dict[str, Any]:
    page = _page(call)
    services = hypervisors.list_hypervisors(call, page)
    documents = _briefly(call, services, servers=call.query.get("with_servers", False))
    return _answer(call, "/os-hypervisors", page, documents, services)


def _list_detail(call: Call) -> dict[str, Any]:
    page = _page(call)
    hosts = hypervisors.list_hypervisors_detail(call, page)
    documents = _fully(call, hosts, servers=call.query.get("with_servers", False))
    return _answer(call, "/os-hypervisors/detail", page, documents, [host.service for host in hosts[-1:]])


def _answer(call: Call, path: str, page: HypervisorPage, documents: list[dict[str, Any]],
            services: Sequence[Service]) -> dict[str, Any]:
    """Return the answer ``{"hypervisors": documents}`` for one page of hypervisors, with a link to the next page if
    this page is full. *path*: the path of the link. *services*: the compute services of the page."""
    answer: dict[str, Any] = {"hypervisors": documents}
    if page.limit is not None and len(documents) >= page.limit > 0:
        answer["hypervisors_links"] = next_link(call, path,
                                                services[-1].id if page.by_uuid else str(services[-1].number))
    return answer


def _by_uuid(call: Call) -> dict[str, bool]:
    return {"by_uuid": call.at(ApiChange.HOST_UUIDS)}


def _one(call: Call, host: SizedHypervisor) -> dict[str, Any]:
    return {"hypervisor": _fully(call, [host], servers=call.query.get("with_servers", False))[0]}


def _uptime(call: Call, service_uptime: tuple[Service, str]) -> dict[str, Any]:
    return {"hypervisor": {**_briefly(call, [service_uptime[0]], servers=False)[0], "uptime": service_uptime[1]}}


_WITH = {"with_servers": Query(value=TRUTH, since=53)}
LIST_QUERY = {**_WITH, "hypervisor_hostname_pattern": Query(value=Text(1, 255), since=53),
              **paging_parameters(ApiChange.HYPERVISOR_PAGES.version)}
_row = operation_factory("os-hypervisors", "/os-hypervisors", strict=53)
# The id of search and servers is a part of the host's name.
OPERATIONS = (
    _row("GET", "", "list", hypervisors.list_hypervisors, query=LIST_QUERY,
         handler=_list),
    _row("GET", "/detail", "detail.list", hypervisors.list_hypervisors_detail, query=LIST_QUERY,
         handler=_list_detail),
    _row("GET", "/statistics", "statistics.list", hypervisors.show_hypervisor_statistics, until=87,
         shown=shown_as("hypervisor_statistics")),
    _row("GET", "/{id}", "show", hypervisors.show_hypervisor, given=_by_uuid, shown=_one, query=_WITH),
    _row("GET", "/{id}/search", "search.list", hypervisors.search_hypervisors, until=52,
         shown=lambda call, services: {"hypervisors": _briefly(call, services, servers=False)}),
    _row("GET", "/{id}/servers", "servers.list", hypervisors.search_hypervisor_servers, until=52,
         shown=lambda call, services: {"hypervisors": _briefly(call, services, servers=True)}),
    _row("GET", "/{id}/uptime", "uptime.list", hypervisors.show_uptime, until=87, given=_by_uuid, shown=_uptime,
         waits=True),
)
