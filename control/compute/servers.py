# SPDX-License-Identifier: GPL-3.0-or-later
"""servers: list, show, update, delete. They are made in ``server_create``, acted on in ``server_actions``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import and_, or_, select

from magnetar_control.store import actions, instance_actions, server_list, servers
from magnetar_control.store.tables import server_group_members, server_groups
from magnetar_control.store.tables import servers as table
from magnetar_core.errors import Forbidden, InvalidRequest

from .caller import Caller, use_case
from .target import Target, find, of_server, visible

READ = "os_compute_api:servers:"
INDEX, DETAIL, SHOW, ALL_FILTERS = f"{READ}index", f"{READ}detail", f"{READ}show", f"{READ}allow_all_filters"
#: Columns of short lists, and of full ones: what no list shows stays where it is, since it is half of a row.
BRIEF = (table.c.id, table.c.name)
FULL = tuple(column for column in table.c if column.name not in ("request", "interfaces", "old_flavor", "deleted_at"))
NEWEST_FIRST = (("created_at", True), ("id", True))
#: More servers than one project has.
EVERY = 10000
Condition = Callable[[str], Any]


@dataclass(kw_only=True)
class ServerListRequest:
    """A page of servers. *limit*: how many. *sort*: (column, descending). *marker*: the uuid of the last server of the
    page before. *project*: whose servers; only who may list *all_projects* may ask for those of others. Filters:
    *equal*: column to value; *matching*: (column, regular expression); *addresses*: IP version to a regular
    expression; *tags*: (tags, whether all of them, whether none of that); *statuses*: Nova's words, of which one fits,
    or none at all when it is empty; *since* and *before*: when the server last changed."""

    limit: int
    sort: Sequence[tuple[str, bool]] = NEWEST_FIRST
    marker: str | None = None
    all_projects: bool = False
    project: str | None = None
    equal: dict[str, Any] = field(default_factory=dict)
    matching: list[tuple[str, str]] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    tags: list[tuple[Sequence[str], bool, bool]] = field(default_factory=list)
    statuses: Sequence[str] | None = None
    locked: bool | None = None
    metadata: Mapping[str, Any] | None = None
    zone: str | None = None
    since: str | None = None
    before: str | None = None
    deleted: bool = False


@use_case(INDEX)
def index(caller: Caller, query: ServerListRequest) -> server_list.Page:
    """The servers of a page, with the columns of ``BRIEF``. Raises ``Forbidden``, ``InvalidRequest``."""
    return _page(caller, query, BRIEF, INDEX)


@use_case(DETAIL)
def detail(caller: Caller, query: ServerListRequest) -> server_list.Page:
    """As ``index``, with the columns of ``FULL``."""
    return _page(caller, query, FULL, DETAIL)


def _page(caller: Caller, query: ServerListRequest, columns: Sequence[Any], rule: str) -> server_list.Page:
    if query.all_projects:
        caller.check(f"{rule}:get_all_tenants")
    if query.since and query.before and query.before < query.since:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    if {word.upper() for word in query.statuses or ()} == {"DELETED"}:
        if not caller.context.is_admin:
            raise Forbidden("Only administrators may list deleted instances")
        query.deleted = True
    if query.statuses is not None and not query.statuses:
        return server_list.Page((), more=False)
    shown = {column.name for column in columns}
    wanted = server_list.ServerQuery((*columns, *(table.c[name] for name, _down in query.sort if name not in shown)),
                            query.limit, query.sort, _conditions(caller, query),
                            timeout=caller.settings.cell_timeout)
    if not query.all_projects:
        wanted.project = caller.project
    if query.marker is not None:
        wanted.after = _sorted_values(caller, query.marker, query.sort)
    return server_list.page(caller.cloud.store, wanted)


@use_case(INDEX)
def of_project(caller: Caller) -> Sequence[servers.Found]:
    """All servers of the caller's project, with all columns."""
    return server_list.page(caller.cloud.store, server_list.ServerQuery(
        tuple(table.c), EVERY, NEWEST_FIRST,
        [server_list.plain("project_id", caller.project), server_list.deleted(False)], project=caller.project,
        timeout=caller.settings.cell_timeout)).rows


