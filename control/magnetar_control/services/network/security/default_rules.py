# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Default rules: what new security groups begin with (Neutron's extension security-groups-default-rules).
Administrators make and remove them, all see them, and groups that are there already keep what they have."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, or_, select, true

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.resources import NetworkResource, add
from magnetar_control.services.network.tables import beginnings, default_security_group_rules
from magnetar_control.store.engine.database import added, advisory_lock, now
from magnetar_core.errors import Conflict, InvalidField

from .group_rules import ETHERTYPES, SAME, check

NAMESPACE = uuid.UUID("2f6a1f7e-0d35-5d52-9d3b-4a1a7b0c9e11")
#: As ``remote_group_id``: the group that the rule will be of.
PARENT = "PARENT"
#: Prefixes that are any address: such a rule is the same as one without.
ANYWHERE = ("0.0.0.0/0", "::/0")
#: In which groups a default rule is used.
USES = ("used_in_default_sg", "used_in_non_default_sg")
_RULES = {use: select(default_security_group_rules).where(default_security_group_rules.c[use]).order_by(
    default_security_group_rules.c.created_at, default_security_group_rules.c.id) for use in USES}


def of_default_groups(connection: Connection) -> Sequence[RowMapping]:
    """The rules of a project's new group ``default``."""
    return connection.execute(_RULES[USES[0]]).mappings().all()


def of_other_groups(connection: Connection) -> Sequence[RowMapping]:
    """The rules of another new group."""
    return connection.execute(_RULES[USES[1]]).mappings().all()


def rule(default: RowMapping, group: Document) -> Document:
    """The row of the rule that a new *group* gets of a *default* one."""
    values = {name: default[name] for name in SAME}
    if values["remote_group_id"] == PARENT:
        values["remote_group_id"] = group["id"]
    return {**values, "id": str(uuid.uuid5(uuid.UUID(group["id"]), default["id"])), "project_id": group["project_id"],
            "security_group_id": group["id"], "description": default["description"], "created_at": now()}


def begin(connection: Connection) -> None:
    """The four that Neutron begins with, once: everything out of all groups, and into ``default`` from its own."""
    if not added(connection, beginnings, name="default_security_group_rules", created_at=now()):
        return
    connection.execute(insert(default_security_group_rules), [
        {"id": str(uuid.uuid5(NAMESPACE, direction + ethertype)), "direction": direction, "ethertype": ethertype,
         "remote_group_id": PARENT if direction == "ingress" else None, USES[0]: True,
         USES[1]: direction == "egress", "description": f"Legacy default SG rule for {direction} traffic",
         "created_at": now()} for direction in ("egress", "ingress") for ethertype in ETHERTYPES])


def create(engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Add it, where none that is used in the same groups says the same. *engine*: see ``group_rules.check``. What it
    names is shared with all projects: each one's groups will name it."""
    check(engine, values)
    advisory_lock(connection, "default security group rules")
    _check_named(connection, "security_group", values)
    _check_named(connection, "address_group", values)
    column = default_security_group_rules.c
    said = [_anywhere(values) if name == "remote_ip_prefix" else column[name].is_not_distinct_from(values[name])
            for name in SAME]
    used = [column[use] for use in USES if values[use]]
    if used and (there := connection.execute(select(column.id).where(or_(*used), *said)).scalar()):
        raise Conflict(f"Default Security group rule already exists. Rule id is {there}.",
                       type="DefaultSecurityGroupRuleExists")
    add(connection, default_security_group_rules, values)


def _anywhere(values: Mapping[str, Any]) -> Any:
    """Whether a row is of the same addresses: no prefix and that of all addresses are the same."""
    column, prefix = default_security_group_rules.c.remote_ip_prefix, values["remote_ip_prefix"]
    if prefix is None or prefix in ANYWHERE:
        return or_(column.is_(None), column.in_(ANYWHERE))
    return column == prefix


def _check_named(connection: Connection, kind: str, values: Document) -> None:
    """Lock the group that it names. Raises ``InvalidField``."""
    field = {"security_group": "remote_group_id", "address_group": "remote_address_group_id"}[kind]
    id, table = values[field], sharing.KINDS[kind].table
    if id in (None, PARENT):
        return
    found = connection.execute(select(table.c.id).where(table.c.id == id).with_for_update()).first()
    if found is None or not connection.execute(select(table.c.id).where(
            table.c.id == id, sharing.shared_with(table, sharing.ALL))).first():
        itself = f", or {PARENT}, the new group itself" if kind == "security_group" else ""
        raise InvalidField(field, f"must be the uuid of a group that is shared with all projects (openstack network "
                                  f"rbac create --type {kind} --action access_as_shared --target-all-projects …)"
                                  f"{itself}", id)


def check_unnamed(connection: Connection, group_id: str) -> None:
    """Raises ``Conflict`` while a default rule names a security group."""
    column = default_security_group_rules.c
    if there := connection.execute(select(column.id).where(column.remote_group_id == group_id).limit(1)).scalar():
        raise Conflict(f"Security Group {group_id} in use: default security group rule {there} names it. An "
                       "administrator deletes that first.", type="SecurityGroupInUse")


def resource(engine: bool) -> NetworkResource:
    """Default rules; *engine*: see ``create``."""
    return NetworkResource(
        name="default_security_group_rule", table=default_security_group_rules, visible=lambda _context: true(),
        create=partial(create, engine), writers_are_admins=True,
        defaults={"description": "", "ethertype": "IPv4", USES[0]: False, USES[1]: True, **dict.fromkeys(SAME[2:])})
