# SPDX-License-Identifier: GPL-3.0-or-later
"""/servers: list, show, update and delete servers. ``server_create`` has their creation, ``server_actions`` their
actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import Call, Query, operation_factory
from magnetar_control.api.nova.paging import next_link, page_size, paging_parameters
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Anything, Wrapped
from magnetar_control.compute.servers import servers
from magnetar_control.compute.servers.server_topology import show_server_topology
from magnetar_control.store.servers.server_list import ServerPage
from magnetar_control.store.servers.server_list_request import ServerListRequest
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.power import states_of_status
from magnetar_core.query import check_sort

from .server_fields import FIELDS
from .server_view import ServerView, render_addresses

#: Sort keys that Nova accepts before 2.75 and that have no effect; and those that it always accepts, which have one
#: value for all servers here.
OLD_SORTS = frozenset((
    "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device", "deleted", "deleted_at",
    "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "id", "key_data", "launched_on", "locked", "memory_mb",
    "os_type", "reservation_id", "root_gb", "shutdown_terminate", "user_data", "vcpus", "vm_mode"))
ALIKE = frozenset(("kernel_id", "ramdisk_id"))
_WORD = Query(value=Anything())
#: Parameters that Nova refuses from callers who may use all filters, and ignores from other callers.
REFUSED = ("block_device_mapping", "services", "metadata", "system_metadata", "info_cache", "security_groups",
           "pci_devices")
#: Parameters that are not fields of a server: for all callers; for administrators; and those that Nova refuses.
OPEN: Mapping[str, Query] = {"all_tenants": _WORD, **paging_parameters(), **dict.fromkeys(
    ("status", "sort_key", "sort_dir"), Query(value=Anything(), many=True))}
LIST_QUERY: Mapping[str, Query] = {
    **FIELDS.query(), **OPEN, **dict.fromkeys(("deleted", "soft_deleted", "project_id", "tenant_id"), _WORD),
    **dict.fromkeys(REFUSED, _WORD)}


def _listed(call: Call, page: ServerPage, answer: str) -> dict[str, Any]:
    view, detail = ServerView(call, FIELDS, answer), answer == "detail"
    shown = view.documents(page.rows)
    if call.at(ApiChange.DOWN_CELLS):
        shown += [_unknown(view, row, detail=detail) for row in page.missing]
    document: dict[str, Any] = {"servers": shown}
    if page.more and shown:
        document["servers_links"] = next_link(call, "/servers/detail" if detail else "/servers", str(shown[-1]["id"]))
    return document


def _unknown(view: ServerView, row: Any, *, detail: bool = True) -> dict[str, Any]:
    """Return the few fields of the answer for a server whose cell does not respond, with the status UNKNOWN (Nova
    2.69). *row*: the server's mapping in the API database. *detail*: include project and creation time, as in the
    detailed list."""
    shown = {"id": row.server_id, "status": "UNKNOWN", "links": view.links("servers", row.server_id)}
    if detail:
        shown.update(tenant_id=row.project_id, created=(row.created_at or "")[:19] + "Z")
    return shown


def _query(call: Call) -> dict[str, ServerListRequest]:
    """Return ``{"query": list_request}``, the keyword argument of the function that lists the servers. The
    ``ServerListRequest`` contains the filters, sort order, limit and marker in the query string of the URL. Raises
    ``InvalidField`` or ``InvalidRequest``."""
    parameters = call.query
    everywhere = "all_tenants" in parameters and _truth(parameters, "all_tenants")
    if not call.allows(servers.ALL_FILTERS):
        parameters = {name: value for name, value in parameters.items() if name in OPEN or (
            name in FIELDS.filters and FIELDS.filters[name][1].everyone <= call.version)}
    for name in REFUSED:
        if name in parameters:
            raise InvalidRequest(f"Invalid filter field: {name}.")
    query = ServerListRequest(
        limit=page_size(call), sort=_sort(call, parameters), marker=str(parameters["marker"]) if "marker" in parameters
        else None,
        all_projects=everywhere, project=parameters.get("project_id") or parameters.get("tenant_id"),
        deleted="deleted" in parameters and _truth(parameters, "deleted"),
        soft_deleted=_truth(parameters, "soft_deleted") if "soft_deleted" in parameters else None)
    for name, value in parameters.items():
        if name in FIELDS.filters:
            FIELDS.add_filter(query, name, value)
    if "status" in parameters:
        query.statuses = _statuses(call, parameters["status"])
    return {"query": query}


def _detail(call: Call) -> dict[str, Any]:
    """Return the keyword arguments of ``list_servers_detail``, the function that fetches the servers for the request
    *call*: ``query``, as ``_query`` returns it, and ``columns``, the columns that the caller sees in the answer.
    Fetching only these makes the list faster."""
    return {**_query(call), "columns": FIELDS.shape(call, "detail").columns}


def _truth(query: Mapping[str, Any], name: str) -> bool:
    text = query[name]
    return bool(TRUTH.check(text, name)) if text not in ("", None) else True


def _statuses(call: Call, words: Sequence[str]) -> list[str]:
    """Return those *words* that are statuses of servers. Before 2.38, other words are left out, because they would
    match no server; since 2.38, they raise ``InvalidRequest``."""
    words = [*dict.fromkeys(words)]
    statuses = [status for status in words if states_of_status(status.upper())]
    if len(statuses) < len(words) and call.at(ApiChange.STATUS_CHECKED):
        raise InvalidRequest(f"Invalid status: {', '.join(words)[:80]}")
    return statuses


def _sort(call: Call, query: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return the sort order of the list as (column, descending) pairs. The n-th sort_dir belongs to the n-th sort_key.
    A sort_key that Nova accepts but that has no effect here is omitted, together with its direction. Keys without a
    direction, and the columns created_at and id, which are always added, have the direction of the first key."""
    directions = [str(direction).strip() for direction in query.get("sort_dir") or ("desc",)]
    for direction in directions:
        if direction not in ("asc", "desc"):
            raise InvalidField("sort_dir", "must be asc or desc", direction)
    keys = [_sorted_by(call, str(key)) for key in query.get("sort_key") or ("created_at",)]
    if len(directions) > len(keys):
        raise InvalidField("sort_dir", f"must not be given more often than sort_key: there are {len(directions)} "
                                       f"directions for {len(keys)}")
    names = [column for column in keys if column is not None]
    check_sort("sort_key", names)
    down = [direction == "desc" for column, direction in zip(keys, directions, strict=False) if column is not None]
    usual = down[0] if down else True
    names += [name for name in ("created_at", "id") if name not in names]
    return list(zip(names, [*down, *[usual] * (len(names) - len(down))], strict=True))


