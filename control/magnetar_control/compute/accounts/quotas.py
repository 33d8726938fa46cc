# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas: limits of projects, of users in projects and of quota classes, and what is used of them, counted where the
servers are. What is over quota is ``Forbidden``."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Integer, bindparam, cast, func, literal, null, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from magnetar_control.compute.caller import Caller, Owner, use_case
from magnetar_control.store.accounts import keypairs, quotas
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import server_group_members, servers
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.servers import cell_moves, server_groups
from magnetar_control.store.servers.servers import RESTORING
from magnetar_core.errors import Forbidden, InvalidRequest
from magnetar_core.power import SOFT_DELETED
from magnetar_core.values import Text

RULE = "os_compute_api:os-quota-sets:"
CLASS_RULE = "os_compute_api:os-quota-class-sets:"
LIMITS = "os_compute_api:limits"

#: The setting quota_… has the default of each.
RESOURCES = ("instances", "cores", "ram", "metadata_items", "key_pairs", "server_groups", "server_group_members")
#: Resources of the network service, which old versions show; they have no limit here.
NETWORK = {"fixed_ips": -1, "floating_ips": -1, "security_groups": -1, "security_group_rules": -1}
INJECTED = {"injected_files": 5, "injected_file_content_bytes": 10240, "injected_file_path_bytes": 255}
MESSAGE = "Quota exceeded for {names}: Requested {asked}, but already used {used} of {limits} {names}"
#: What servers use.
COUNTED = ("instances", "cores", "ram")
Limits = quotas.Limits


def _defaults(caller: Caller) -> Limits:
    settings = caller.settings
    return {**{name: getattr(settings, f"quota_{name}") for name in RESOURCES}, **NETWORK, **INJECTED}


def _merged(caller: Caller, *holders: str) -> Limits:
    """The limits of the first holder that has one, else those of the settings. One query."""
    return caller.fetch(quotas.limits, _defaults(caller), *holders)


def limits(caller: Caller, project: str | None = None, user: str | None = None) -> Limits:
    """Limits of a project: its own, else the defaults set by administrators, else those of the settings. With *user*:
    those of that user in the project, else the project's."""
    project = project or caller.project
    users = [quotas.of_user(project, user)] if user else []
    return _merged(caller, *users, project, quotas.DEFAULT)


def used(caller: Caller, project: str | None = None, user: str | None = None,
         connection: Connection | None = None) -> Limits:
    """What the servers of a project (of one user in it) use: instances, cores, ram. As in Nova, soft-deleted ones use
    nothing until they are being restored. One query for each cell; servers of a cell that does not answer are not
    counted, as in Nova. *connection*: a transaction of cell0, which is asked first. A server that moves from cell0 to
    its cell meanwhile is then counted twice, and never missed; one that goes into another cell counts once."""
    total = {"instances": 0, "cores": 0, "ram": 0}
    values = {"project": project or caller.project, **({"user": user} if user else {})}

    def counted(database: Database) -> Sequence[Any]:
        with database.read() as reading:
            return reading.execute(_count(database.kind, bool(user)), values).all()

    rows = [] if connection is None else connection.execute(_count(connection.dialect.name, bool(user)), values).all()
    of_cells = scatter_gather(caller.cloud.store, counted, caller.settings.cell_timeout, cell0=not rows)
    for row in (*rows, *_once(caller, of_cells, counted)):
        for name in total:
            total[name] += int(row._mapping[name] or 0)  # noqa: SLF001 - SQLAlchemy's name
    return total


def _once(caller: Caller, of_cells: Mapping[str, Sequence[Any] | None],
          counted: Callable[[Database], Sequence[Any]]) -> list[Any]:
    """The sums of all cells, and the servers that leave one and have not arrived in another yet. A cell in which one
    has arrived is asked again: its first answer may be older."""
    found = {id: list(rows or ()) for id, rows in of_cells.items()}
    leaving = [row for rows in found.values() for row in rows if row.id]
    arrived = cell_moves.arrived(caller.cloud.store, leaving) if leaving else set()
    for _id, cell in arrived:
        found[cell] = list(counted(caller.cloud.store.cell(cell)))
    return [row for rows in found.values() for row in rows if (row.id, row.leaving) not in arrived]


