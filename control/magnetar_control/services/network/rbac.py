# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""RBAC policies: each shares a network, security group, QoS policy, address group, subnet pool or address scope with a
project, or with all."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context, Document
from magnetar_control.services.network.subnets import address_scopes
from magnetar_core.errors import Conflict, InvalidField, NotFound

from .resources import NetworkResource, add, forbidden, own
from .sharing import ALL, EXTERNAL, KINDS, SHARED, mark, uncovered
from .tables import rbac_policies


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it, of a thing of the caller's project."""
    kind, id, action = values["object_type"], values["object_id"], values["action"]
    if action not in KINDS[kind].users:
        raise InvalidField("action", f"must be {SHARED} for a {kind}: only networks are external", action)
    thing = _thing(connection, kind, id)
    if thing is None or (thing["project_id"] != context.project_id and not context.is_admin):
        raise NotFound(f"{kind} {id} could not be found among the project's.", type="RbacObjectNotFound")
    _may_target(context, "create", action, values["target_project"])
    _check_network(connection, kind, action, thing)
    if kind == "subnetpool":
        address_scopes.check_shared(connection, thing, values["target_project"])
    values["project_id"] = thing["project_id"]
    same = select(rbac_policies.c.id).where(
        rbac_policies.c.object_id == id, rbac_policies.c.action == action,
        rbac_policies.c.target_project == values["target_project"])
    if there := connection.execute(same).scalar():
        raise Conflict(f"An RBAC policy already exists with those values: {there}.", type="DuplicateRbacPolicy")
    add(connection, rbac_policies, values)
    mark(connection, kind, id)


def _thing(connection: Connection, kind: str, id: str) -> RowMapping | None:
    """The row that is shared, locked."""
    table = KINDS[kind].table
    return connection.execute(select(table).where(table.c.id == id).with_for_update()).mappings().first()


def _may_target(context: Context, verb: str, action: str, target: str) -> None:
    if target == ALL and not context.is_admin:
        raise forbidden(f"{verb}_rbac_policy:target_tenant", "only admins may share with all projects")
    if action == EXTERNAL and not context.is_admin:
        raise forbidden(f"{verb}_rbac_policy:action", "only admins may make a network external")


def _check_network(connection: Connection, kind: str, action: str, network: RowMapping) -> None:
    if action == EXTERNAL and not (network["by_engine"] and network["bridge"]):
        raise InvalidField("object_id", "must be a network of OVN on a physical network (type flat or vlan) for "
                                        f"{EXTERNAL}: the others do not reach out of the hosts", network["id"])
    if kind == "network" and action == SHARED and network["dns_domain"]:
        raise InvalidField("object_id", "must be a network without dns_domain: one project would answer for names that "
                                        "others look for", network["id"])


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Another target, where nobody needs the one that was."""
    target = values.get("target_project", row["target_project"])
    if target == row["target_project"]:
        return
    _may_target(context, "update", row["action"], target)
    _check_unused(connection, row, [target])
    thing = _thing(connection, row["object_type"], row["object_id"])
    if thing is not None and row["object_type"] == "subnetpool":
        address_scopes.check_shared(connection, thing, target)
    if connection.execute(select(rbac_policies.c.id).where(
            rbac_policies.c.object_id == row["object_id"], rbac_policies.c.action == row["action"],
            rbac_policies.c.target_project == target)).first():
        raise Conflict("An RBAC policy already exists with those values.", type="DuplicateRbacPolicy")


def _check_unused(connection: Connection, row: RowMapping, plus: Collection[str] = ()) -> None:
    thing = _thing(connection, row["object_type"], row["object_id"])
    others = uncovered(connection, row["object_type"], thing, row["action"], rbac_policies.c.id == row["id"],
                       plus) if thing else set()
    if others:
        what = row["object_type"].replace("_", " ")
        raise Conflict(f"RBAC policy on object {row['object_id']} cannot be removed because other objects depend on "
                       f"it. Details: {len(others)} projects use the {what} by it; have them let go of it first.",
                       type="RbacPolicyInUse")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when nobody uses what it shares."""
    _check_unused(connection, row)


RBAC_POLICY = NetworkResource(
    name="rbac_policy", table=rbac_policies, visible=own(rbac_policies), create=create, update=change, delete=delete,
    after=lambda connection, row: mark(connection, row["object_type"], row["object_id"]))
