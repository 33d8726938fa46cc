# SPDX-License-Identifier: GPL-3.0-or-later
"""os-hypervisors: the compute hosts, what they have, and (with_servers) what is on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.api.nova import hypervisor_view as view
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Anything, Id
from magnetar_control.compute import uptimes
from magnetar_control.store import services
from magnetar_control.store.services import COMPUTE, Service
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError, NotFound, NotSupported
from magnetar_core.values import Text

RULE = "os_compute_api:os-hypervisors:"
PATH = "/os-hypervisors"
#: Gates.
PAGED, BY_UUID, PLAIN, STRICT = 33, 53, 88, 53


def _every(call: Call) -> list[Service]:
    found = services.every(call.cloud.store, call.settings.default_availability_zone, call.settings.host_down_after)
    return [one for one in found if one.binary == COMPUTE]


def _servers(call: Call, found: Sequence[Service], *, wanted: bool) -> Mapping[str, Any] | None:
    return services.on_hosts(call.cloud.store, [one.host for one in found]) if wanted else None


def _workloads(call: Call, found: Sequence[Service]) -> Mapping[str, tuple[int, int]]:
    return services.workloads(call.cloud.store, [one.host for one in found]) if call.version < PLAIN else {}


def _uptimes(call: Call, found: Sequence[Service]) -> Mapping[str, str]:
    return uptimes.of_hosts(call.cloud.agents, found) if call.version >= PLAIN else {}


def _listed(call: Call, path: str, show: Callable[[Sequence[Service], Mapping[str, Any] | None], list[Any]]) -> \
        dict[str, Any]:
    found, query = _every(call), call.query
    pattern, limit = query.get("hypervisor_hostname_pattern"), None
    if pattern is not None:
        if "limit" in query or "marker" in query:
            raise InvalidRequest("Paging over hypervisors with the hypervisor_hostname_pattern query parameter is not "
                                 "supported.")
        found = _matching(found, pattern)
    elif call.version >= PAGED:
        limit = size(call)
        found = _after(call, found, query.get("marker"))[:limit]
    servers = _servers(call, found, wanted=query.get("with_servers", False))
    answer: dict[str, Any] = {"hypervisors": show(found, servers)}
    if limit is not None and len(found) >= limit > 0:
        last = found[-1]
        answer["hypervisors_links"] = next_link(call, path, last.id if call.version >= BY_UUID else str(last.number))
    return answer


def _matching(found: Sequence[Service], pattern: str) -> list[Service]:
    fitting = [one for one in found if pattern.lower() in one.host.lower()]
    if not fitting:
        raise NotFound(f"No hypervisor matching '{pattern[:255]}' could be found.")
    return fitting


def _after(call: Call, found: list[Service], marker: str | None) -> list[Service]:
    if marker is None:
        return found
    wanted = Id().check(marker, "marker") if call.version >= BY_UUID else marker
    for at, one in enumerate(found):
        if wanted == (one.id if call.version >= BY_UUID else str(one.number)):
            return found[at + 1:]
    raise InvalidRequest(f"marker [{marker[:80]}] not found")


def list_brief(call: Call) -> dict[str, Any]:
    """GET /os-hypervisors."""
    return _listed(call, PATH, lambda found, servers: [view.brief(one, call.version, servers) for one in found])


def list_full(call: Call) -> dict[str, Any]:
    """GET /os-hypervisors/detail."""
    def show(found: Sequence[Service], servers: Mapping[str, Any] | None) -> list[Any]:
        loads, told = _workloads(call, found), _uptimes(call, found)
        return [view.full(one, call.version, servers, loads.get(one.host, (0, 0)), told.get(one.host)) for one in found]

    return _listed(call, PATH + "/detail", show)


def _found(call: Call) -> Service:
    """The host of the path. Raises ``InvalidRequest`` for what is no uuid since 2.53, 404 when there is none."""
    id = call.params["id"]
    if call.version >= BY_UUID:
        try:
            id = Id().check(id, "id")
        except InvalidField:
            raise InvalidRequest(f"Invalid uuid {id[:80]}") from None
    for one in _every(call):
        if id == (one.id if call.version >= BY_UUID else str(one.number)):
            return one
    raise NotFound(f"Hypervisor with ID '{id[:80]}' could not be found.")


def show(call: Call) -> dict[str, Any]:
    """GET /os-hypervisors/{id}."""
    one = _found(call)
    servers = _servers(call, [one], wanted=call.query.get("with_servers", False))
    load = _workloads(call, [one]).get(one.host, (0, 0))
    return {"hypervisor": view.full(one, call.version, servers, load, _uptimes(call, [one]).get(one.host))}


def uptime(call: Call) -> dict[str, Any]:
    """GET …/uptime, until 2.87."""
    one = _found(call)
    away = InvalidRequest(f"Compute service of {one.host} is unavailable at this time.")
    if not one.up or one.row is None:
        raise away
    try:
        told = uptimes.ask(call.cloud.agents, one.row["endpoint"])
    except NotFound:
        raise NotSupported(f"The agent of host {one.host} is too old to tell for how long the host is up. "
                           "Update it.") from None
    except MagnetarError:
        raise away from None
    return {"hypervisor": {**view.brief(one, call.version), "uptime": told}}


def statistics(call: Call) -> dict[str, Any]:
    """GET …/statistics, until 2.87: sums over the hosts that are not disabled."""
    found = [one for one in _every(call) if not one.disabled]
    loads = _workloads(call, found)
    total = {"count": len(found), **dict.fromkeys(view.SUMMED, 0)}
    for one in found:
        if one.row is not None:
            sizes = view.sizes(one.row, orjson.loads(one.row["info"]), loads.get(one.host, (0, 0)))
            for name in view.SUMMED:
                total[name] += sizes[name] or 0
    return {"hypervisor_statistics": total}


def search(call: Call) -> dict[str, Any]:
    """GET …/{id}/search, until 2.52; the id is a part of the host's name."""
    return {"hypervisors": [view.brief(one, call.version) for one in _matching(_every(call), call.params["id"])]}


def servers_of(call: Call) -> dict[str, Any]:
    """GET …/{id}/servers, until 2.52; the id is a part of the host's name."""
    found = _matching(_every(call), call.params["id"])
    on = _servers(call, found, wanted=True)
    return {"hypervisors": [view.brief(one, call.version, on) for one in found]}


def _row(path: str, handler: Callable[[Call], Any], name: str, rule: str, **more: Any) -> Operation:
    return Operation(method="GET", path=PATH + path, handler=handler, name=f"os-hypervisors.{name}", rule=RULE + rule,
                     **{"strict": STRICT, **more})


_WITH = {"with_servers": Query(value=TRUTH, since=BY_UUID)}
LIST_QUERY = {
    **_WITH, "hypervisor_hostname_pattern": Query(value=Text(1, 255), since=BY_UUID),
    "limit": Query(value=PAGE["limit"].value, since=PAGED), "marker": Query(value=Anything(), since=PAGED)}
OPERATIONS = (
    _row("", list_brief, "list", "list", query=LIST_QUERY),
    _row("/detail", list_full, "detail.list", "list-detail", query=LIST_QUERY),
    _row("/statistics", statistics, "statistics.list", "statistics", until=PLAIN - 1),
    _row("/{id}", show, "show", "show", query=_WITH),
    _row("/{id}/search", search, "search.list", "search", until=BY_UUID - 1),
    _row("/{id}/servers", servers_of, "servers.list", "servers", until=BY_UUID - 1),
    _row("/{id}/uptime", uptime, "uptime.list", "uptime", until=PLAIN - 1),
)
