# SPDX-License-Identifier: GPL-3.0-or-later
"""/servers: list, show, update, delete. They are made in ``server_create``, acted on in ``server_actions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Query, noun
from magnetar_control.api.nova.paging import next_link, pages, size
from magnetar_control.api.nova.values import TRUTH
from magnetar_control.api.values import Anything, Wrapped
from magnetar_control.compute.servers import servers
from magnetar_control.compute.servers.server_topology import topology
from magnetar_control.store.servers.server_list import ServerListRequest, ServerPage
from magnetar_core.errors import InvalidField, InvalidRequest, NotFound
from magnetar_core.power import states_of
from magnetar_core.query import check_sort

from .server_fields import FIELDS
from .server_view import ServerView, addresses

#: Sort keys that Nova takes before 2.75 and that order nothing; and those that it takes always, of which all servers
#: here have one value.
OLD_SORTS = frozenset((
    "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device", "deleted", "deleted_at",
    "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "id", "key_data", "launched_on", "locked", "memory_mb",
    "os_type", "reservation_id", "root_gb", "shutdown_terminate", "user_data", "vcpus", "vm_mode"))
ALIKE = frozenset(("kernel_id", "ramdisk_id"))
_WORD = Query(value=Anything())
#: Parameters that Nova refuses from those who may filter by everything; from others it takes no notice of them.
REFUSED = ("block_device_mapping", "services", "metadata", "system_metadata", "info_cache", "security_groups",
           "pci_devices")
#: Parameters that are no fields of a server: those that everybody may use; those of administrators; those that Nova
#: refuses.
OPEN: Mapping[str, Query] = {"all_tenants": _WORD, **pages(), **dict.fromkeys(
    ("status", "sort_key", "sort_dir"), Query(value=Anything(), many=True))}
LIST_QUERY: Mapping[str, Query] = {
    **FIELDS.query(), **OPEN, **dict.fromkeys(("deleted", "soft_deleted", "project_id", "tenant_id"), _WORD),
    **dict.fromkeys(REFUSED, _WORD)}


def _listed(call: Call, found: ServerPage, answer: str) -> dict[str, Any]:
    view, detail = ServerView(call, FIELDS, answer), answer == "detail"
    shown = view.documents(found.rows)
    if call.at(Gate.DOWN_CELLS):
        shown += [_unknown(view, row, detail=detail) for row in found.missing]
    document: dict[str, Any] = {"servers": shown}
    if found.more and shown:
        document["servers_links"] = next_link(call, "/servers/detail" if detail else "/servers", str(shown[-1]["id"]))
    return document


def _unknown(view: ServerView, row: Any, *, detail: bool = True) -> dict[str, Any]:
    """A server whose cell does not answer (Nova 2.69)."""
    shown = {"id": row.server_id, "status": "UNKNOWN", "links": view.links("servers", row.server_id)}
    if detail:
        shown.update(tenant_id=row.project_id, created=(row.created_at or "")[:19] + "Z")
    return shown


def _query(call: Call) -> dict[str, ServerListRequest]:
    """What the query asks for. Raises ``InvalidField``, ``InvalidRequest``."""
    given = call.query
    everywhere = "all_tenants" in given and _truth(given, "all_tenants")
    if not call.allows(servers.ALL_FILTERS):
        given = {name: value for name, value in given.items() if name in OPEN or (
            name in FIELDS.filters and FIELDS.filters[name][1].everyone <= call.version)}
    for name in REFUSED:
        if name in given:
            raise InvalidRequest(f"Invalid filter field: {name}.")
    query = ServerListRequest(
        limit=size(call), sort=_sort(call, given), marker=str(given["marker"]) if "marker" in given else None,
        all_projects=everywhere, project=given.get("project_id") or given.get("tenant_id"),
        deleted="deleted" in given and _truth(given, "deleted"),
        soft_deleted=_truth(given, "soft_deleted") if "soft_deleted" in given else None)
    for name, value in given.items():
        if name in FIELDS.filters:
            FIELDS.add_filter(query, name, value)
    if "status" in given:
        query.statuses = _statuses(call, given["status"])
    return {"query": query}


def _detail(call: Call) -> dict[str, Any]:
    """As ``_query``, with the columns that the answer shows to the caller: to fetch a row is half of a list's time."""
    return {**_query(call), "columns": FIELDS.shape(call, "detail").columns}


def _truth(query: Mapping[str, Any], name: str) -> bool:
    text = query[name]
    return bool(TRUTH.check(text, name)) if text not in ("", None) else True


