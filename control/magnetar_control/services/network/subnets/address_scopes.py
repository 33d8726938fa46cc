# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Address scopes: the prefixes of all subnet pools of one are apart, whose ever they are, so that routers lead out of
such a subnet into a network of the same scope without translating its addresses (Neutron's extension
address-scope)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, or_, select

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import NetworkResource, add, find, of_version
from magnetar_control.services.network.tables import address_scopes, rbac_policies, subnet_pools
from magnetar_core.errors import Conflict, InvalidRequest


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with the projects that they are shared with."""
    shared = sharing.told(connection, rows)
    return [{**row, "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it."""
    add(connection, address_scopes, values)
    sharing.begin(connection, "address_scope", values)


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """It stays shared while others have pools of it."""
    sharing.follow(connection, "address_scope", row, values)


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no pool is of it."""
    find(connection, context, ADDRESS_SCOPE, row["id"], lock=True)
    if connection.execute(select(subnet_pools.c.id).where(
            subnet_pools.c.address_scope_id == row["id"]).limit(1)).first():
        raise Conflict(f"Unable to complete operation on address scope {row['id']}. There are one or more subnet pools "
                       "in use on the address scope. Take them out of it first (openstack subnet pool set "
                       "--no-address-scope).", type="AddressScopeInUse")
    sharing.forget(connection, row["id"])


ADDRESS_SCOPE = NetworkResource(
    name="address_scope", table=address_scopes, visible=sharing.own_or_shared(address_scopes), documents=documents,
    create=create, update=change, delete=delete, admin=frozenset({"shared"}),
    defaults={"name": "", "description": "", "shared": False},
    filters={"ip_version": of_version(address_scopes.c.ip_version == 6)})


def check_pool(connection: Connection, context: Context, pool: Mapping[Any, Any]) -> None:
    """Whether a subnet *pool*, new or as it will be, with its prefixes as a list, may be of the scope that it names,
    which is locked. Raises ``NotFound``, ``InvalidRequest``, or ``Conflict`` where prefixes overlap."""
    id = pool["address_scope_id"]
    scope = find(connection, context, ADDRESS_SCOPE, id, lock=True)
    if scope["ip_version"] != pool["ip_version"]:
        raise InvalidRequest(f"Illegal subnetpool association: subnetpool {pool['id']} cannot associate with address "
                             f"scope {id} because subnetpool ip_version is not {scope['ip_version']}.",
                             type="IllegalSubnetPoolIpVersionAssociationToAddressScope")
    policy, column = rbac_policies.c, subnet_pools.c
    targets = {pool["project_id"], *connection.execute(select(policy.target_project).where(
        policy.object_id == pool["id"], policy.action == sharing.SHARED)).scalars()}
    check_targets(connection, scope, pool["id"], {*targets, *((sharing.ALL,) if pool["shared"] else ())})
    nets: list[Any] = [ip_network(one) for one in pool["prefixes"]]
    for other in connection.execute(select(*column["id", "prefixes"]).where(
            column.address_scope_id == id, column.id != pool["id"])):
        for one in map(ip_network, orjson.loads(other.prefixes)):
            if any(one.overlaps(net) for net in nets):
                raise Conflict("Failed to associate address scope: subnetpools within an address scope must have "
                               f"unique prefixes, and {one} is another pool's.", type="AddressScopePrefixConflict")


def check_shared(connection: Connection, pool: RowMapping, target: str) -> None:
    """Whether *target* may use the scope of the subnet *pool*, which is to be shared with it; the scope is locked."""
    if pool["address_scope_id"] is None:
        return
    scope = connection.execute(select(address_scopes).where(
        address_scopes.c.id == pool["address_scope_id"]).with_for_update()).mappings().one()
    check_targets(connection, scope, pool["id"], {target})


def check_targets(connection: Connection, scope: RowMapping, pool_id: str, targets: Collection[str]) -> None:
    """Raises ``InvalidRequest`` where one of *targets*, projects or all, may not use the *scope*."""
    policy = rbac_policies.c
    may = {scope["project_id"], *connection.execute(select(policy.target_project).where(
        policy.object_id == scope["id"], policy.action == sharing.SHARED,
        or_(policy.target_project.in_(targets), policy.target_project == sharing.ALL))).scalars()}
    if sharing.ALL not in may and (others := set(targets) - may):
        raise InvalidRequest(f"Illegal subnetpool association: subnetpool {pool_id} cannot be associated with address "
                             f"scope {scope['id']}: {len(others)} projects that use the pool may not use the scope. "
                             "Share the scope with them first.", type="IllegalSubnetPoolAssociationToAddressScope")
