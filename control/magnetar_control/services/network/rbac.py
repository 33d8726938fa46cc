# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""RBAC policies. Each shares a network, security group, QoS policy, address group, subnet pool or address scope with a
project, or with all projects."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, RowMapping, select

from magnetar_control.services import Context
from magnetar_control.services.network.subnets import address_scopes
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, NotFound

from .resources import NetworkResource, forbidden_by_policy, insert_resource_row, rows_of_caller
from .sharing import ALL, EXTERNAL, KINDS, SHARED, refresh_sharing_columns, uncovered_projects
from .tables import rbac_policies


def create_rbac_policy_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert an RBAC policy, which shares an object of the caller's project. Raises
    ``InvalidField``, ``NotFound``, ``Conflict``."""
    kind, id, action = values["object_type"], values["object_id"], values["action"]
    if action not in KINDS[kind].users:
        raise InvalidField("action", f"must be {SHARED} for a {kind}: only networks are external", action)
    shared_object = _shared_object(connection, kind, id)
    if shared_object is None or (shared_object["project_id"] != context.project_id and not context.is_admin):
        raise NotFound(f"{kind} {id} could not be found among the project's.", type="RbacObjectNotFound")
    _may_target(context, "create", action, values["target_project"])
    _check_network(connection, kind, action, shared_object)
    if kind == "subnetpool":
        address_scopes.check_shared(connection, shared_object, values["target_project"])
    values["project_id"] = shared_object["project_id"]
    same = select(rbac_policies.c.id).where(
        rbac_policies.c.object_id == id, rbac_policies.c.action == action,
        rbac_policies.c.target_project == values["target_project"])
    if existing_id := connection.execute(same).scalar():
        raise Conflict(f"An RBAC policy already exists with those values: {existing_id}.", type="DuplicateRbacPolicy")
    insert_resource_row(connection, rbac_policies, values)
    refresh_sharing_columns(connection, kind, id)


def _shared_object(connection: Connection, kind: str, id: str) -> RowMapping | None:
    """Lock and return the row of the object *id* that an RBAC policy shares; ``None`` if there is none. *kind*: the
    object's type, a key of ``sharing.KINDS``."""
    table = KINDS[kind].table
    return connection.execute(select(table).where(table.c.id == id).with_for_update()).mappings().first()


def _may_target(context: Context, verb: str, action: str, target: str) -> None:
    if target == ALL and not context.is_admin:
        raise forbidden_by_policy(f"{verb}_rbac_policy:target_tenant", "only admins may share with all projects")
    if action == EXTERNAL and not context.is_admin:
        raise forbidden_by_policy(f"{verb}_rbac_policy:action", "only admins may make a network external")


def _check_network(connection: Connection, kind: str, action: str, network: RowMapping) -> None:
    if action == EXTERNAL and not (network["by_engine"] and network["bridge"]):
        raise InvalidField("object_id", "must be a network of OVN on a physical network (type flat or vlan) for "
                                        f"{EXTERNAL}: the others do not reach out of the hosts", network["id"])
    if kind == "network" and action == SHARED and network["dns_domain"]:
        raise InvalidField("object_id", "must be a network without dns_domain: one project would answer for names that "
                                        "others look for", network["id"])


def prepare_rbac_policy_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check that the RBAC policy *row* may get the new ``target_project`` in *values*. Raises ``Conflict`` if the
    present target project uses the shared object, or if the object has the same policy for the new project already."""
    target = values.get("target_project", row["target_project"])
    if target == row["target_project"]:
        return
    _may_target(context, "update", row["action"], target)
    _check_unused(connection, row, [target])
    shared_object = _shared_object(connection, row["object_type"], row["object_id"])
    if shared_object is not None and row["object_type"] == "subnetpool":
        address_scopes.check_shared(connection, shared_object, target)
    if connection.execute(select(rbac_policies.c.id).where(
            rbac_policies.c.object_id == row["object_id"], rbac_policies.c.action == row["action"],
            rbac_policies.c.target_project == target)).first():
        raise Conflict("An RBAC policy already exists with those values.", type="DuplicateRbacPolicy")


def _check_unused(connection: Connection, row: RowMapping, plus: Collection[str] = ()) -> None:
    shared_object = _shared_object(connection, row["object_type"], row["object_id"])
    dependent_projects = uncovered_projects(connection, row["object_type"], shared_object, row["action"],
                                            rbac_policies.c.id == row["id"], plus) if shared_object else set()
    if dependent_projects:
        object_kind = row["object_type"].replace("_", " ")
        raise Conflict(f"RBAC policy on object {row['object_id']} cannot be removed because other objects depend on "
                       f"it. Details: {len(dependent_projects)} projects use the {object_kind} by it; have them let "
                       "go of it first.",
                       type="RbacPolicyInUse")


def prepare_rbac_policy_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Raise ``Conflict`` if the RBAC policy *row* cannot be deleted, because a project uses the shared object and no
    other policy allows that."""
    _check_unused(connection, row)


RBAC_POLICY = NetworkResource(
    name="rbac_policy", table=rbac_policies, visible=rows_of_caller(rbac_policies), create=create_rbac_policy_row,
    update=prepare_rbac_policy_update, delete=prepare_rbac_policy_delete,
    after=lambda connection, row: refresh_sharing_columns(connection, row["object_type"], row["object_id"]))
