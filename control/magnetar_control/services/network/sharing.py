# SPDX-License-Identifier: GPL-3.0-or-later
"""The sharing of networks, security groups, QoS policies, address groups, subnet pools and address scopes with other
projects, by their RBAC policies. A policy for all projects (``*``) is the same as ``shared`` or ``router:external`` of
a network, QoS policy, subnet pool or address scope."""

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

from magnetar_control.services import Context
from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict

from .tables import (
    address_groups,
    address_scopes,
    default_security_group_rules,
    floating_ips,
    has_group,
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
#: The target project that stands for all projects.
ALL = "*"
#: Statements that find the projects that use the object with this id.
Users = Callable[[str], Sequence[Select[Any]]]


@dataclass(frozen=True)
class Shareable:
    """A resource type that RBAC policies can share, such as network. *table*: the table of its objects. An action is
    what a policy allows, such as ``access_as_shared``. *users*: {action: function}; the function returns SQL statements
    for the projects that use a given object (uuid) by this action. *columns*: {action: boolean column of *table*}. The
    column ``shared`` states whether such a policy for all projects exists; another column states whether any such
    policy exists."""

    table: Table
    users: Mapping[str, Users]
    columns: Mapping[str, str]


def _on_network(id: str) -> Sequence[Select[Any]]:
    return (select(ports.c.project_id).where(ports.c.network_id == id),)


def _outside(id: str) -> Sequence[Select[Any]]:
    return (select(routers.c.project_id).join(ports, ports.c.device_id == routers.c.id).where(ports.c.network_id == id),
            select(floating_ips.c.project_id).where(floating_ips.c.network_id == id))


def _in_group(id: str) -> Sequence[Select[Any]]:
    return (select(ports.c.project_id).where(has_group(id)),
            select(security_group_rules.c.project_id).where(security_group_rules.c.remote_group_id == id),
            _by_default(default_security_group_rules.c.remote_group_id == id))


def _limited(id: str) -> Sequence[Select[Any]]:
    return tuple(select(table.c.project_id).where(table.c.qos_policy_id == id) for table in (networks, ports))


def _named(id: str) -> Sequence[Select[Any]]:
    return (select(security_group_rules.c.project_id).where(security_group_rules.c.remote_address_group_id == id),
            _by_default(default_security_group_rules.c.remote_address_group_id == id))


def _by_default(named: ColumnElement[bool]) -> Select[Any]:
    """Return the SQL query for the projects that use an object because a default rule of security groups refers to it:
    all projects (``*``), since their new groups will have this rule. *named*: the SQL condition for default rules that
    refer to the object."""
    return select(literal(ALL).label("project_id")).select_from(default_security_group_rules).where(named)


def _cut(id: str) -> Sequence[Select[Any]]:
    return (select(subnets.c.project_id).where(subnets.c.subnetpool_id == id),)


def _scoped(id: str) -> Sequence[Select[Any]]:
    """Return the SQL queries for the projects that use the address scope *id*: the owners of subnet pools in it, and
    the projects that such pools are shared with."""
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
    """Return the SQL condition for rows of *table* that an RBAC policy with *action* shares with *project* or with all
    projects. *project*: an id or an SQL parameter."""
    policy = rbac_policies.c
    return exists().where(policy.object_id == table.c.id, policy.action == action,
                          policy.target_project.in_((project, ALL)))


def own_or_shared_with(table: Table, project: Any) -> ColumnElement[bool]:
    """Return the SQL condition for rows of *table* that belong to *project* or that an RBAC policy shares with it.
    *project*: an id or an SQL parameter."""
    return or_(table.c.project_id == project, shared_with(table, project))


def own_or_shared(table: Table) -> Callable[[Context], ColumnElement[bool]]:
    """Return a function from a request's context to the SQL condition for the rows of *table* that the caller may see:
    for admins all rows, otherwise rows that the caller's project owns or that are shared with it."""
    def visible(context: Context) -> ColumnElement[bool]:
        return true() if context.is_admin else own_or_shared_with(table, context.project_id or "")

    return visible


def listed_ids(table: Table, project: str, *actions: str) -> ColumnElement[bool]:
    """Return the SQL condition for rows of *table* that belong to *project* or that RBAC policies for *actions* share
    with it. Meant for lists: the condition makes the database look up the ids first, and read only the rows with these
    ids."""
    own, policy = table.alias(), rbac_policies.c
    return table.c.id.in_(select(own.c.id).where(own.c.project_id == project).union(select(policy.object_id).where(
        policy.action.in_(actions), policy.target_project.in_((project, ALL)))))


def own_or_shared_list(table: Table, *actions: str) -> Callable[[Context], ColumnElement[bool]]:
    """Return a function from a request's context to the SQL condition for the rows of *table* in a list for the caller:
    for admins all rows, otherwise rows that the caller's project owns or that RBAC policies for *actions* (default:
    ``SHARED``) share with it."""
    return lambda context: true() if context.is_admin else listed_ids(
        table, context.project_id or "", *(actions or (SHARED,)))


def sharing_of_rows(connection: Connection, rows: Sequence[RowMapping] | Sequence[Document]) -> dict[str, Document]:
    """Return how the objects *rows* are shared: {id: {"shared": whether with all projects, "shared_with": ids of other
    projects}}."""
    targets_by_id: dict[str, list[str]] = {row["id"]: [] for row in rows}
    policy = rbac_policies.c
    for row in connection.execute(select(policy.object_id, policy.target_project).where(
            policy.object_id.in_(targets_by_id), policy.action == SHARED)) if targets_by_id else ():
        targets_by_id[row.object_id].append(row.target_project)
    return {id: {"shared": ALL in targets, "shared_with": [target for target in targets if target != ALL]}
            for id, targets in targets_by_id.items()}


def is_shared(connection: Connection, id: str) -> bool:
    """Return whether an RBAC policy shares the object *id* with another project (action ``access_as_shared``)."""
    return connection.execute(select(rbac_policies.c.id).where(
        rbac_policies.c.object_id == id, rbac_policies.c.action == SHARED).limit(1)).first() is not None


def share_new_row(connection: Connection, kind: str, row: Mapping[Any, Any]) -> None:
    """Insert RBAC policies that share a new object with all projects, if ``shared`` or ``external`` is true in its
    *row*. *kind*: the object's type, a key of ``KINDS``."""
    for action, column in KINDS[kind].columns.items():
        if row.get(column):
            _share(connection, kind, row, action)


def apply_sharing_change(connection: Connection, kind: str, row: Mapping[Any, Any], values: Mapping[str, Any]) -> None:
    """Share the object *row* with all projects, or stop sharing it, if *values* contain ``shared`` or ``external``.
    *kind*: the object's type, a key of ``KINDS``. Raises ``Conflict`` if sharing would stop while other projects use
    the object."""
    for action, column in KINDS[kind].columns.items():
        if values.get(column):
            _share(connection, kind, row, action)
        elif column in values:
            _unshare(connection, kind, row, action)


def _share(connection: Connection, kind: str, row: Mapping[Any, Any], action: str) -> None:
    insert_if_absent(connection, rbac_policies, id=str(uuid.uuid4()), project_id=row["project_id"], object_type=kind,
                     object_id=row["id"], action=action, target_project=ALL, created_at=utc_now())


def _unshare(connection: Connection, kind: str, row: Mapping[Any, Any], action: str) -> None:
    policy = rbac_policies.c
    if dependent_projects := uncovered_projects(connection, kind, row, action, policy.target_project == ALL):
        setting = "sharing settings" if action == SHARED else "external access"
        raise Conflict(
            f"Unable to reconfigure {setting} for {kind.replace('_', ' ')} {row['id']}. Multiple projects are "
                       f"using it ({len(dependent_projects)} besides its own).",
                       type="InvalidSharedSetting" if action == SHARED else "ExternalNetworkInUse")
    connection.execute(delete(rbac_policies).where(policy.object_id == row["id"], policy.action == action,
                                                   policy.target_project == ALL))


def uncovered_projects(connection: Connection, kind: str, row: Mapping[Any, Any], action: str,
                       excluded_policy: ColumnElement[bool], plus: Collection[str] = ()) -> set[str]:
    """Return the projects that use the object *row* by *action*, but would not be allowed to use it after a change of
    its RBAC policies. *action*: such as ``access_as_shared``. In this change, policies that match *excluded_policy* (an
    SQL condition) are deleted, and policies for the projects *plus* are added. Locks the object. *kind*: the object's
    type, a key of ``KINDS``."""
    table, policy = KINDS[kind].table, rbac_policies.c
    connection.execute(select(table.c.id).where(table.c.id == row["id"]).with_for_update()).all()
    targets = {*plus, *connection.execute(select(policy.target_project).where(
        policy.object_id == row["id"], policy.action == action, ~excluded_policy)).scalars()}
    if ALL in targets:
        return set()
    users = {project for query in KINDS[kind].users[action](row["id"])
             for project in connection.execute(query.distinct()).scalars()}
    # The owner needs no policy to use its object. But a network without a policy is not external.
    return users - targets - ({row["project_id"], ""} if action == SHARED or targets else {""})


def delete_sharing_policies(connection: Connection, id: str) -> None:
    """Delete the RBAC policies of the object *id*, which will be deleted."""
    connection.execute(delete(rbac_policies).where(rbac_policies.c.object_id == id))


def refresh_sharing_columns(connection: Connection, kind: str, id: str) -> None:
    """Update the columns of an object that follow from its RBAC policies, such as ``shared``. *kind*: the object's
    type, a key of ``KINDS``. *id*: its id."""
    policy, table = rbac_policies.c, KINDS[kind].table
    for action, column in KINDS[kind].columns.items():
        some = and_(policy.object_id == id, policy.action == action,
                    true() if column == "external" else policy.target_project == ALL)
        has_policy = connection.execute(select(policy.id).where(some).limit(1)).first() is not None
        connection.execute(update(table).where(table.c.id == id).values({column: has_policy, "updated_at": utc_now()}))
