# SPDX-License-Identifier: GPL-3.0-or-later
"""servers: list, show, update, delete. They are made in ``server_create``, acted on in ``server_actions``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.cloud import Cloud
from magnetar_control.compute.target import Target, find, notify, of_server, tell_stopped, visible
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.engine.tables import server_group_members, server_groups
from magnetar_control.store.engine.tables import servers as table
from magnetar_control.store.servers import server_list, servers
from magnetar_control.store.servers.server_list import ServerListRequest
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest

from . import soft_delete

READ = "os_compute_api:servers:"
INDEX, DETAIL, SHOW, ALL_FILTERS = f"{READ}index", f"{READ}detail", f"{READ}show", f"{READ}allow_all_filters"
#: Who reads on which host a server is, and what it is called there.
EXTENDED = "os_compute_api:os-extended-server-attributes"
#: Columns of short lists.
BRIEF = (table.c.id, table.c.name)
#: More servers than one project has.
EVERY = 10000


def _page(caller: Caller, query: ServerListRequest, columns: Sequence[Any], rule: str) -> server_list.ServerPage:
    if query.all_projects:
        caller.check_policy(f"{rule}:get_all_tenants")
    if query.since and query.before and query.before < query.since:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    if {word.upper() for word in query.statuses or ()} == {"DELETED"}:
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
    return server_list.page(caller.cloud.store, query, columns, caller.settings.cell_timeout,
                            None if query.marker is None else _sorted_values(caller, query.marker, query.sort))


@use_case(INDEX)
def index(caller: Caller, query: ServerListRequest) -> server_list.ServerPage:
    """The servers of a page, with the columns of ``BRIEF``. Raises ``Forbidden``, ``InvalidRequest``."""
    return _page(caller, query, BRIEF, INDEX)


@use_case(DETAIL)
def detail(caller: Caller, query: ServerListRequest, columns: frozenset[str]) -> server_list.ServerPage:
    """As ``index``, with these *columns*; names of others are left out."""
    return _page(caller, query, _columns(columns), DETAIL)


@lru_cache(maxsize=200)
def _columns(names: frozenset[str]) -> tuple[Any, ...]:
    return tuple(column for column in table.c if column.name in names)


@use_case(INDEX)
def of_project(caller: Caller, *, soft_deleted: bool = False) -> Sequence[servers.Found]:
    """All servers of the caller's project, with all columns; with *soft_deleted* also those."""
    query = ServerListRequest(limit=EVERY, project=caller.project, equal={"project_id": caller.project},
                              soft_deleted=soft_deleted)
    return server_list.page(caller.cloud.store, query, tuple(table.c), caller.settings.cell_timeout).rows


@use_case(f"{DETAIL}:get_all_tenants")
def of_all_projects(caller: Caller, *, soft_deleted: bool = False) -> Sequence[servers.Found]:
    """As ``of_project``, of all projects of the cloud. Raises ``Forbidden``."""
    query = ServerListRequest(limit=100 * EVERY, all_projects=True, soft_deleted=soft_deleted)
    return server_list.page(caller.cloud.store, query, tuple(table.c), caller.settings.cell_timeout).rows


def _sorted_values(caller: Caller, id: str, sort: Sequence[tuple[str, bool]]) -> tuple[Any, ...]:
    """What the server *id* sorts by. It may have been deleted since the page before."""
    found = servers.find(caller.cloud.store, id, deleted=True) if len(id) == 36 else None
    if found is None or not visible(caller, found[1]):
        raise InvalidRequest(f"marker [{id[:80]}] not found")
    return tuple(getattr(found[1], name) for name, _descending in sort)


@of_server(rule=SHOW)
def show(_caller: Caller, target: Target) -> servers.Found:
    """The server's row."""
    return target.row


@of_server(rule="os_compute_api:ips:index")
def addresses(caller: Caller, target: Target) -> str:
    """The server's addresses, a JSON object of network names and lists."""
    return reached(target.row.addresses, floating(caller.cloud, [target.row]).get(target.row.id))