def _sorted_by(call: Call, key: str) -> str | None:
    """Return the column for the sort key *key*; ``None`` for a key that Nova accepts and that has no effect here.
    Raises ``InvalidField`` for an unknown key."""
    field = FIELDS.sorts.get(key)
    if field is not None and field.at(call.version):
        return field.column
    if key in ALIKE or (key in OLD_SORTS and not call.at(ApiChange.OLD_SORT_KEYS)):
        return None
    sort_keys = sorted({*ALIKE, *(name for name, sort_field in FIELDS.sorts.items() if sort_field.at(call.version))})
    raise InvalidField("sort_key", f"must be one of {', '.join(sort_keys)}", key)


# One server -----------------------------------------------------------------------------------------------------
def render_changed_server(call: Call, row: Any, also: str = "") -> dict[str, Any]:
    """Return ``{"server": …}``, the answer to a request that has changed the server *row*. Since 2.75 the answer has
    the fields of GET /servers/{id}, in earlier versions only some of them. *also*: a further answer type whose fields
    are included, such as ``rebuild``."""
    return {"server": ServerView(call, FIELDS, f"{'show' if call.at(ApiChange.FULL_UPDATE) else 'basic'} {also}"
                                 ).document(row)}


def render_unreachable_server(call: Call, mapping: Any) -> dict[str, Any]:
    """Return the answer to GET /servers/{id} while the server's cell does not respond (Nova 2.69). *mapping*: the
    server's mapping in the API database."""
    return {"server": {**_unknown(ServerView(call, FIELDS), mapping), "OS-EXT-STS:power_state": 0}}


def handle_show_server_network(call: Call) -> dict[str, Any]:
    """Return the server's addresses on one network: GET /servers/{id}/ips/{label}. The label is the name of the
    network."""
    networks, name = render_addresses(servers.show_network_addresses(call, call.target)), call.params["id"]
    if name not in networks:
        raise NotFound("Instance is not a member of specified network")
    return {name: networks[name]}


_row = operation_factory("servers", "/servers")
_one = operation_factory("servers", "/servers/{server_id}", target="server")
OPERATIONS = (
    _row("GET", "", "list", servers.list_servers, given=_query, query=LIST_QUERY, strict=75, quick=True,
         shown=lambda call, page: _listed(call, page, "list")),
    _row("GET", "/detail", "detail.list", servers.list_servers_detail, given=_detail, query=LIST_QUERY, strict=75,
         quick=True, shown=lambda call, page: _listed(call, page, "detail")),
    _one("GET", "", "show", servers.show_server, strict=102, quick=True, away=(69, render_unreachable_server),
         columns=lambda call: FIELDS.shape(call, "show").columns,
         shown=lambda call, row: {"server": ServerView(call, FIELDS).document(row)}),
    _one("PUT", "", "update", servers.update_server, body=Wrapped("server", FIELDS.body("update")),
         shown=render_changed_server, given=lambda call: {"columns": FIELDS.arguments(call.body, "update")}),
    _one("DELETE", "", "delete", servers.delete_server, status=204),
    _one("GET", "/topology", "topology.list", show_server_topology, since=78, strict=102, waits=True,
         shown=lambda _call, topology_document: topology_document),
    _one("GET", "/ips", "ips.list", servers.show_server_addresses, strict=102,
         shown=lambda _call, text: {"addresses": render_addresses(text)}),
    _one("GET", "/ips/{id}", "ips.show", servers.show_network_addresses, handler=handle_show_server_network,
         strict=102),
)