Bounds = Sequence[tuple[Limits, str | None]]
#: Limits that are set, by holder and resource.
Given = Mapping[str, Limits]


def given(caller: Caller, owner: Owner = Owner()) -> Given:  # noqa: B008
    """The limits that are set for *owner*, of all services. One query."""
    project, user = owner.project_id or caller.project, owner.user_id or caller.context.user_id
    return caller.fetch(quotas.found, (quotas.DEFAULT, project, quotas.of_user(project, user)))


def bounds(caller: Caller, owner: Owner = Owner(), known: Given | None = None) -> Bounds:  # noqa: B008
    """The limits that bind servers of *owner*, as (limits, user): those of the project, and those of the user in it
    where there are such. Sets of limits without a bound are left out: to count servers for them would be in vain.
    *known*: what ``given`` has found, where it was asked."""
    found: list[tuple[Limits, str | None]] = []
    project, user = owner.project_id or caller.project, owner.user_id or caller.context.user_id
    known = given(caller, owner) if known is None else known
    whole = quotas.merged(_defaults(caller), known, project, quotas.DEFAULT)
    if any(whole[name] >= 0 for name in COUNTED):
        found.append((whole, None))
    own = known.get(quotas.of_user(project, user))
    if own and any({**whole, **own}[name] >= 0 for name in COUNTED):
        found.append(({**whole, **own}, user))
    return found


@lru_cache
def _count(kind: str, of_user: bool) -> CompoundSelect[Any]:
    """The statement, made once: that takes longer than to ask it."""
    flavor = cast(servers.c.flavor, JSONB)
    sizes = [cast(flavor[name].astext, Integer) if kind == "postgresql" else func.json_extract(
        servers.c.flavor, f"$.{name}") for name in ("vcpus", "ram")]
    where = [servers.c.project_id == bindparam("project"), servers.c.deleted_at.is_(None),
             or_(servers.c.vm_state != SOFT_DELETED, servers.c.task_state == RESTORING),
             *([servers.c.user_id == bindparam("user")] if of_user else [])]
    # The sums in one row, and a row for each server that leaves the cell.
    stay = select(null().label("id"), null().label("leaving"), null().label("cell_moves"), *(
        value.label(name) for name, value in zip(COUNTED, (func.count(), *map(func.sum, sizes)), strict=True))).where(
        *where, servers.c.leaving.is_(None))
    leave = select(servers.c.id, servers.c.leaving, servers.c.cell_moves, literal(1), *sizes).where(
        *where, servers.c.leaving.is_not(None))
    return stay.union_all(leave)


