# SPDX-License-Identifier: GPL-3.0-or-later
"""servers: list, show, update, delete. ``server_create`` creates them, ``server_actions`` has their actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import Cloud
from magnetar_control.compute.target import (
    ServerTarget,
    find_server_target,
    is_visible_to,
    notify_server,
    notify_stopped_actions,
    server_use_case,
)
from magnetar_control.documents import AddressesOfServer
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.engine.tables import server_group_members, server_groups
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.servers import server_list, servers
from magnetar_control.store.servers.server_list_request import ServerListRequest
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest

from . import soft_delete

READ = "os_compute_api:servers:"
INDEX, DETAIL, SHOW, ALL_FILTERS = f"{READ}index", f"{READ}detail", f"{READ}show", f"{READ}allow_all_filters"
#: The rule for reading a server's host, and the name of the server on that host.
EXTENDED = "os_compute_api:os-extended-server-attributes"
#: Columns of short lists.
BRIEF = (table.c.id, table.c.name)
#: A limit above the number of servers of one project.
EVERY = 10000


def _list_page(caller: Caller, query: ServerListRequest, columns: Sequence[Any], rule: str) -> server_list.ServerPage:
    if query.all_projects:
        caller.check_policy(f"{rule}:get_all_tenants")
    if query.since and query.before and query.before < query.since:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    if {status.upper() for status in query.statuses or ()} == {"DELETED"}:
        if not caller.is_admin:
            raise Forbidden("Only administrators may list deleted instances")
        query.deleted = True
    if not caller.is_admin and any(column == "host" for column, _down in query.sort):
        raise Forbidden("Only administrators can sort servers by host")
    if query.statuses is not None and not query.statuses:
        return server_list.ServerPage((), more=False)
    if not query.all_projects:
        query.project = caller.project
    if query.zone is not None:
        query.zone_hosts = [host.name for host in caller.cloud.hosts.all().values() if host.zone == query.zone]
    shown = {column.name for column in columns}
    columns = (*columns, *(table.c[name] for name, _down in query.sort if name not in shown))
    return server_list.fetch_server_page(caller.cloud.store, query, columns, caller.settings.cell_timeout,
                                         None if query.marker is None
                                         else _sorted_values(caller, query.marker, query.sort))


@use_case(INDEX)
def list_servers(caller: Caller, query: ServerListRequest) -> server_list.ServerPage:
    """Return the page of servers that *query* selects, each with its id and name only. Raises ``Forbidden``,
    ``InvalidRequest``."""
    return _list_page(caller, query, BRIEF, INDEX)


@use_case(DETAIL)
def list_servers_detail(caller: Caller, query: ServerListRequest, columns: frozenset[str]) -> server_list.ServerPage:
    """Return the page of servers that *query* selects, with the given *columns* of their rows. Unknown column names are
    ignored."""
    return _list_page(caller, query, _columns(columns), DETAIL)


@lru_cache(maxsize=200)
def _columns(names: frozenset[str]) -> tuple[Any, ...]:
    return tuple(column for column in table.c if column.name in names)


@use_case(INDEX)
def list_project_servers(caller: Caller, *, soft_deleted: bool = False) -> list[ServerRow]:
    """Return all servers of the caller's project, with all columns. *soft_deleted*: include soft-deleted ones."""
    query = ServerListRequest(limit=EVERY, project=caller.project, equal={"project_id": caller.project},
                              soft_deleted=soft_deleted)
    return _whole_rows(caller, query)


def _whole_rows(caller: Caller, query: ServerListRequest) -> list[ServerRow]:
    return ServerRow.several(server_list.fetch_server_page(caller.cloud.store, query, tuple(table.c),
                                                           caller.settings.cell_timeout).rows)


@use_case(f"{DETAIL}:get_all_tenants")
def list_all_servers(caller: Caller, *, soft_deleted: bool = False) -> list[ServerRow]:
    """Return the servers of all projects of the cloud, with all columns. *soft_deleted*: include soft-deleted ones.
    Raises ``Forbidden``."""
    return _whole_rows(caller, ServerListRequest(limit=100 * EVERY, all_projects=True, soft_deleted=soft_deleted))


def _sorted_values(caller: Caller, id: str, sort: Sequence[tuple[str, bool]]) -> tuple[Any, ...]:
    """Return the marker's values of the columns by which a list is sorted. *id*: the marker, the uuid of the last
    server of the previous page; this server may have been deleted since then. *sort*: (column, descending) for each
    sort column. Raises ``InvalidRequest`` when there is no server with this uuid."""
    located_server = servers.find_server_row(caller.cloud.store, id, deleted=True) if len(id) == 36 else None
    if located_server is None or not is_visible_to(caller, located_server[1]):
        raise InvalidRequest(f"marker [{id[:80]}] not found")
    return tuple(getattr(located_server[1], name) for name, _descending in sort)


@server_use_case(rule=SHOW)
def show_server(_caller: Caller, target: ServerTarget) -> ServerRow:
    """Return the server's row."""
    return target.row


@server_use_case(rule="os_compute_api:ips:index")
def show_server_addresses(caller: Caller, target: ServerTarget) -> str:
    """Return the server's addresses as JSON text: an object that maps each network name to a list of addresses."""
    row = target.row.stored
    return addresses_with_floating_ips(row.addresses, server_floating_ips(caller.cloud, [row]).get(row.id))