def floating(cloud: Cloud, rows: Iterable[Any]) -> Mapping[str, Mapping[tuple[str, str], str]]:
    """Floating IPs of servers by their uuids, for ``reached``. Of those that have no addresses, such as new ones, the
    network service is not asked."""
    return cloud.services.network.floating([row.id for row in rows if row.addresses != "{}"])


def reached(text: str, floating: Mapping[tuple[str, str], str] | None) -> str:
    """The addresses that a row has, JSON text, each with the floating IP by which it is reached after it, as Nova has
    it. *floating*: (MAC, fixed address) to floating address."""
    if not floating:
        return text
    shown: dict[str, list[dict[str, Any]]] = {}
    for network, found in orjson.loads(text).items():
        shown[network] = []
        for one in found:
            address = floating.get((one["OS-EXT-IPS-MAC:mac_addr"], one["addr"]))
            shown[network] += [one] if address is None else [
                one, {**one, "addr": address, "version": 6 if ":" in address else 4, "OS-EXT-IPS:type": "floating"}]
    return orjson.dumps(shown).decode()


#: As ``addresses``, for who wants those on one network.
addresses_on = of_server(rule="os_compute_api:ips:show")(addresses.function)


def groups_of(caller: Caller, server_id: str) -> list[str]:
    """The uuids of the server groups that a server is in."""
    with caller.cloud.store.api.read() as connection:
        return list(connection.execute(select(server_group_members.c.group_id).join(
            server_groups, server_groups.c.id == server_group_members.c.group_id).where(
            server_group_members.c.server_id == server_id)).scalars())


def _check_pin(caller: Caller, server: servers.Found, zone: str) -> None:
    host = caller.cloud.hosts.get(server.host) if server.host else None
    there = host.zone if host else server.availability_zone
    if zone != there:
        what = (f"must be the zone that the server is in, {there}, or null to let it be moved to any" if there else
                "must be null: the server is in no zone yet")
        raise InvalidField("server.pinned_availability_zone", what, zone)


@of_server("update")
def update(caller: Caller, target: Target, columns: Mapping[str, Any]) -> servers.Found:
    """Set what a server is called and how it is described: name, description, hostname, disk_config, access_ip_v4,
    access_ip_v6, pinned_availability_zone. A running guest is not touched. Returns the row afterwards. Raises
    ``InvalidField`` for a zone in which the server is not: it could be moved nowhere."""
    zone = columns.get("pinned_availability_zone")
    if zone and zone != target.row.pinned_availability_zone:
        _check_pin(caller, target.row, zone)
    if columns:
        with target.database.write() as connection:
            servers.change(connection, target.row.id, **columns)
            renamed = {"old_display_name": target.row.name} if "name" in columns else {}
            notify(caller, target, connection, **renamed)
    return find(caller, target.row.id).row


@of_server("delete")
def delete(caller: Caller, target: Target) -> None:
    """Delete the server: what is being done to it is cancelled, and the conductors remove it. One that is
    ``restorable`` is soft-deleted; one that is so already, once more, and its time begins anew."""
    while soft_delete.restorable(caller, target.row):
        if soft_delete.ask(caller, target):
            return
        target = find(caller, target.row.id)  # it has changed since it was read
    _delete(caller, target)


@of_server("forceDelete")
def force_delete(caller: Caller, target: Target) -> None:
    """Delete the server for good, whatever its state is."""
    _delete(caller, target)


def _delete(caller: Caller, target: Target) -> None:
    server = target.row
    while True:
        with target.database.write() as connection:
            tell_stopped(caller, server.id, connection, stopped_actions.cancel(connection, server.id))
            if servers.ask(connection, server, "delete", caller.request_id, caller.context.user_id, caller.project):
                target.database.ring(connection, servers.ACTIONS_BELL)
                return
        target = find(caller, server.id)  # it has changed since it was read
        server = target.row
