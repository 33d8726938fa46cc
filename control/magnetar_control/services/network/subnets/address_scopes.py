# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Address scopes (Neutron's extension address-scope): sets of subnet pools whose prefixes are disjoint, also across
projects. Routers route between networks of the same scope without NAT."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from sqlalchemy import Connection, RowMapping, or_, select

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import (
    NetworkResource,
    find_resource_row,
    insert_resource_row,
    ip_version_filter,
)
from magnetar_control.services.network.tables import address_scopes, rbac_policies, subnet_pools
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidRequest


def address_scope_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert address scope *rows* to documents for callers, with ``shared`` and ``shared_with`` (ids of projects)."""
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def create_address_scope_row(connection: Connection, context: Context, values: Document) -> None:
    """Insert an address scope with *values*, and share it with all projects if ``shared`` is true in them."""
    insert_resource_row(connection, address_scopes, values)
    sharing.share_new_row(connection, "address_scope", values)


def prepare_address_scope_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Share the address scope *row* with all projects, or stop sharing it, if *values* contain ``shared``. Raises
    ``Conflict`` if the scope would no longer be shared although other projects have subnet pools in it."""
    sharing.apply_sharing_change(connection, "address_scope", row, values)


def prepare_address_scope_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the RBAC policies of the address scope *row*, which will be deleted. Raises ``Conflict`` while a subnet
    pool is in the scope."""
    find_resource_row(connection, context, ADDRESS_SCOPE, row["id"], lock=True)
    if connection.execute(select(subnet_pools.c.id).where(
            subnet_pools.c.address_scope_id == row["id"]).limit(1)).first():
        raise Conflict(f"Unable to complete operation on address scope {row['id']}. There are one or more subnet pools "
                       "in use on the address scope. Take them out of it first (openstack subnet pool set "
                       "--no-address-scope).", type="AddressScopeInUse")
    sharing.delete_sharing_policies(connection, row["id"])


ADDRESS_SCOPE = NetworkResource(
    name="address_scope", table=address_scopes, visible=sharing.own_or_shared(address_scopes),
    listed=sharing.own_or_shared_list(address_scopes),
    documents=address_scope_documents,
    create=create_address_scope_row, update=prepare_address_scope_update, delete=prepare_address_scope_delete,
    admin=frozenset({"shared"}),
    defaults={"name": "", "description": "", "shared": False},
    filters={"ip_version": ip_version_filter(address_scopes.c.ip_version == 6)})


def check_pool(connection: Connection, context: Context, pool: Mapping[Any, Any]) -> None:
    """Check that the subnet pool *pool* (all its values) may be in its address scope, and lock the scope. Raises
    ``NotFound`` if the caller cannot see the scope. Raises ``InvalidRequest`` if the IP versions differ, or if projects
    that use the pool may not use the scope. Raises ``Conflict`` if a prefix overlaps with another pool in the scope."""
    id = pool["address_scope_id"]
    scope = find_resource_row(connection, context, ADDRESS_SCOPE, id, lock=True)
    if scope["ip_version"] != pool["ip_version"]:
        raise InvalidRequest(f"Illegal subnetpool association: subnetpool {pool['id']} cannot associate with address "
                             f"scope {id} because subnetpool ip_version is not {scope['ip_version']}.",
                             type="IllegalSubnetPoolIpVersionAssociationToAddressScope")
    policy, column = rbac_policies.c, subnet_pools.c
    targets = {pool["project_id"], *connection.execute(select(policy.target_project).where(
        policy.object_id == pool["id"], policy.action == sharing.SHARED)).scalars()}
    check_targets(connection, scope, pool["id"], {*targets, *((sharing.ALL,) if pool["shared"] else ())})
    nets: list[Any] = [ip_network(prefix) for prefix in pool["prefixes"]]
    for other in connection.execute(select(*column["id", "prefixes"]).where(
            column.address_scope_id == id, column.id != pool["id"])):
        for prefix in map(ip_network, other.prefixes):
            if any(prefix.overlaps(net) for net in nets):
                raise Conflict("Failed to associate address scope: subnetpools within an address scope must have "
                               f"unique prefixes, and {prefix} is another pool's.", type="AddressScopePrefixConflict")


def check_shared(connection: Connection, pool: RowMapping, target: str) -> None:
    """Raise ``InvalidRequest`` if the subnet pool *pool* cannot be shared with the project *target*, because this
    project may not use the pool's address scope. Locks the scope."""
    if pool["address_scope_id"] is None:
        return
    scope = connection.execute(select(address_scopes).where(
        address_scopes.c.id == pool["address_scope_id"]).with_for_update()).mappings().one()
    check_targets(connection, scope, pool["id"], {target})


def check_targets(connection: Connection, scope: RowMapping, pool_id: str, targets: Collection[str]) -> None:
    """Raise ``InvalidRequest`` if one of the projects *targets* (ids; ``*``: all projects) may not use the address
    scope *scope*. *pool_id*: the subnet pool in this scope that is shared with these projects, for the error."""
    policy = rbac_policies.c
    may = {scope["project_id"], *connection.execute(select(policy.target_project).where(
        policy.object_id == scope["id"], policy.action == sharing.SHARED,
        or_(policy.target_project.in_(targets), policy.target_project == sharing.ALL))).scalars()}
    if sharing.ALL not in may and (excluded_projects := set(targets) - may):
        raise InvalidRequest(f"Illegal subnetpool association: subnetpool {pool_id} cannot be associated with address "
                             f"scope {scope['id']}: {len(excluded_projects)} projects that use the pool may not use "
                             "the scope. "
                             "Share the scope with them first.", type="IllegalSubnetPoolAssociationToAddressScope")
