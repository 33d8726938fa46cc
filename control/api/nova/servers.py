# SPDX-License-Identifier: GPL-3.0-or-later
"""/servers: list, show, update, delete. They are made in ``server_create``, acted on in ``server_actions``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar_control.api.nova import addresses
from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.server_view import BASIC, View
from magnetar_control.api.nova.values import DESCRIPTION, FQDN, HOSTNAME, METADATA, TRUTH, record, since
from magnetar_control.api.values import Address, Anything, ByVersion, Number, Pattern, Time, Wrapped
from magnetar_control.compute import servers
from magnetar_control.compute.servers import ServerListRequest
from magnetar_control.store.server_list import Page
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.kinds.common import NAME
from magnetar_core.power import states_of
from magnetar_core.values import Choices, Nullable, Text

#: Query name to the column, for filters that compare.
COLUMNS = {"image": "image_id", "image_ref": "image_id", "flavor": "flavor_id", "host": "host", "node": "host",
           "vm_state": "vm_state", "user_id": "user_id", "uuid": "id", "reservation_id": "reservation_id",
           "key_name": "key_name", "root_device_name": "root_device_name", "access_ip_v4": "access_ip_v4",
           "access_ip_v6": "access_ip_v6", "auto_disk_config": "disk_config", "launched_at": "launched_at",
           "terminated_at": "terminated_at", "created_at": "created_at", "launch_index": "launch_index",
           "power_state": "power_state", "progress": "progress", "task_state": "task_state"}
REGEXP = {"name": "name", "display_name": "name", "hostname": "hostname", "description": "description",
          "display_description": "description"}
ADDRESSES = {"ip": 4, "ip6": 6}
PATTERN = Pattern()
NUMBERS, NUMBER = frozenset(("launch_index", "power_state", "progress")), Number(-2**31)
#: Filters that everybody may use; the rest is for admins.
OPEN = {"reservation_id", "name", "status", "image", "flavor", "ip", "changes-since", "changes-before", "all_tenants",
        "limit", "marker", "sort_key", "sort_dir", "locked", "tags", "tags-any", "not-tags", "not-tags-any"}
OPEN_SINCE = {"ip6": 5, "hostname": 90, **dict.fromkeys(
    ("availability_zone", "config_drive", "key_name", "created_at", "launched_at", "terminated_at", "power_state",
     "task_state", "vm_state", "progress", "user_id"), 83)}
SORTS = {"display_name": "name", "uuid": "id", "image_ref": "image_id", "instance_type_id": "flavor_id",
         "locked_by": "locked_by", "locked": "locked_by", "node": "host", **{name: name for name in (
             "access_ip_v4", "access_ip_v6", "availability_zone", "config_drive", "created_at", "host", "hostname",
             "key_name", "launch_index", "launched_at", "power_state", "progress", "project_id", "root_device_name",
             "task_state", "terminated_at", "updated_at", "user_id", "vm_state")},
         "display_description": "description", "auto_disk_config": "disk_config"}
#: Sort keys that Nova takes before 2.75 and that order nothing here.
OLD_SORTS = frozenset((
    "architecture", "cell_name", "cleaned", "default_ephemeral_device", "default_swap_device", "deleted", "deleted_at",
    "disable_terminate", "ephemeral_gb", "ephemeral_key_uuid", "id", "internal_id", "kernel_id", "launched_on",
    "memory_mb", "os_type", "ramdisk_id", "reservation_id", "root_gb", "shutdown_terminate", "user_data", "vcpus",
    "vm_mode", "info_cache", "metadata", "pci_devices", "security_groups", "services", "system_metadata"))
_WORD = Query(value=Anything(), many=True)
LIST_QUERY: Mapping[str, Query] = {
    **dict.fromkeys((*COLUMNS, *REGEXP, *ADDRESSES, "status", "all_tenants", "availability_zone", "config_drive",
                     "deleted", "soft_deleted", "metadata", "project_id", "tenant_id", "sort_key", "sort_dir",
                     "kernel_id", "ramdisk_id", "block_device_mapping", "services", "info_cache", "pci_devices",
                     "security_groups", "system_metadata", "locked_by"), _WORD),
    "changes-since": Query(value=Time()), "changes-before": Query(value=Time(), since=66),
    "locked": Query(value=TRUTH, since=73),
    **dict.fromkeys(("tags", "tags-any", "not-tags", "not-tags-any"), Query(value=Anything(), since=26)), **PAGE}


def list_brief(call: Call) -> Answer:
    """GET /servers."""
    return _listed(call, servers.index(call, _query(call)), View.brief, detail=False)


def list_full(call: Call) -> Answer:
    """GET /servers/detail."""
    return _listed(call, servers.detail(call, _query(call)), View.full, detail=True)


def _listed(call: Call, found: Page, show: Callable[[View, Any], Any], *, detail: bool) -> Answer:
    view = View(call)
    shown = [show(view, row) for row in found.rows]
    if call.at(Gate.DOWN_CELLS):
        shown += [_unknown(view, row, detail=detail) for row in found.missing]
    answer: dict[str, Any] = {"servers": shown}
    if found.more and shown:
        answer["servers_links"] = next_link(call, "/servers/detail" if detail else "/servers", str(shown[-1]["id"]))
    return Answer(answer)


def _unknown(view: View, row: Any, *, detail: bool = True) -> dict[str, Any]:
    """A server whose cell does not answer (Nova 2.69)."""
    shown = {"id": row.server_id, "status": "UNKNOWN", "links": view.links(row.server_id)}
    if detail:
        shown.update(tenant_id=row.project_id, created=(row.created_at or "")[:19] + "Z")
    return shown


def _query(call: Call) -> ServerListRequest:
    """What the query asks for. Raises ``InvalidField``, ``InvalidRequest``."""
    given = {name: value[-1] if isinstance(value, list) and name not in ("sort_key", "sort_dir", "status") else value
             for name, value in call.query.items()}
    everywhere = "all_tenants" in given and _truth(given, "all_tenants")
    if not call.allows(servers.ALL_FILTERS):
        given = {name: value for name, value in given.items()
                 if name in OPEN or OPEN_SINCE.get(name, 999) <= call.version}
    query = ServerListRequest(
        limit=size(call), sort=_sort(call, given), marker=str(given["marker"]) if "marker" in given else None,
        all_projects=everywhere, project=given.get("project_id") or given.get("tenant_id"),
        locked=given.get("locked"), since=given.get("changes-since"), before=given.get("changes-before"),
        zone=str(given["availability_zone"]) if "availability_zone" in given else None,
        deleted="deleted" in given and _truth(given, "deleted"))
    for name, value in given.items():
        _add_filter(query, name, value)
    if "status" in given:
        query.statuses = _statuses(call, given["status"])
    return query


def _truth(query: Mapping[str, Any], name: str) -> bool:
    text = query[name]
    return bool(TRUTH.check(text, name)) if text not in ("", None) else True


def _add_filter(query: ServerListRequest, name: str, value: Any) -> None:
    """One parameter that filters."""
    if name in COLUMNS:
        query.equal[COLUMNS[name]] = None if value in ("None", "null") else (
            NUMBER.check(value, name) if name in NUMBERS else value)
    elif name in REGEXP:
        query.matching.append((REGEXP[name], PATTERN.check(value, name)))
    elif name in ADDRESSES:
        query.addresses[ADDRESSES[name]] = PATTERN.check(value, name)
    elif name in TAG_FILTERS:
        query.tags.append((str(value).split(","), *TAG_FILTERS[name]))
    elif name == "config_drive":
        query.equal["config_drive"] = TRUTH.check(value, name)
    elif name == "metadata":
        query.metadata = _metadata(value)


TAG_FILTERS = {"tags": (True, False), "tags-any": (False, False), "not-tags": (True, True),
               "not-tags-any": (False, True)}


def _statuses(call: Call, words: Sequence[str]) -> list[str]:
    """The words that are a server's status. Since 2.38 others are refused; before, nothing fits them."""
    known = [word for word in words if states_of(word.upper())]
    if len(known) < len(words) and call.at(Gate.STATUS_CHECKED):
        raise InvalidRequest(f"Invalid status: {', '.join(words)[:80]}")
    return known


