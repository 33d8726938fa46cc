# SPDX-License-Identifier: GPL-3.0-or-later
"""With which projects a network, security group, QoS policy, address group, subnet pool or address scope is shared: the
RBAC policies of it. A policy for all projects (``*``) is what ``shared`` and ``router:external`` say of a network, QoS
policy, subnet pool or address scope."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    and_,
    delete,
    exists,
    literal,
    or_,
    select,
    true,
    update,
)

from magnetar_control.services import Context, Document
from magnetar_control.store.engine.database import added, now
from magnetar_core.errors import Conflict

from .tables import (
    address_groups,
    address_scopes,
    default_security_group_rules,
    floating_ips,
    networks,
    ports,
    qos_policies,
    rbac_policies,
    routers,
    security_group_rules,
    security_groups,
    subnet_pools,
    subnets,
)

SHARED, EXTERNAL = "access_as_shared", "access_as_external"
#: All projects.
ALL = "*"
#: Who uses a thing of this id: the projects.
Users = Callable[[str], Sequence[Select[Any]]]


@dataclass(frozen=True)
class Shareable:
    """*table*: of the things; *users*: action to statements that find the projects that use one by it; *columns*:
    action to the column that says that there is a policy of it (``shared``: one for all)."""

    table: Table
    users: Mapping[str, Users]
    columns: Mapping[str, str]


def _on_network(id: str) -> Sequence[Select[Any]]:
    return (select(ports.c.project_id).where(ports.c.network_id == id),)


def _outside(id: str) -> Sequence[Select[Any]]:
    return (select(routers.c.project_id).join(ports, ports.c.device_id == routers.c.id).where(ports.c.network_id == id),
            select(floating_ips.c.project_id).where(floating_ips.c.network_id == id))


def _in_group(id: str) -> Sequence[Select[Any]]:
    return (select(ports.c.project_id).where(ports.c.security_groups.contains(f'"{id}"', autoescape=True)),
            select(security_group_rules.c.project_id).where(security_group_rules.c.remote_group_id == id),
            _by_default(default_security_group_rules.c.remote_group_id == id))


def _limited(id: str) -> Sequence[Select[Any]]:
    return tuple(select(one.c.project_id).where(one.c.qos_policy_id == id) for one in (networks, ports))


def _named(id: str) -> Sequence[Select[Any]]:
    return (select(security_group_rules.c.project_id).where(security_group_rules.c.remote_address_group_id == id),
            _by_default(default_security_group_rules.c.remote_address_group_id == id))


def _by_default(named: ColumnElement[bool]) -> Select[Any]:
    """All projects, where a default rule *named* a thing: their new groups will."""
    return select(literal(ALL).label("project_id")).select_from(default_security_group_rules).where(named)


def _cut(id: str) -> Sequence[Select[Any]]:
    return (select(subnets.c.project_id).where(subnets.c.subnetpool_id == id),)


def _scoped(id: str) -> Sequence[Select[Any]]:
    """The projects that have pools of a scope, and those with which pools of it are shared."""
    return (select(subnet_pools.c.project_id).where(subnet_pools.c.address_scope_id == id),
            select(rbac_policies.c.target_project).join(
                subnet_pools, subnet_pools.c.id == rbac_policies.c.object_id).where(
                subnet_pools.c.address_scope_id == id, rbac_policies.c.action == SHARED))


KINDS = {
    "address_group": Shareable(address_groups, {SHARED: _named}, {}),
    "address_scope": Shareable(address_scopes, {SHARED: _scoped}, {SHARED: "shared"}),
    "network": Shareable(networks, {SHARED: _on_network, EXTERNAL: _outside}, {SHARED: "shared", EXTERNAL: "external"}),
    "security_group": Shareable(security_groups, {SHARED: _in_group}, {}),
    "qos_policy": Shareable(qos_policies, {SHARED: _limited}, {SHARED: "shared"}),
    "subnetpool": Shareable(subnet_pools, {SHARED: _cut}, {SHARED: "shared"})}


def shared_with(table: Table, project: Any, action: str = SHARED) -> ColumnElement[bool]:
    """Rows of *table* that a policy shares with *project*, a value or a parameter, or with all."""
    policy = rbac_policies.c
    return exists().where(policy.object_id == table.c.id, policy.action == action,
                          policy.target_project.in_((project, ALL)))


def own_or_shared_with(table: Table, project: Any) -> ColumnElement[bool]:
    """Rows of *table* that are *project*'s, a value or a parameter, or shared with it."""
    return or_(table.c.project_id == project, shared_with(table, project))