def check_servers(caller: Caller, flavor: Mapping[str, Any], least: int, most: int, among: Bounds | None = None,
                  connection: Connection | None = None, owner: Owner = Owner()) -> int:  # noqa: B008
    """How many servers of *flavor* may be made, from *least* to *most*. Raises ``Forbidden`` when not even *least*.
    With *connection*, a transaction of cell0, the answer is true until it ends: those who make servers in a project
    wait for each other. *among*: what ``bounds`` has found. *owner*: whose they are, the caller's when left out."""
    among = bounds(caller) if among is None else among
    if connection is not None and among:
        quotas.turn(connection, owner.project_id or caller.project)
    each = {"instances": 1, "cores": flavor["vcpus"], "ram": flavor["ram"]}
    for limit, user in among:
        have = used(caller, owner.project_id, user, connection)
        limited = [name for name in each if limit[name] >= 0 and each[name]]
        most = min([most, *((limit[name] - have[name]) // each[name] for name in limited)])
        if most < least:
            over = [name for name in limited if have[name] + least * each[name] > limit[name]]
            raise Forbidden(MESSAGE.format(
                names=", ".join(over), asked=", ".join(str(least * each[name]) for name in over),
                used=", ".join(str(have[name]) for name in over), limits=", ".join(str(limit[name]) for name in over)))
    return most


def check_ports(caller: Caller, each: int, least: int, most: int, known: Given | None = None) -> int:
    """How many servers may be made, from *least* to *most*, which need *each* new ports. Raises ``Forbidden`` when not
    even *least*. *known*: what ``given`` has found, where it was asked."""
    room = caller.cloud.services.network.room(caller.context, "port", known) if each else None
    if room is None:
        return most
    if room < each * least:
        raise Forbidden(f"Maximum number of ports exceeded: {each * least} more are needed, and the quota has room "
                        f"for {max(room, 0)}. Delete ports that are not needed, or ask an administrator for more.")
    return min(most, room // each)


def check_flavor(caller: Caller, owner: Owner, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Whether a server of *owner* may grow from one flavor to another. Raises ``Forbidden``."""
    for limit, user in bounds(caller, owner):
        have = used(caller, owner.project_id, user)
        for name, key in (("cores", "vcpus"), ("ram", "ram")):
            more = new[key] - old[key]
            if more > 0 and limit[name] >= 0 and have[name] + more > limit[name]:
                raise Forbidden(MESSAGE.format(names=name, asked=more, used=have[name], limits=limit[name]))


def check_metadata(most: int, metadata: Mapping[str, Any] | None) -> None:
    """Whether a server may have so many metadata keys. Raises ``Forbidden``."""
    if metadata and 0 <= most < len(metadata):
        raise Forbidden(f"Maximum number of metadata items exceeds {most}")


def check_files(limit: Limits, personality: Sequence[Mapping[str, str]]) -> None:
    """Whether a server may be given these files; contents count as they are in the guest. Raises ``Forbidden``."""
    found = {"injected_files": len(personality),
             "injected_file_path_bytes": max((len(one["path"].encode()) for one in personality), default=0),
             "injected_file_content_bytes": max((len(b64decode(one["contents"])) for one in personality), default=0)}
    for name, have in found.items():
        if 0 <= limit[name] < have:
            raise Forbidden(f"Quota exceeded for injected files (personality): {name} is {have}, and may be "
                            f"{limit[name]} at most.")


def check_keypairs(connection: Connection, user: str, most: int, *, alone: bool = False) -> None:
    """Whether a user who may have *most* key pairs may have one more. *alone*: the answer is true until the transaction
    ends. Raises ``Forbidden``."""
    whose = f"key pairs {user}" if alone else None
    if not quotas.has_room(connection, most, lambda: keypairs.count(connection, user), whose):
        raise Forbidden("Quota exceeded, too many key pairs.")


def check_group(caller: Caller, group: str) -> None:
    """Whether a server group may have one more server. Raises ``Forbidden``."""
    most = limits(caller, user=caller.context.user_id)["server_group_members"]
    with caller.cloud.store.api.read() as connection:
        have = connection.execute(select(func.count()).where(server_group_members.c.group_id == group)).scalar() or 0
    if 0 <= most <= have:
        raise Forbidden("Quota exceeded, too many servers in group")


def check_groups(connection: Connection, project: str, most: int, *, alone: bool = True) -> None:
    """Whether a project that may have *most* server groups may have one more. *alone*: the answer is true until the
    transaction ends. Raises ``Forbidden``."""
    whose = f"server groups {project}" if alone else None
    if not quotas.has_room(connection, most, lambda: server_groups.count(connection, project), whose):
        raise Forbidden("Quota exceeded, too many server groups.")


# What administrators see and set --------------------------------------------------------------------------------
def show(caller: Caller, project: str, user: str | None = None) -> Limits:
    """Limits of *project*, or of *user* in it. Raises ``InvalidRequest`` when there is no such project."""
    _check_project(caller, project, "show")
    return limits(caller, project, user)


def _check_project(caller: Caller, project: str, what: str | None) -> None:
    """Whether the caller may do *what* to the quotas of *project*, and whether there is one."""
    if what is not None:
        caller.check_policy(RULE + what, Owner(project))
    if not caller.cloud.services.identity.project_exists(caller.context, project):
        raise InvalidRequest(f"Project ID {project[:255]} is not a valid project.")


@use_case(LIMITS)
def show_limits(caller: Caller, project: str | None = None) -> tuple[Limits, Limits]:
    """What the caller's project may use, and what it uses; that of another one for administrators."""
    if project is not None:
        caller.check_policy(f"{LIMITS}:other_project")
    return limits(caller, project), _all_used(caller, project, None)


@use_case(f"{RULE}defaults")
def show_defaults(caller: Caller, project: str) -> Limits:
    """What *project* would have if nothing were set for it."""
    _check_project(caller, project, None)
    return _merged(caller, quotas.DEFAULT)


def show_detail(caller: Caller, project: str, user: str | None) -> tuple[Limits, Limits]:
    """Limits, and what is used of those of which something is counted."""
    _check_project(caller, project, "detail")
    return limits(caller, project, user), _all_used(caller, project, user)


def _all_used(caller: Caller, project: str | None, user: str | None) -> Limits:
    return {**used(caller, project, user),
            "server_groups": caller.fetch(server_groups.count, project or caller.project, user)}


def update(caller: Caller, project: str, want: Mapping[str, int], user: str | None = None, *,
           force: bool = False) -> Limits:
    """Set limits (-1 for none) of *project*, or of *user* in it; all of its limits. *force*: also to less than is used.
    Raises ``InvalidRequest``."""
    _check_project(caller, project, "update")
    if not force:
        _check_limits(want, _all_used(caller, project, user), limits(caller, project) if user else {})
    caller.write(quotas.put, quotas.of_user(project, user) if user else project, want)
    return limits(caller, project, user)


def check(caller: Caller, project: str, want: Mapping[str, int]) -> None:
    """Whether ``update`` would set these limits; nothing changes. Raises ``Forbidden``, ``InvalidRequest``."""
    _check_project(caller, project, "update")
    _check_limits(want, _all_used(caller, project, None), {})


def has_own(caller: Caller, project: str, names: Iterable[str]) -> bool:
    """Whether *project* has a limit of its own of any of *names*, and the caller may take it away. Raises
    ``Forbidden``."""
    caller.check_policy(f"{RULE}delete", Owner(project))
    return not caller.fetch(quotas.found, [project]).get(project, {}).keys().isdisjoint(names)


def _check_limits(want: Mapping[str, int], used: Mapping[str, int], most: Mapping[str, int]) -> None:
    """New limits are no lower than what is used, and a user's no higher than the project's."""
    for name, limit in want.items():
        if 0 <= limit < used.get(name, 0):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be greater than or equal to already used and "
                                 f"reserved {used[name]}. Say force to set it all the same.")
        if most.get(name, -1) >= 0 and (limit < 0 or limit > most[name]):
            raise InvalidRequest(f"Quota limit {limit} for {name} must be less than or equal to {most[name]}, the "
                                 "limit of the project.")


def reset(caller: Caller, project: str, user: str | None = None) -> None:
    """Let the defaults count again for *project* with all of its users, or for *user* in it."""
    caller.check_policy(f"{RULE}delete", Owner(project))
    caller.write(quotas.reset, [*_defaults(caller)], project, user)


@use_case(f"{CLASS_RULE}show")
def show_class(caller: Caller, name: str) -> Limits:
    """Limits of a quota class; the class ``default`` has the defaults of all projects."""
    return _merged(caller, quotas.of_class(name), quotas.DEFAULT)


@use_case(f"{CLASS_RULE}update")
def update_class(caller: Caller, name: str, want: Mapping[str, int]) -> Limits:
    """Set limits of a quota class; all of its limits."""
    name = Text(1, 250).check(name, "id")
    caller.write(quotas.put, quotas.of_class(name), want)
    return show_class.function(caller, name)