def _statuses(call: Call, words: Sequence[str]) -> list[str]:
    """The words that are a server's status. Since 2.38 others are refused; before, nothing fits them."""
    words = [*dict.fromkeys(words)]
    known = [word for word in words if states_of(word.upper())]
    if len(known) < len(words) and call.at(Gate.STATUS_CHECKED):
        raise InvalidRequest(f"Invalid status: {', '.join(words)[:80]}")
    return known


def _sort(call: Call, query: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The columns in order, and whether each is sorted downwards. A direction is that of the key at its place, and
    falls with it where that orders nothing; the first one is that of all keys without one."""
    directions = [str(word).strip() for word in query.get("sort_dir") or ("desc",)]
    for word in directions:
        if word not in ("asc", "desc"):
            raise InvalidField("sort_dir", "must be asc or desc", word)
    keys = [_sorted_by(call, str(key)) for key in query.get("sort_key") or ("created_at",)]
    if len(directions) > len(keys):
        raise InvalidField("sort_dir", f"must not be given more often than sort_key: there are {len(directions)} "
                                       f"directions for {len(keys)}")
    names = [column for column in keys if column is not None]
    check_sort("sort_key", names)
    down = [word == "desc" for column, word in zip(keys, directions, strict=False) if column is not None]
    usual = down[0] if down else True
    names += [name for name in ("created_at", "id") if name not in names]
    return list(zip(names, [*down, *[usual] * (len(names) - len(down))], strict=True))


def _sorted_by(call: Call, key: str) -> str | None:
    """The column of a sort key; ``None`` for one that orders nothing. Raises ``InvalidField``."""
    field = FIELDS.sorts.get(key)
    if field is not None and field.at(call.version):
        return field.column
    if key in ALIKE or (key in OLD_SORTS and not call.at(Gate.OLD_SORT_KEYS)):
        return None
    known = sorted({*ALIKE, *(name for name, one in FIELDS.sorts.items() if one.at(call.version))})
    raise InvalidField("sort_key", f"must be one of {', '.join(known)}", key)


# One server -----------------------------------------------------------------------------------------------------
def changed(call: Call, row: Any, also: str = "") -> dict[str, Any]:
    """``{"server": …}`` of a row that was changed: all that show does since 2.75, before without extended attributes;
    with the fields of the answer *also*."""
    return {"server": ServerView(call, FIELDS, f"{'show' if call.at(Gate.FULL_UPDATE) else 'basic'} {also}"
                                 ).document(row)}


def away(call: Call, mapping: Any) -> dict[str, Any]:
    """GET /servers/{id} while its cell does not answer: what the API database knows of it (Nova 2.69)."""
    return {"server": {**_unknown(ServerView(call, FIELDS), mapping), "OS-EXT-STS:power_state": 0}}


def show_network(call: Call) -> dict[str, Any]:
    """GET /servers/{id}/ips/{id}; the last id is the network's name."""
    found, name = addresses(servers.addresses_on(call, call.target)), call.params["id"]
    if name not in found:
        raise NotFound("Instance is not a member of specified network")
    return {name: found[name]}


_row = noun("servers", "/servers")
_one = noun("servers", "/servers/{server_id}", target="server")
OPERATIONS = (
    _row("GET", "", "list", servers.index, given=_query, query=LIST_QUERY, strict=75, quick=True,
         shown=lambda call, found: _listed(call, found, "list")),
    _row("GET", "/detail", "detail.list", servers.detail, given=_detail, query=LIST_QUERY, strict=75, quick=True,
         shown=lambda call, found: _listed(call, found, "detail")),
    _one("GET", "", "show", servers.show, strict=102, quick=True, away=(69, away),
         columns=lambda call: FIELDS.shape(call, "show").columns,
         shown=lambda call, row: {"server": ServerView(call, FIELDS).document(row)}),
    _one("PUT", "", "update", servers.update, body=Wrapped("server", FIELDS.body("update")), shown=changed,
         given=lambda call: {"columns": FIELDS.arguments(call.body, "update")}),
    _one("DELETE", "", "delete", servers.delete, status=204),
    _one("GET", "/topology", "topology.list", topology, since=78, strict=102, waits=True,
         shown=lambda _call, found: found),
    _one("GET", "/ips", "ips.list", servers.addresses, strict=102,
         shown=lambda _call, text: {"addresses": addresses(text)}),
    _one("GET", "/ips/{id}", "ips.show", servers.addresses_on, handler=show_network, strict=102),
)