def own_or_shared(table: Table) -> Callable[[Context], ColumnElement[bool]]:
    """The rows of the caller's project and those shared with it; for admins all rows."""
    def visible(context: Context) -> ColumnElement[bool]:
        return true() if context.is_admin else own_or_shared_with(table, context.project_id or "")

    return visible


def told(connection: Connection, rows: Sequence[RowMapping] | Sequence[Document]) -> dict[str, Document]:
    """Of each of *rows*, by its id: ``shared``, with all, and ``shared_with``, the projects besides."""
    found: dict[str, list[str]] = {row["id"]: [] for row in rows}
    policy = rbac_policies.c
    for row in connection.execute(select(policy.object_id, policy.target_project).where(
            policy.object_id.in_(found), policy.action == SHARED)) if found else ():
        found[row.object_id].append(row.target_project)
    return {id: {"shared": ALL in targets, "shared_with": [one for one in targets if one != ALL]}
            for id, targets in found.items()}


def is_shared(connection: Connection, id: str) -> bool:
    """Whether any project but its own may use it."""
    return connection.execute(select(rbac_policies.c.id).where(
        rbac_policies.c.object_id == id, rbac_policies.c.action == SHARED).limit(1)).first() is not None


def begin(connection: Connection, kind: str, row: Mapping[Any, Any]) -> None:
    """Share what is new with all, where a column of it says so."""
    for action, column in KINDS[kind].columns.items():
        if row.get(column):
            _share(connection, kind, row, action)


def follow(connection: Connection, kind: str, row: Mapping[Any, Any], values: Mapping[str, Any]) -> None:
    """Share it with all, or no more, as columns that are in *values* say. Raises ``Conflict`` where others use it."""
    for action, column in KINDS[kind].columns.items():
        if values.get(column):
            _share(connection, kind, row, action)
        elif column in values:
            _unshare(connection, kind, row, action)


def _share(connection: Connection, kind: str, row: Mapping[Any, Any], action: str) -> None:
    added(connection, rbac_policies, id=str(uuid.uuid4()), project_id=row["project_id"], object_type=kind,
          object_id=row["id"], action=action, target_project=ALL, created_at=now())


def _unshare(connection: Connection, kind: str, row: Mapping[Any, Any], action: str) -> None:
    policy = rbac_policies.c
    if others := uncovered(connection, kind, row, action, policy.target_project == ALL):
        what = "sharing settings" if action == SHARED else "external access"
        raise Conflict(f"Unable to reconfigure {what} for {kind.replace('_', ' ')} {row['id']}. Multiple projects are "
                       f"using it ({len(others)} besides its own).",
                       type="InvalidSharedSetting" if action == SHARED else "ExternalNetworkInUse")
    connection.execute(delete(rbac_policies).where(policy.object_id == row["id"], policy.action == action,
                                                   policy.target_project == ALL))


def uncovered(connection: Connection, kind: str, row: Mapping[Any, Any], action: str, without: ColumnElement[bool],
              plus: Collection[str] = ()) -> set[str]:
    """The projects that use it by *action*, and may not any more *without* some policies and with those for the
    projects *plus*. It is locked."""
    table, policy = KINDS[kind].table, rbac_policies.c
    connection.execute(select(table.c.id).where(table.c.id == row["id"]).with_for_update()).all()
    targets = {*plus, *connection.execute(select(policy.target_project).where(
        policy.object_id == row["id"], policy.action == action, ~without)).scalars()}
    if ALL in targets:
        return set()
    users = {project for query in KINDS[kind].users[action](row["id"])
             for project in connection.execute(query.distinct()).scalars()}
    # Whose it is needs no policy to use it, but an external network is none without.
    return users - targets - ({row["project_id"], ""} if action == SHARED or targets else {""})


def forget(connection: Connection, id: str) -> None:
    """It goes, with the policies of it."""
    connection.execute(delete(rbac_policies).where(rbac_policies.c.object_id == id))


def mark(connection: Connection, kind: str, id: str) -> None:
    """Have the columns of it say what its policies do."""
    policy, table = rbac_policies.c, KINDS[kind].table
    for action, column in KINDS[kind].columns.items():
        some = and_(policy.object_id == id, policy.action == action,
                    true() if column == "external" else policy.target_project == ALL)
        there = connection.execute(select(policy.id).where(some).limit(1)).first() is not None
        connection.execute(update(table).where(table.c.id == id).values({column: there, "updated_at": now()}))
