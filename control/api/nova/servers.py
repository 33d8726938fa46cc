# SPDX-License-Identifier: GPL-3.0-or-later
"""servers: list, show, update, delete. They are made in ``server_create``, acted on in ``server_actions``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.server_view import BASIC, SHOWS_GROUPS, View
from magnetar_control.api.nova.values import DESCRIPTION, FQDN, HOSTNAME, METADATA, TRUTH
from magnetar_control.api.values import Address, Anything, ByVersion, Number, Pattern, Time, Wrapped, record, since
from magnetar_control.store import actions, history, listing, servers
from magnetar_control.store.tables import server_group_members, server_groups
from magnetar_control.store.tables import servers as table
from magnetar_control.web import Answer
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choices, Nullable, Text

READ = "os_compute_api:servers:"
#: Gates.
STRICT, REFUSES_STATUS, SHOWS_MORE, FULL_UPDATE, CELL_DOWN = 75, 38, 83, 75, 69

#: Query name to the column, for filters that compare.
COLUMNS = {"image": "image_id", "image_ref": "image_id", "flavor": "flavor_id", "host": "host", "node": "host",
           "vm_state": "vm_state", "user_id": "user_id", "uuid": "id", "reservation_id": "reservation_id",
           "key_name": "key_name", "root_device_name": "root_device_name", "access_ip_v4": "access_ip_v4",
           "access_ip_v6": "access_ip_v6", "auto_disk_config": "disk_config", "launched_at": "launched_at",
           "terminated_at": "terminated_at", "created_at": "created_at", "launch_index": "launch_index",
           "power_state": "power_state", "progress": "progress", "task_state": "task_state"}
#: What no list shows stays where it is: it is half of a row.
SHOWN = tuple(column for column in table.c if column.name not in ("request", "interfaces", "old_flavor", "deleted_at"))
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
    return _listed(call, "/servers", (table.c.id, table.c.name), lambda view, row: view.brief(row))


def list_full(call: Call) -> Answer:
    """GET /servers/detail."""
    return _listed(call, "/servers/detail", SHOWN, lambda view, row: view.full(row))


def _listed(call: Call, path: str, columns: Sequence[Any], show: Callable[[View, Any], Any]) -> Answer:
    wanted = _wanted(call, columns)
    if wanted is None:
        return Answer({"servers": []})
    view = View(call)
    found = listing.page(call.cloud.store, wanted)
    shown = [show(view, row) for row in found.rows]
    if call.version >= CELL_DOWN:
        shown += [_unknown(view, row, path) for row in found.missing]
    answer: dict[str, Any] = {"servers": shown}
    if found.more and shown:
        answer["servers_links"] = next_link(call, path, str(shown[-1]["id"]))
    return Answer(answer)


def _unknown(view: View, row: Any, path: str) -> dict[str, Any]:
    """A server whose cell does not answer (Nova 2.69)."""
    shown = {"id": row.server_id, "status": "UNKNOWN", "links": view.links(row.server_id)}
    if path != "/servers":
        shown.update(tenant_id=row.project_id, created=(row.created_at or "")[:19] + "Z")
    return shown


def _wanted(call: Call, columns: Sequence[Any]) -> listing.Wanted | None:
    """What the query asks for; ``None`` when nothing can fit."""
    query = {name: value[-1] if isinstance(value, list) and name not in ("sort_key", "sort_dir", "status") else value
             for name, value in call.query.items()}
    everywhere = "all_tenants" in query and _truth(query, "all_tenants")
    if everywhere:
        call.check(f"{READ}{'detail' if call.operation.name.endswith('detail.list') else 'index'}:get_all_tenants")
    if not call.cloud.policy.allows(f"{READ}allow_all_filters", call.context):
        query = {name: value for name, value in query.items()
                 if name in OPEN or OPEN_SINCE.get(name, 999) <= call.version}
    sort = _sort(call, query)
    wanted = listing.Wanted(columns, size(call), sort, timeout=call.settings.cell_timeout)
    project = query.get("project_id") or query.get("tenant_id")
    if not everywhere:
        wanted.project = call.project
        wanted.filters.append(listing.plain("project_id", call.project))
    elif project:
        wanted.filters.append(listing.plain("project_id", project))
    if not _filters(call, query, wanted):
        return None
    wanted.columns = (*columns, *(table.c[name] for name, _d in sort if not any(c.name == name for c in columns)))
    if "marker" in query:
        wanted.after = _marker(call, str(query["marker"]), sort)
    return wanted


def _truth(query: Mapping[str, Any], name: str) -> bool:
    text = query[name]
    return bool(TRUTH.check(text, name)) if text not in ("", None) else True


def _filters(call: Call, query: Mapping[str, Any], wanted: listing.Wanted) -> bool:
    """Add the conditions; False when nothing can fit."""
    add = wanted.filters.append
    for name, value in query.items():
        if name in COLUMNS:
            add(listing.plain(COLUMNS[name], None if value in ("None", "null") else NUMBER.check(value, name)
                              if name in NUMBERS else value))
        elif name in REGEXP:
            add(listing.matching(REGEXP[name], PATTERN.check(value, name)))
        elif name in ADDRESSES:
            add(listing.with_address(ADDRESSES[name], PATTERN.check(value, name)))
        elif name in TAG_FILTERS:
            every, negated = TAG_FILTERS[name]
            add(listing.tagged(str(value).split(","), every, negated))
    if "status" in query and not _status(call, query["status"], wanted):
        return False
    if "locked" in query:
        locked = query["locked"]
        add(lambda _kind: table.c.locked_by.is_not(None) if locked else table.c.locked_by.is_(None))
    if "config_drive" in query:
        add(listing.plain("config_drive", TRUTH.check(query["config_drive"], "config_drive")))
    if "metadata" in query:
        add(listing.with_metadata(_metadata(query["metadata"])))
    if "availability_zone" in query:
        add(_in_zone(call, str(query["availability_zone"])))
    span = query.get("changes-since"), query.get("changes-before")
    if all(span) and str(span[1]) < str(span[0]):
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    if any(span):
        add(listing.changed(*span))
    gone = _only_deleted(call, query.get("status", ())) or ("deleted" in query and _truth(query, "deleted"))
    if gone or not any(span):
        add(listing.deleted(gone))
    return True


TAG_FILTERS = {"tags": (True, False), "tags-any": (False, False), "not-tags": (True, True),
               "not-tags-any": (False, True)}


def _status(call: Call, words: Sequence[str], wanted: listing.Wanted) -> bool:
    conditions = [listing.word(word) for word in words]
    if any(condition is None for condition in conditions):
        if call.version >= REFUSES_STATUS:
            raise InvalidRequest(f"Invalid status: {', '.join(words)[:80]}")
        conditions = [condition for condition in conditions if condition]
        if not conditions:
            return False
    from sqlalchemy import or_

    wanted.filters.append(lambda kind: or_(*(condition(kind) for condition in conditions if condition)))
    return True


def _only_deleted(call: Call, words: Sequence[str]) -> bool:
    """Whether deleted servers are asked for by their status. Raises ``Forbidden`` when the caller may not."""
    if {word.upper() for word in words} != {"DELETED"}:
        return False
    if not call.context.is_admin:
        raise Forbidden("Only administrators may list deleted instances")
    return True


def _metadata(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidField("metadata", "must be a JSON object of keys and values", text)
    return dict(METADATA.check({key: str(value) for key, value in found.items()}, "metadata"))


def _in_zone(call: Call, zone: str) -> Callable[[str], Any]:
    from sqlalchemy import and_, or_

    names = [host.name for host in call.cloud.hosts.all().values() if host.zone == zone]
    return lambda _kind: or_(table.c.host.in_(names), and_(table.c.host.is_(None), table.c.availability_zone == zone))


def _sort(call: Call, query: Mapping[str, Any]) -> list[tuple[str, bool]]:
    keys = [str(key) for key in query.get("sort_key") or ()]
    directions = [str(word) for word in query.get("sort_dir") or ()]
    found: list[tuple[str, bool]] = []
    for at, key in enumerate(keys):
        if at < len(directions) and directions[at] not in ("asc", "desc"):
            raise InvalidField("sort_dir", "must be asc or desc", directions[at])
        if key in SORTS and not (key == "locked" and call.version < 73):
            found.append((SORTS[key], (directions[at] if at < len(directions) else "desc") == "desc"))
        elif key not in OLD_SORTS or call.version >= STRICT:
            raise InvalidField("sort_key", f"must be one of {', '.join(sorted(SORTS))}", key)
    names = [name for name, _descending in found]
    return found + [(name, True) for name in ("created_at", "id") if name not in names]


def _marker(call: Call, id: str, sort: Sequence[tuple[str, bool]]) -> tuple[Any, ...]:
    """Where a page begins: what the server *id* sorts by. It may have been deleted since the page before."""
    found = history.server(call.cloud.store, id, deleted=True) if len(id) == 36 else None
    if found is None or (found[1].project_id != call.project and not call.context.is_admin):
        raise InvalidRequest(f"marker [{id[:80]}] not found")
    return tuple(getattr(found[1], name) for name, _descending in sort)


# One server -----------------------------------------------------------------------------------------------------
def shown(call: Call, row: Any, everything: bool = True) -> dict[str, Any]:
    """``{"server": …}`` of a row; not *everything*: without extended attributes, as PUT had it before 2.75."""
    view = View(call, groups=True)
    if call.version >= SHOWS_GROUPS and '"group"' in row.hints:  # no other server is in one
        view.groups = _groups(call, row.id)
    found = view.full(row)
    if not everything:
        found = {name: value for name, value in found.items() if name in BASIC}
        found["addresses"] = {label: [{"version": one["version"], "addr": one["addr"]} for one in given]
                              for label, given in orjson.loads(row.addresses).items()}
    return {"server": found}


def _groups(call: Call, id: str) -> dict[str, list[str]]:
    with call.cloud.store.api.read() as connection:
        rows = connection.execute(select(server_group_members.c.group_id).join(
            server_groups, server_groups.c.id == server_group_members.c.group_id).where(
            server_group_members.c.server_id == id)).scalars().all()
    return {id: list(rows)}


def show(call: Call) -> dict[str, Any]:
    """GET /servers/{id}."""
    return shown(call, call.server)


def away(call: Call, mapping: Any) -> dict[str, Any]:
    """GET /servers/{id} while its cell does not answer: what the API database knows of it (Nova 2.69)."""
    return {"server": {**_unknown(View(call), mapping, "/servers/detail"), "OS-EXT-STS:power_state": 0}}


UPDATE_BODY = Wrapped("server", record({
    "name": NAME, "OS-DCF:diskConfig": Choices("AUTO", "MANUAL"), "accessIPv4": Address(4, empty=True),
    "accessIPv6": Address(6, empty=True), "description": since("2.19", DESCRIPTION),
    "hostname": since("2.90", ByVersion(("2.90", "2.93", HOSTNAME), ("2.94", None, FQDN))),
    "pinned_availability_zone": since("2.104", Nullable(Text(1, 255)))}))
CHANGED = {"name": "name", "OS-DCF:diskConfig": "disk_config", "accessIPv4": "access_ip_v4", "hostname": "hostname",
           "accessIPv6": "access_ip_v6", "description": "description",
           "pinned_availability_zone": "pinned_availability_zone"}


def update(call: Call) -> dict[str, Any]:
    """PUT /servers/{id}: what a server is called. A running guest is not touched."""
    values = {CHANGED[name]: value for name, value in call.body.items()}
    if values:
        with call.database.write() as connection:
            servers.change(connection, call.server.id, **values)
    found = servers.find(call.cloud.store, call.server.id)
    if found is None:
        raise NotFound(f"Instance {call.server.id} could not be found.")
    return shown(call, found[1], everything=call.version >= FULL_UPDATE)


def delete(call: Call) -> Answer:
    """DELETE /servers/{id}; also forceDelete."""
    server = call.server
    with call.database.write() as connection:
        actions.cancel(connection, server.id)
        done = servers.ask(connection, server, "delete", call.request.id, call.context.user_id, call.project)
        if done:
            call.database.ring(connection, servers.ACTIONS_BELL)
    if not done:
        again = servers.find(call.cloud.store, server.id)
        if again is None:
            raise NotFound(f"Instance {server.id} could not be found.")
        call.database, call.server = again
        return delete(call)
    return Answer(None, 204)


OPERATIONS = (
    Operation(method="GET", path="/servers", handler=list_brief, name="servers.list", rule=f"{READ}index",
              query=LIST_QUERY, strict=STRICT, quick=True),
    Operation(method="GET", path="/servers/detail", handler=list_full, name="servers.detail.list", rule=f"{READ}detail",
              query=LIST_QUERY, strict=STRICT, quick=True),
    Operation(method="GET", path="/servers/{server_id}", handler=show, name="servers.show", rule=f"{READ}show",
              target="server", strict=102, quick=True, away=(69, away)),
    Operation(method="PUT", path="/servers/{server_id}", handler=update, name="servers.update", rule=f"{READ}update",
              target="server", act="update", body=UPDATE_BODY),
    Operation(method="DELETE", path="/servers/{server_id}", handler=delete, name="servers.delete", rule=f"{READ}delete",
              target="server", act="delete", status=204),
)
