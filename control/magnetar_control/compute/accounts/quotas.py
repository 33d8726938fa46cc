# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas: limits of projects, of users in projects and of quota classes, and their usage, which the cells keep. A
request over quota is ``Forbidden``."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.accounts import keypairs, quota_usage, quotas
from magnetar_control.store.accounts.quota_usage import UsageRow
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.servers import cell_moves, server_groups
from magnetar_control.store.store import CELL0
from magnetar_core.errors import Forbidden, InvalidRequest
from magnetar_core.values import Text

RULE = "os_compute_api:os-quota-sets:"
CLASS_RULE = "os_compute_api:os-quota-class-sets:"
LIMITS = "os_compute_api:limits"

#: Resources with a limit. The setting quota_… has the default of each.
RESOURCES = ("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members")
#: Resources of the network service, which old versions show; they have no limit here.
NETWORK = {"fixed_ips": -1, "floating_ips": -1, "security_groups": -1, "security_group_rules": -1}
INJECTED = {"injected_files": 5, "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255}
MESSAGE = "Quota exceeded for {names}: Requested {asked}, but already used {used} of {limits} {names}"
#: Resources that servers use.
COUNTED = quota_usage.COUNTED
Limits = quotas.Limits


def _defaults(caller: Caller) -> Limits:
    settings = caller.settings
    return {**{name: getattr(settings, f"quota_{name}") for name in RESOURCES}, **NETWORK, **INJECTED}


def _merged_limits(caller: Caller, *holders: str) -> Limits:
    """Return the limit of each resource. *holders*: names of projects, users or quota classes; the first of them that
    has a stored limit for the resource determines the limit. If none has one, the default limit from the settings
    applies."""
    return caller.fetch(quotas.fetch_effective_limits, _defaults(caller), *holders)


def quota_limits(caller: Caller, project: str | None = None, user: str | None = None) -> Limits:
    """Return the limits of *project* (default: the caller's), by resource. Each limit comes from the first of these
    sources that has one: with *user*, the limits of this user in the project; the limits of the project; the defaults
    that administrators have set; the settings."""
    project = project or caller.project
    users = [quotas.user_quota_holder(project, user)] if user else []
    return _merged_limits(caller, *users, project, quotas.DEFAULT)


def server_quota_usage(caller: Caller, project: str | None = None, user: str | None = None,
                       connection: Connection | None = None) -> Limits:
    """Return the usage of instances, cores and ram by the servers of *project* (default: the caller's), or of *user* in
    this project.

    Servers in a cell that does not answer are not counted. Soft-deleted servers are counted only after their
    restoration has begun, as in Nova. Without *connection*, a server that moves between cells during the count is
    counted once. With *connection* (a transaction of cell0), cell0 is queried in this transaction before the other
    cells. A server that then moves from cell0 to another cell may be counted twice, but is never missed.
    """
    total = dict.fromkeys(COUNTED, 0)
    project = project or caller.project

    def counted(database: Database) -> Sequence[UsageRow]:
        with database.read() as reading:
            return quota_usage.fetch_quota_usage(reading, project, user or None)

    rows = [] if connection is None else quota_usage.fetch_quota_usage(connection, project, user or None)
    cells = [(cell, database) for cell, database in caller.cloud.store.databases() if not rows or cell.id != CELL0]
    of_cells = quota_usage.fetch_quota_usage_of_cells(cells, project, user or None, caller.settings.cell_timeout)
    for row in (*rows, *_count_once(caller, of_cells, counted)):
        for name in total:
            total[name] += getattr(row, name)
    return total


def _count_once(caller: Caller, of_cells: Mapping[str, Sequence[UsageRow] | None],
                counted: Callable[[Database], Sequence[UsageRow]]) -> list[UsageRow]:
    """Return the usage rows of all cells without duplicates. A server that moves to another cell during the count is
    counted only in its new cell. *of_cells*: the rows by cell id; ``None`` for a cell that did not answer. *counted*: a
    function that reads the rows of one cell; it is called again for each cell to which a server has moved."""
    rows_by_cell = {id: list(rows or ()) for id, rows in of_cells.items()}
    leaving = [row for rows in rows_by_cell.values() for row in rows if row.id]
    arrived = cell_moves.servers_in_target_cell(caller.cloud.store, leaving) if leaving else set()
    for _id, cell in arrived:
        rows_by_cell[cell] = list(counted(caller.cloud.store.cell(cell)))
    return [row for rows in rows_by_cell.values() for row in rows if (row.id, row.leaving) not in arrived]


Bounds = Sequence[tuple[Limits, str | None]]
#: Limits that are set, by holder and resource.
Given = Mapping[str, Limits]


def configured_limits(caller: Caller, owner: Owner = Owner()) -> Given:  # noqa: B008
    """Return the limits that administrators have stored: for the project of *owner*, for the user of *owner* in that
    project, and as defaults. The result has the limits by holder (one of these three), then by resource. Uses one
    query."""
    project, user = owner.project_id or caller.project, owner.user_id or caller.context.user_id
    return caller.fetch(quotas.fetch_quota_limits, (quotas.DEFAULT, project, quotas.user_quota_holder(project, user)))


def binding_limits(caller: Caller, owner: Owner = Owner(), configured: Given | None = None) -> Bounds:  # noqa: B008
    """Return the limits on the number and size of the servers of *owner*, as pairs (limits, user id).

    The first pair has the project's limits, and ``None`` as user id. If limits are stored for the user in the project,
    a second pair has the project's limits, overridden by the user's limits, and the user's id. A pair is left out if
    all of its limits are infinite, because no servers need to be counted for it. *configured*: the result of
    ``configured_limits``, if the caller has already read it.
    """
    binding: list[tuple[Limits, str | None]] = []
    project, user = owner.project_id or caller.project, owner.user_id or caller.context.user_id
    configured = configured_limits(caller, owner) if configured is None else configured
    whole = quotas.merge_quota_limits(_defaults(caller), configured, project, quotas.DEFAULT)
    if any(whole[name] >= 0 for name in COUNTED):
        binding.append((whole, None))
    user_limits = configured.get(quotas.user_quota_holder(project, user))
    if user_limits and any({**whole, **user_limits}[name] >= 0 for name in COUNTED):
        binding.append(({**whole, **user_limits}, user))
    return binding


def check_server_quota(caller: Caller, flavor: FlavorOfServer, least: int, most: int, among: Bounds | None = None,
                       connection: Connection | None = None, owner: Owner = Owner()) -> int:  # noqa: B008
    """Return how many servers of *flavor*, at least *least* and at most *most*, the quota allows. Raises ``Forbidden``
    when fewer than *least* fit.

    With *connection* (a transaction of cell0), the result stays valid until the transaction ends, because concurrent
    creations in the same project wait for its end. *among*: the result of ``binding_limits``, if the caller has already
    read it. *owner*: the owner of the servers; the caller by default.
    """
    among = binding_limits(caller, owner) if among is None else among
    if connection is not None and among:
        quotas.lock_quota(connection, owner.project_id or caller.project)
    each = {"instances": 1, "cores": flavor["vcpus"], "ram": flavor["ram"]}
    for limit, user in among:
        have = server_quota_usage(caller, owner.project_id, user, connection)
        limited = [name for name in each if limit[name] >= 0 and each[name]]
        most = min([most, *((limit[name] - have[name]) // each[name] for name in limited)])
        if most < least:
            over = [name for name in limited if have[name] + least * each[name] > limit[name]]
            raise Forbidden(MESSAGE.format(
                names=", ".join(over), asked=", ".join(str(least * each[name]) for name in over),
                used=", ".join(str(have[name]) for name in over), limits=", ".join(str(limit[name]) for name in over)))
    return most


def check_port_quota(caller: Caller, each: int, least: int, most: int, configured: Given | None = None) -> int:
    """Return the number of servers (at most *most*) for which the quota of ports has room. Each server needs *each* new
    ports. Raises ``Forbidden`` when the quota has room for fewer than *least* servers. *configured*: the result of
    ``configured_limits``, if the caller has already read it."""
    room = caller.cloud.services.network.room(caller.context, "port", configured) if each else None
    if room is None:
        return most
    if room < each * least:
        raise Forbidden(f"Maximum number of ports exceeded: {each * least} more are needed, and the quota has room "
                        f"for {max(room, 0)}. Delete ports that are not needed, or ask an administrator for more.")
    return min(most, room // each)


def check_flavor_quota(caller: Caller, owner: Owner, old: FlavorOfServer, new: FlavorOfServer) -> None:
    """Check that the quota allows a server of *owner* to be resized from the flavor *old* to *new*. Raises
    ``Forbidden``."""
    for limit, user in binding_limits(caller, owner):
        have = server_quota_usage(caller, owner.project_id, user)
        for name, more in (("cores", new["vcpus"] - old["vcpus"]), ("ram", new["ram"] - old["ram"])):
            if more > 0 and limit[name] >= 0 and have[name] + more > limit[name]:
                raise Forbidden(MESSAGE.format(names=name, asked=more, used=have[name], limits=limit[name]))


def check_metadata_quota(most: int, metadata: Mapping[str, Any] | None) -> None:
    """Raise ``Forbidden`` when a server's *metadata* has more items than the quota *most*."""
    if metadata and 0 <= most < len(metadata):
        raise Forbidden(f"Maximum number of metadata items exceeds {most}")


def check_file_quota(limit: Limits, personality: Sequence[Mapping[str, str]]) -> None:
    """Raise ``Forbidden`` when the injected files *personality* of a server exceed the quota *limit*: the number of
    files, the length of a path, or the size of a file's decoded contents."""
    sizes = {"injected_files": len(personality),
             "injected_file_path_bytes": max((len(file["path"].encode()) for file in personality), default=0),
             "injected_file_content_bytes": max((len(b64decode(file["contents"])) for file in personality), default=0)}
    for name, have in sizes.items():
        if 0 <= limit[name] < have:
            raise Forbidden(f"Quota exceeded for injected files (personality): {name} is {have}, and may be "
                            f"{limit[name]} at most.")


def check_keypair_quota(connection: Connection, user: str, most: int, *, locked: bool = False) -> None:
    """Raise ``Forbidden`` when *user* already has as many key pairs as the quota *most* allows. *locked*: make
    concurrent checks for the user wait until the transaction ends."""
    lock_name = f"key pairs {user}" if locked else None
    if not quotas.has_room(connection, most, lambda: keypairs.count_keypair_rows(connection, user), lock_name):
        raise Forbidden("Quota exceeded, too many key pairs.")


def check_group_member_quota(caller: Caller, group: str) -> None:
    """Check that the quota allows one more server in the server group *group* (uuid). Raises ``Forbidden``."""
    most = quota_limits(caller, user=caller.context.user_id)["server_group_members"]
    with caller.cloud.store.api.read() as connection:
        have = connection.execute(select(func.count()).where(server_group_members.c.group_id == group)).scalar() or 0
    if 0 <= most <= have:
        raise Forbidden("Quota exceeded, too many servers in group")


def check_group_quota(connection: Connection, project: str, most: int, *, locked: bool = True) -> None:
    """Raise ``Forbidden`` when *project* already has as many server groups as the quota *most* allows. *locked*: make
    concurrent checks for the project wait until the transaction ends."""
    lock_name = f"server groups {project}" if locked else None
    if not quotas.has_room(connection, most, lambda: server_groups.count_server_group_rows(connection, project),
                           lock_name):
        raise Forbidden("Quota exceeded, too many server groups.")


# Use cases of administrators -------------------------------------------------------------------------------------
def show_quotas(caller: Caller, project: str, user: str | None = None) -> Limits:
    """Return the limits of *project*, or of *user* in it, by resource. Raises ``InvalidRequest`` when the project does
    not exist."""
    _check_project(caller, project, "show")
    return quota_limits(caller, project, user)


def _check_project(caller: Caller, project: str, action: str | None) -> None:
    """Check that the policy allows the caller the operation *action* on the quotas of *project* (``None``: no policy
    check), and that the project exists. Raises ``Forbidden``, ``InvalidRequest``."""
    if action is not None:
        caller.check_policy(RULE + action, Owner(project))
    if not caller.cloud.services.identity.project_exists(caller.context, project):
        raise InvalidRequest(f"Project ID {project[:255]} is not a valid project.")


@use_case(LIMITS)
def show_quota_limits(caller: Caller, project: str | None = None) -> tuple[Limits, Limits]:
    """Return two mappings by resource for the caller's project: the limits, and the current usage. *project*: query
    this project instead; only administrators may do this."""
    if project is not None:
        caller.check_policy(f"{LIMITS}:other_project")
    return quota_limits(caller, project), _all_used(caller, project, None)


@use_case(f"{RULE}defaults")
def show_default_quotas(caller: Caller, project: str) -> Limits:
    """Return the default limits by resource, which apply to *project* unless limits are set for this project. Raises
    ``InvalidRequest`` when the project does not exist."""
    _check_project(caller, project, None)
    return _merged_limits(caller, quotas.DEFAULT)


def show_quota_detail(caller: Caller, project: str, user: str | None) -> tuple[Limits, Limits]:
    """Return two mappings by resource for *project*, or for *user* in it: the limits, and the current usage."""
    _check_project(caller, project, "detail")
    return quota_limits(caller, project, user), _all_used(caller, project, user)


def _all_used(caller: Caller, project: str | None, user: str | None) -> Limits:
    return {**server_quota_usage(caller, project, user),
            "server_groups": caller.fetch(server_groups.count_server_group_rows, project or caller.project, user)}


def update_quotas(caller: Caller, project: str, want: Mapping[str, int], user: str | None = None, *,
                  force: bool = False) -> Limits:
    """Set the limits in *want* (by resource; -1: unlimited) for *project*, or for *user* in it, and return all limits
    of the project or of this user. *force*: allow limits below the current usage. Raises ``InvalidRequest``."""
    _check_project(caller, project, "update")
    if not force:
        _check_limits(want, _all_used(caller, project, user), quota_limits(caller, project) if user else {})
    caller.write(quotas.upsert_quota_rows, quotas.user_quota_holder(project, user) if user else project, want)
    return quota_limits(caller, project, user)


def check_quota_update(caller: Caller, project: str, want: Mapping[str, int]) -> None:
    """Check that ``update_quotas`` without *force* would accept the limits *want* for *project*; nothing is changed.
    Raises ``Forbidden``, ``InvalidRequest``."""
    _check_project(caller, project, "update")
    _check_limits(want, _all_used(caller, project, None), {})


def has_own_limits(caller: Caller, project: str, names: Iterable[str]) -> bool:
    """Return whether an administrator has set a limit of any of the resources *names* for *project*. Raises
    ``Forbidden`` when the caller may not remove limits of the project."""
    caller.check_policy(f"{RULE}delete", Owner(project))
    return not caller.fetch(quotas.fetch_quota_limits, [project]).get(project, {}).keys().isdisjoint(names)


def _check_limits(want: Mapping[str, int], used: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise ``InvalidRequest`` when a new limit in *want* is below the current usage *used*, or when a user's new limit
    is above the project's limit in *most*. All three map resource names to numbers."""
    for name, limit in want.items():
        if 0 <= limit < used.get(name, 0):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be greater than or equal to already used and "
                                 f"reserved {used[name]}. Say force to set it all the same.")
        if most.get(name, -1) >= 0 and (limit < 0 or limit > most[name]):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be less than or equal to {most[name]}, the "
                                 "limit of the project.")


def reset_quotas(caller: Caller, project: str, user: str | None = None) -> None:
    """Remove the limits of *project* and of all its users, or with *user* only the limits of this user in the project,
    so that the defaults apply again."""
    caller.check_policy(f"{RULE}delete", Owner(project))
    caller.write(quotas.remove_quota_rows, [*_defaults(caller)], project, user)


@use_case(f"{CLASS_RULE}show")
def show_quota_class(caller: Caller, name: str) -> Limits:
    """Return the limits of the quota class *name*. The class ``default`` holds the default limits of all projects."""
    return _merged_limits(caller, quotas.class_quota_holder(name), quotas.DEFAULT)


@use_case(f"{CLASS_RULE}update")
def update_quota_class(caller: Caller, name: str, want: Mapping[str, int]) -> Limits:
    """Set the limits in *want* (by resource) for the quota class *name*, and return all limits of the class."""
    name = Text(1, 250).check(name, "id")
    caller.write(quotas.upsert_quota_rows, quotas.class_quota_holder(name), want)
    return show_quota_class.function(caller, name)