def _metadata(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidField("metadata", "must be a JSON object of keys and values", text)
    return dict(METADATA.check({key: str(value) for key, value in found.items()}, "metadata"))


def _sort(call: Call, query: Mapping[str, Any]) -> list[tuple[str, bool]]:
    keys = [str(key) for key in query.get("sort_key") or ()]
    directions = [str(word) for word in query.get("sort_dir") or ()]
    found: list[tuple[str, bool]] = []
    for at, key in enumerate(keys):
        if at < len(directions) and directions[at] not in ("asc", "desc"):
            raise InvalidField("sort_dir", "must be asc or desc", directions[at])
        if key in SORTS and not (key == "locked" and not call.at(Gate.LOCK_REASONS)):
            found.append((SORTS[key], (directions[at] if at < len(directions) else "desc") == "desc"))
        elif key not in OLD_SORTS or call.at(Gate.OLD_SORT_KEYS):
            raise InvalidField("sort_key", f"must be one of {', '.join(sorted(SORTS))}", key)
    names = [name for name, _descending in found]
    return found + [(name, True) for name in ("created_at", "id") if name not in names]


# One server -----------------------------------------------------------------------------------------------------
def shown(call: Call, row: Any, everything: bool = True) -> dict[str, Any]:
    """``{"server": …}`` of a row; not *everything*: without extended attributes, as PUT had it before 2.75."""
    view = View(call, groups=True)
    if call.at(Gate.SERVER_GROUPS_SHOWN) and '"group"' in row.hints:  # no other server is in one
        view.groups = {row.id: servers.groups_of(call, row.id)}
    found = view.full(row)
    if not everything:
        found = {name: value for name, value in found.items() if name in BASIC}
        found["addresses"] = addresses.view(row.addresses)
    return {"server": found}


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{id}."""
    return shown(call, servers.show(call, call.target))


def away(call: Call, mapping: Any) -> dict[str, Any]:
    """GET /servers/{id} while its cell does not answer: what the API database knows of it (Nova 2.69)."""
    return {"server": {**_unknown(View(call), mapping), "OS-EXT-STS:power_state": 0}}


UPDATE_BODY = Wrapped("server", record({
    "name": NAME, "OS-DCF:diskConfig": Choices("AUTO", "MANUAL"), "accessIPv4": Address(4, empty=True),
    "accessIPv6": Address(6, empty=True), "description": since("2.19", DESCRIPTION),
    "hostname": since("2.90", ByVersion(("2.90", "2.93", HOSTNAME), ("2.94", None, FQDN))),
    "pinned_availability_zone": since("2.104", Nullable(Text(1, 255)))}))
CHANGED = {"name": "name", "OS-DCF:diskConfig": "disk_config", "accessIPv4": "access_ip_v4", "hostname": "hostname",
           "accessIPv6": "access_ip_v6", "description": "description",
           "pinned_availability_zone": "pinned_availability_zone"}


def update(call: Call) -> dict[str, Any]:
    """PUT /servers/{id}: what a server is called."""
    row = servers.update(call, call.target, {CHANGED[name]: value for name, value in call.body.items()})
    return shown(call, row, everything=call.at(Gate.FULL_UPDATE))


def delete(call: Call) -> Answer:
    """DELETE /servers/{id}."""
    servers.delete(call, call.target)
    return Answer(None, 204)


OPERATIONS = (
    Operation(method="GET", path="/servers", handler=list_brief, name="servers.list", use=servers.index,
              query=LIST_QUERY, strict=75, quick=True),
    Operation(method="GET", path="/servers/detail", handler=list_full, name="servers.detail.list", use=servers.detail,
              query=LIST_QUERY, strict=75, quick=True),
    Operation(method="GET", path="/servers/{server_id}", handler=show, name="servers.show", use=servers.show,
              target="server", strict=102, quick=True, away=(69, away)),
    Operation(method="PUT", path="/servers/{server_id}", handler=update, name="servers.update", use=servers.update,
              target="server", body=UPDATE_BODY),
    Operation(method="DELETE", path="/servers/{server_id}", handler=delete, name="servers.delete", use=servers.delete,
              target="server", status=204),
)