def server_floating_ips(cloud: Cloud, rows: Iterable[Any]) -> Mapping[str, Mapping[tuple[str, str], str]]:
    """Return the floating IPs of servers, by server uuid, then by (MAC, fixed IP), for ``addresses_with_floating_ips``.
    *rows*: the servers' rows. Servers without addresses, such as new ones, are not queried."""
    return cloud.services.network.floating([row.id for row in rows if row.addresses != "{}"])


def addresses_with_floating_ips(text: str, floating: Mapping[tuple[str, str], str] | None) -> str:
    """Return *text*, a server's addresses as JSON, with floating IPs added (``add_floating_ips``). *floating*: the
    server's floating IPs by (MAC, fixed IP), or ``None``. The JSON is decoded only if the server has floating IPs."""
    return orjson.dumps(add_floating_ips(orjson.loads(text), floating)).decode() if floating else text


def add_floating_ips(fixed: AddressesOfServer, floating: Mapping[tuple[str, str], str] | None) -> AddressesOfServer:
    """Return the fixed IPs *fixed* of a server, each followed by its floating IP, as in Nova. *floating*: maps (MAC,
    fixed IP) to the floating IP."""
    if not floating:
        return fixed
    shown: dict[str, list[Mapping[str, Any]]] = {}
    for network, addresses in fixed.items():
        shown[network] = []
        for fixed_address in addresses:
            address = floating.get((fixed_address["OS-EXT-IPS-MAC:mac_addr"], fixed_address["addr"]))
            shown[network] += [fixed_address] if address is None else [
                fixed_address, {**fixed_address, "addr": address, "version": 6 if ":" in address else 4,
                                "OS-EXT-IPS:type": "floating"}]
    return shown


#: As ``show_server_addresses``, for requests about one network.
show_network_addresses = server_use_case(rule="os_compute_api:ips:show")(show_server_addresses.function)


def server_group_ids(caller: Caller, server_id: str) -> list[str]:
    """Return the uuids of the server groups that a server is in."""
    with caller.cloud.store.api.read() as connection:
        return list(connection.execute(select(server_group_members.c.group_id).join(
            server_groups, server_groups.c.id == server_group_members.c.group_id).where(
            server_group_members.c.server_id == server_id)).scalars())


def _check_pinned_zone(caller: Caller, server: ServerRow, zone: str) -> None:
    host = caller.cloud.hosts.get(server.host) if server.host else None
    current_zone = host.zone if host else server.availability_zone
    if zone != current_zone:
        rule = (f"must be the zone that the server is in, {current_zone}, or null to let it be moved to any"
                if current_zone else
                "must be null: the server is in no zone yet")
        raise InvalidField("server.pinned_availability_zone", rule, zone)


@server_use_case("update")
def update_server(caller: Caller, target: ServerTarget, columns: Mapping[str, Any]) -> ServerRow:
    """Set *columns* of a server's row, and return the updated row. Possible columns: name, description, hostname,
    disk_config, access_ip_v4, access_ip_v6, pinned_availability_zone. A running guest is not changed. Raises
    ``InvalidField`` for a pinned_availability_zone other than the server's current zone, because a server pinned to
    another zone could not be moved."""
    zone = columns.get("pinned_availability_zone")
    if zone and zone != target.row.pinned_availability_zone:
        _check_pinned_zone(caller, target.row, zone)
    if columns:
        with target.database.write() as connection:
            servers.update_server_row(connection, target.row.id, **columns)
            renamed = {"old_display_name": target.row.name} if "name" in columns else {}
            notify_server(caller, target, connection, **renamed)
    return find_server_target(caller, target.row.id).row


@server_use_case("delete")
def delete_server(caller: Caller, target: ServerTarget) -> None:
    """Delete the server: cancel its actions, and queue its removal by the conductors. If ``is_restorable`` returns
    true, the server is only soft-deleted. Deleting a soft-deleted server again restarts the time after which it is
    removed."""
    while soft_delete.is_restorable(caller, target.row):
        if soft_delete.soft_delete_server(caller, target):
            return
        target = find_server_target(caller, target.row.id)  # it has changed since it was read
    queue_deletion(caller, target)


@server_use_case("forceDelete")
def force_delete_server(caller: Caller, target: ServerTarget) -> None:
    """Delete the server immediately and without soft deletion, in any state."""
    queue_deletion(caller, target)


def queue_deletion(caller: Caller, target: ServerTarget, **args: Any) -> None:
    """Cancel the actions of the server, and queue the action ``delete``, so that conductors remove the server. *args*:
    the arguments of the action ``delete``."""
    server = target.row
    while True:
        with target.database.write() as connection:
            notify_stopped_actions(caller, server.id, connection,
                                   stopped_actions.cancel_server_actions(connection, server.id))
            if servers.request_server_action(connection, server, "delete", caller.request_id, caller.context.user_id,
                                             caller.project, args):
                target.database.notify(connection, servers.ACTIONS_CHANGED)
                return
        target = find_server_target(caller, server.id)  # it has changed since it was read
        server = target.row