def _conditions(caller: Caller, query: ServerListRequest) -> list[Condition]:
    found: list[Condition] = []
    project = query.project if query.all_projects else caller.project
    if project:
        found.append(server_list.plain("project_id", project))
    found += [server_list.plain(column, value) for column, value in query.equal.items()]
    found += [server_list.matching(column, pattern) for column, pattern in query.matching]
    found += [server_list.with_address(version, pattern) for version, pattern in query.addresses.items()]
    found += [server_list.tagged(tags, every, negated) for tags, every, negated in query.tags]
    if query.statuses:
        found.append(_any_of([condition for word in query.statuses if (condition := server_list.word(word))]))
    if query.locked is not None:
        found.append(_locked if query.locked else _unlocked)
    if query.metadata is not None:
        found.append(server_list.with_metadata(dict(query.metadata)))
    if query.zone is not None:
        found.append(_in_zone(caller, query.zone))
    changed = bool(query.since or query.before)
    if changed:
        found.append(server_list.changed(query.since, query.before))
    if query.deleted or not changed:
        found.append(server_list.deleted(query.deleted))
    return found


def _any_of(conditions: Sequence[Condition]) -> Condition:
    return lambda kind: or_(*(condition(kind) for condition in conditions))


def _locked(_kind: str) -> Any:
    return table.c.locked_by.is_not(None)


def _unlocked(_kind: str) -> Any:
    return table.c.locked_by.is_(None)


def _in_zone(caller: Caller, zone: str) -> Condition:
    """On a host of the zone; without a host, those that asked for the zone."""
    names = [host.name for host in caller.cloud.hosts.all().values() if host.zone == zone]
    return lambda _kind: or_(table.c.host.in_(names), and_(table.c.host.is_(None), table.c.availability_zone == zone))


def _sorted_values(caller: Caller, id: str, sort: Sequence[tuple[str, bool]]) -> tuple[Any, ...]:
    """What the server *id* sorts by. It may have been deleted since the page before."""
    found = instance_actions.server(caller.cloud.store, id, deleted=True) if len(id) == 36 else None
    if found is None or not visible(caller, found[1]):
        raise InvalidRequest(f"marker [{id[:80]}] not found")
    return tuple(getattr(found[1], name) for name, _descending in sort)


@of_server(rule=SHOW)
def show(_caller: Caller, target: Target) -> servers.Found:
    """The server's row."""
    return target.row


@of_server(rule="os_compute_api:ips:index")
def addresses(_caller: Caller, target: Target) -> str:
    """The server's addresses, a JSON object of network names and lists."""
    return str(target.row.addresses)


@of_server(rule="os_compute_api:ips:show")
def addresses_on(_caller: Caller, target: Target) -> str:
    """As ``addresses``, for who wants those on one network."""
    return str(target.row.addresses)


def groups_of(caller: Caller, server_id: str) -> list[str]:
    """The uuids of the server groups that a server is in."""
    with caller.cloud.store.api.read() as connection:
        return list(connection.execute(select(server_group_members.c.group_id).join(
            server_groups, server_groups.c.id == server_group_members.c.group_id).where(
            server_group_members.c.server_id == server_id)).scalars())


@of_server("update")
def update(caller: Caller, target: Target, columns: Mapping[str, Any]) -> servers.Found:
    """Set what a server is called and how it is described: name, description, hostname, disk_config, access_ip_v4,
    access_ip_v6, pinned_availability_zone. A running guest is not touched. Returns the row afterwards."""
    if columns:
        with target.database.write() as connection:
            servers.change(connection, target.row.id, **columns)
    return find(caller, target.row.id).row


@of_server("delete")
def delete(caller: Caller, target: Target) -> None:
    """Delete the server: what is being done to it is cancelled, and the conductors remove it."""
    _delete(caller, target)


@of_server("forceDelete")
def force_delete(caller: Caller, target: Target) -> None:
    """As ``delete``: there is no deleting in two steps here that could be cut short."""
    _delete(caller, target)


def _delete(caller: Caller, target: Target) -> None:
    server = target.row
    while True:
        with target.database.write() as connection:
            actions.cancel(connection, server.id)
            if servers.ask(connection, server, "delete", caller.request_id, caller.context.user_id, caller.project):
                target.database.ring(connection, servers.ACTIONS_BELL)
                return
        target = find(caller, server.id)  # it has changed since it was read
        server = target.row
