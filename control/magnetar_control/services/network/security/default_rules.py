# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Default rules: the rules that new security groups begin with (Neutron's extension security-groups-default-rules).
Administrators create and delete them, and every caller sees them. Existing groups keep their rules."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, or_, select, true

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import NetworkResource, insert_resource_row
from magnetar_control.services.network.tables import beginnings, default_security_group_rules
from magnetar_control.store.engine.database import advisory_lock, insert_if_absent, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField

from .group_rules import ETHERTYPES, SAME, check_rule_values

NAMESPACE = uuid.UUID("2f6a1f7e-0d35-5d52-9d3b-4a1a7b0c9e11")
#: The ``remote_group_id`` of a default rule that means the new group itself.
PARENT = "PARENT"
#: Prefixes that match any address: such a rule is the same as one without a prefix.
ANYWHERE = ("0.0.0.0/0", "::/0")
#: The columns that say which groups get a default rule.
USES = ("used_in_default_sg", "used_in_non_default_sg")
_RULES = {use: select(default_security_group_rules).where(default_security_group_rules.c[use]).order_by(
    default_security_group_rules.c.created_at, default_security_group_rules.c.id) for use in USES}


def of_default_groups(connection: Connection) -> Sequence[RowMapping]:
    """Return the default rules that a project's security group ``default`` gets when it is created."""
    return connection.execute(_RULES[USES[0]]).mappings().all()


def of_other_groups(connection: Connection) -> Sequence[RowMapping]:
    """Return the default rules that a new security group gets, unless it is a project's group ``default``."""
    return connection.execute(_RULES[USES[1]]).mappings().all()


def rule_from_default(default: RowMapping, group: Document) -> Document:
    """Return the row of a security group rule: the copy of the default rule *default* for the new security group
    *group*."""
    values = {name: default[name] for name in SAME}
    if values["remote_group_id"] == PARENT:
        values["remote_group_id"] = group["id"]
    return {**values, "id": str(uuid.uuid5(uuid.UUID(group["id"]), default["id"])), "project_id": group["project_id"],
            "security_group_id": group["id"], "description": default["description"], "created_at": utc_now()}


def bootstrap_default_rules(connection: Connection) -> None:
    """Create the four default rules of a new cloud, as in Neutron: security groups allow all egress, and groups named
    ``default`` allow ingress from their own members. Later calls do nothing."""
    if not insert_if_absent(connection, beginnings, name="default_security_group_rules", created_at=utc_now()):
        return
    connection.execute(insert(default_security_group_rules), [
        {"id": str(uuid.uuid5(NAMESPACE, direction + ethertype)), "direction": direction, "ethertype": ethertype,
         "remote_group_id": PARENT if direction == "ingress" else None, USES[0]: True,
         USES[1]: direction == "egress", "description": f"Legacy default SG rule for {direction} traffic",
         "created_at": utc_now()} for direction in ("egress", "ingress") for ethertype in ETHERTYPES])


def create_default_rule_row(has_engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a default rule, which new security groups will get. Raises ``InvalidField``, and
    ``Conflict`` if the same rule exists. *has_engine*: whether there is a network engine (OVN); if so, it must support
    the rule. If the rule refers to a group, this group must be shared with all projects."""
    check_rule_values(has_engine, values)
    advisory_lock(connection, "default security group rules")
    _lock_referenced_group(connection, "security_group", values)
    _lock_referenced_group(connection, "address_group", values)
    column = default_security_group_rules.c
    same_values = [_anywhere(values) if name == "remote_ip_prefix" else column[name].is_not_distinct_from(values[name])
                   for name in SAME]
    used = [column[use] for use in USES if values[use]]
    if used and (existing_id := connection.execute(select(column.id).where(or_(*used), *same_values)).scalar()):
        raise Conflict(f"Default Security group rule already exists. Rule id is {existing_id}.",
                       type="DefaultSecurityGroupRuleExists")
    insert_resource_row(connection, default_security_group_rules, values)


def _anywhere(values: Mapping[str, Any]) -> Any:
    """Return the SQL condition for default rules with the same remote addresses as *values*. No ``remote_ip_prefix``
    means the same as the prefix 0.0.0.0/0 or ::/0."""
    column, prefix = default_security_group_rules.c.remote_ip_prefix, values["remote_ip_prefix"]
    if prefix is None or prefix in ANYWHERE:
        return or_(column.is_(None), column.in_(ANYWHERE))
    return column == prefix


def _lock_referenced_group(connection: Connection, kind: str, values: Document) -> None:
    """Lock the group that a default rule with *values* refers to, if any. *kind*: security_group or address_group.
    Raises ``InvalidField`` unless the group is shared with all projects."""
    field = {"security_group": "remote_group_id", "address_group": "remote_address_group_id"}[kind]
    id, table = values[field], sharing.KINDS[kind].table
    if id in (None, PARENT):
        return
    group_row = connection.execute(select(table.c.id).where(table.c.id == id).with_for_update()).first()
    if group_row is None or not connection.execute(select(table.c.id).where(
            table.c.id == id, sharing.shared_with(table, sharing.ALL))).first():
        itself = f", or {PARENT}, the new group itself" if kind == "security_group" else ""
        raise InvalidField(field, f"must be the uuid of a group that is shared with all projects (openstack network "
                                  f"rbac create --type {kind} --action access_as_shared --target-all-projects …)"
                                  f"{itself}", id)


def check_unnamed(connection: Connection, group_id: str) -> None:
    """Raise ``Conflict`` while a default rule refers to the security group *group_id*."""
    column = default_security_group_rules.c
    if rule_id := connection.execute(select(column.id).where(column.remote_group_id == group_id).limit(1)).scalar():
        raise Conflict(f"Security Group {group_id} in use: default security group rule {rule_id} names it. An "
                       "administrator deletes that first.", type="SecurityGroupInUse")


def default_rule_resource(has_engine: bool) -> NetworkResource:
    """Return the definition of the resource type "default rule of security groups" (its table, checks and fields).
    *has_engine*: whether there is a network engine (OVN); if so, it must support the rules."""
    return NetworkResource(
        name="default_security_group_rule", table=default_security_group_rules, visible=lambda _context: true(),
        create=partial(create_default_rule_row, has_engine), writers_are_admins=True,
        defaults={"description": "", "ethertype": "IPv4", USES[0]: False, USES[1]: True, **dict.fromkeys(SAME[2:])})
