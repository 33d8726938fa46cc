# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Security groups of projects, and their rules. An engine enforces them on its networks; on other networks hosts do
(``host_groups``)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Connection, RowMapping, bindparam, insert, or_, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    insert_resource_row,
    rows_of_caller,
)
from magnetar_control.services.network.tables import (
    TAKEN,
    address_groups,
    addresses,
    has_group,
    ports,
    security_group_rules,
    security_groups,
)
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound
from magnetar_core.kinds.network import MOST_GROUPS

from . import default_rules, host_groups
from .group_rules import SAME, check_rule_values

NAMESPACE = uuid.UUID("b0b7c1f0-54d3-5e5e-8a67-3f2f8f6f7b11")
#: The caller's groups, and the groups that a caller may see and give to ports.
OWN = rows_of_caller(security_groups)
VISIBLE = sharing.own_or_shared(security_groups)
_NAMES: BindParameter[str] = bindparam("names", expanding=True)
_NAMED = select(security_groups.c.id, security_groups.c.name).where(
    security_groups.c.project_id == bindparam("project"),
    or_(security_groups.c.name.in_(_NAMES), security_groups.c.id.in_(_NAMES)))
#: The ports of a server, and their groups.
_PORTS = select(*ports.c["id", "security_groups", "port_security_enabled"]).where(
    ports.c.device_id == bindparam("server"), TAKEN).order_by(ports.c.place).with_for_update()
_HELD = select(ports.c.security_groups).where(ports.c.device_id == bindparam("server"), TAKEN)
_ADDRESSED = select(addresses.c.port_id).where(addresses.c.port_id == bindparam("port")).limit(1)


def default_id(project_id: str | None) -> str:
    """Return the uuid of a project's security group ``default``. The uuid is derived from the project's id, so that
    concurrent requests cannot create two such groups."""
    return str(uuid.uuid5(NAMESPACE, project_id or ""))


def default_group(connection: Connection, project_id: str | None) -> str:
    """Return the uuid of the project's security group ``default``. If the group does not exist yet, create it."""
    id = default_id(project_id)
    if insert_if_absent(connection, security_groups, id=id, project_id=project_id or "", name="default",
                        description="Default security group", created_at=utc_now()):
        _insert_default_rules(connection, {"id": id, "project_id": project_id or ""},
                              default_rules.of_default_groups(connection))
        host_groups.note_changed_units(connection, [f"group/{id}"])  # hosts may know an earlier one
    return id


def _insert_default_rules(connection: Connection, group: Document, rules: Sequence[RowMapping]) -> None:
    """Insert the rules of a new security group *group*: copies of the default rules *rules*."""
    if rules:
        connection.execute(insert(security_group_rules), [default_rules.rule_from_default(default_rule, group)
                                                          for default_rule in rules])


def find_group_ids(connection: Connection, project: str, names: Sequence[str], *, make: bool = False) -> list[str]:
    """Return the uuids of the project's security groups with these *names* (or uuids). *make*: if the group ``default``
    is named and missing, create it; false: only return the uuid that this group will get. Raises ``InvalidRequest`` for
    another missing group, ``Conflict`` when several groups have the same name."""
    rows = connection.execute(_NAMED, {"project": project, "names": list(names)}).all()
    group_ids = []
    for name in dict.fromkeys(names):
        ids = [row.id for row in rows if row.id == name] or [row.id for row in rows if row.name == name]
        if not ids and name == "default":
            ids = [default_group(connection, project) if make else default_id(project)]
        if not ids:
            raise InvalidRequest(f"Security group {name} not found for project {project}.",
                                 type="SecurityGroupNotFound")
        if len(ids) > 1:
            raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
        group_ids.append(ids[0])
    check_number(group_ids)
    return group_ids


def check_number(groups: Sequence[str]) -> None:
    """Raise ``InvalidField`` if *groups* are more security groups than a port may have."""
    if len(groups) > MOST_GROUPS:
        raise InvalidField("security_groups", f"a port has {MOST_GROUPS} at most, and this would be {len(groups)}. Put "
                                              "the rules of several groups into one")


def security_group_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert security group *rows* to documents for callers, with their rules, ``shared`` and ``shared_with`` (ids of
    projects)."""
    rules_by_group: dict[str, list[Document]] = {row["id"]: [] for row in rows}
    for rule in connection.execute(select(security_group_rules).where(
            security_group_rules.c.security_group_id.in_(rules_by_group))
            .order_by(security_group_rules.c.created_at, security_group_rules.c.id)).mappings():
        rules_by_group[rule["security_group_id"]].append({**rule})
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, "rules": rules_by_group[row["id"]], **shared[row["id"]]} for row in rows]


def server_security_groups(connection: Connection, server_id: str) -> list[Document]:
    """Return the security groups of a server's ports, without duplicates, each with its rules."""
    ids = host_groups.groups_of_rows(connection.execute(_HELD, {"server": server_id}))
    return security_group_documents(connection, connection.execute(select(security_groups).where(
        security_groups.c.id.in_(ids))).mappings().all())


def change_server_groups(connection: Connection, project: str, server_id: str, name: str, *, add: bool) -> list[str]:
    """Add the security group *name* (or uuid) to all ports of a server if *add* is true, otherwise remove the group
    from them. Return the keys of the changed objects in the network engine (OVN), such as ``port/ID``."""
    (id,) = find_group_ids(connection, project, [name], make=True)
    port_rows = connection.execute(_PORTS, {"server": server_id}).all()
    if not port_rows:
        raise NotFound(f"Instance {server_id} has no ports that could have security groups.")
    if add and not all(port.port_security_enabled and connection.execute(_ADDRESSED, {"port": port.id}).first()
                       for port in port_rows):
        raise InvalidRequest("Network requires port_security_enabled and subnet associated in order to apply security "
                             "groups.")
    changed = []
    for port in port_rows:
        groups: list[str] = port.security_groups
        if add == (id in groups):
            continue
        new_groups = [*groups, id] if add else [group_id for group_id in groups if group_id != id]
        if add:
            check_number(new_groups)
        connection.execute(update(ports).where(ports.c.id == port.id).values(
            security_groups=new_groups, updated_at=utc_now()))
        changed.append(f"port/{port.id}")
    if not changed and not add:
        raise NotFound(f"Security group {name} is not associated with instance {server_id}.")
    return [*changed, f"group/{id}"] if changed else []


def create_security_group_row(has_engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a security group. ``rules`` in *values*: the default rules that the new group gets.
    *has_engine*: whether there is a network engine (OVN); without it all groups must be stateful. Raises ``Conflict``
    for the name ``default``."""
    _check_stateful(has_engine, values)
    if values["name"] == "default":
        raise Conflict("Default security group already exists.", type="SecurityGroupDefaultAlreadyExists")
    default_group(connection, values["project_id"])
    insert_resource_row(connection, security_groups, values)
    _insert_default_rules(connection, values, values["rules"])


def prepare_security_group_update(has_engine: bool, connection: Connection, context: Context, row: RowMapping,
                                  values: Document) -> None:
    """Check the new *values* of the security group *row*. *has_engine*: whether there is a network engine (OVN);
    without it all groups must be stateful. Raises ``Conflict`` if the name changes from or to ``default``."""
    _check_stateful(has_engine, values)
    if "name" in values and "default" in (row["name"], values["name"]) and row["name"] != values["name"]:
        raise Conflict("Updating default security group not allowed.", type="SecurityGroupCannotUpdateDefault")


def prepare_security_group_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the RBAC policies of the security group *row*, which will be deleted, and the rules of other groups that
    refer to it, as Neutron does. Raises ``Conflict`` while a port has the security group, or a default rule refers to
    it."""
    if row["name"] == "default" and not context.is_admin:
        raise Conflict("Insufficient rights for removing default security group.",
                       type="SecurityGroupCannotRemoveDefault")
    if connection.execute(select(ports.c.id).where(has_group(row["id"])).limit(1)).first():
        raise Conflict(f"Security Group {row['id']} in use.", type="SecurityGroupInUse")
    # Locked: a new default rule that names it waits, or is seen.
    connection.execute(select(security_groups.c.id).where(security_groups.c.id == row["id"]).with_for_update())
    default_rules.check_unnamed(connection, row["id"])
    rule = security_group_rules.c
    connection.execute(deleting(security_group_rules).where(rule.remote_group_id == row["id"]))
    sharing.delete_sharing_policies(connection, row["id"])


def changed_security_group_units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """Return the keys of the objects in the network engine (OVN) that a change of the security group *row* affects.
    *changed*: the new values; ``None`` if the group was created or is deleted. With new values, return ``group/ID`` if
    ``stateful`` changes. With ``None``, return ``group/ID`` of the group itself and of all groups with rules that refer
    to it. Also return ``group/ID`` of the project's group ``default``, which may have been created too."""
    if changed is not None:
        return [f"group/{row['id']}"] if "stateful" in changed else []
    rule = security_group_rules.c
    ids = [row["id"], default_id(row["project_id"]), *connection.execute(select(rule.security_group_id).where(
        rule.remote_group_id == row["id"])).scalars()]
    return [f"group/{id}" for id in ids]


def _prepare(connection: Connection, context: Context) -> list[str]:
    default_query = select(security_groups.c.id).where(security_groups.c.id == default_id(context.project_id))
    if not context.project_id or connection.execute(default_query).first():
        return []
    return [f"group/{default_group(connection, context.project_id)}"]


def group_resource(has_engine: bool) -> NetworkResource:
    """Return the definition of the resource type "security group" (its table, checks, fields and filters).
    *has_engine*: whether there is a network engine (OVN); only with it groups can be stateless."""
    return NetworkResource(
        name="security_group", table=security_groups, visible=VISIBLE,
        listed=sharing.own_or_shared_list(security_groups), documents=security_group_documents,
        create=partial(create_security_group_row, has_engine),
        update=partial(prepare_security_group_update, has_engine),
        delete=prepare_security_group_delete,
        defaults={"description": "", "stateful": True}, before_list=_prepare,
        counts=lambda values: {"security_group_rule": len(values["rules"])}, units=changed_security_group_units)


def _check_stateful(has_engine: bool, values: Document) -> None:
    if values.get("stateful") is False and not has_engine:
        raise InvalidField("stateful", "must be true: answers always pass where hosts filter, as they do without OVN "
                                       "(setting ovn_northbound)", False)


def create_group_rule_row(has_engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a rule of a security group that the caller's project owns. *has_engine*: whether there
    is a network engine (OVN); if so, it must support the rule."""
    check_rule_values(has_engine, values)
    group = _existing(connection, context, values["security_group_id"])
    values["project_id"] = group["project_id"]
    if values["remote_address_group_id"]:
        _check_addresses(connection, context, values["remote_address_group_id"])
    if values["remote_group_id"]:
        _existing(connection, context, values["remote_group_id"], VISIBLE)
    rule = security_group_rules.c
    same = select(rule.id).where(rule.security_group_id == group["id"],
                                 *(rule[name].is_not_distinct_from(values[name]) for name in SAME))
    if existing_id := connection.execute(same).scalar():
        raise Conflict(f"Security group rule already exists. Rule id is {existing_id}.", type="SecurityGroupRuleExists")
    insert_resource_row(connection, security_group_rules, values)


def _project_of_group(connection: Connection, context: Context, values: Document) -> str:
    """Return the project that owns a new rule with *values*: the project of its security group."""
    return str(_existing(connection, context, values["security_group_id"])["project_id"])


def _existing(connection: Connection, context: Context, id: str,
              visible: Callable[[Context], ColumnElement[bool]] = OWN) -> RowMapping:
    row = connection.execute(select(security_groups).where(
        security_groups.c.id == id, visible(context))).mappings().first()
    if row is None:
        raise NotFound(f"Security group {id} does not exist", type="SecurityGroupNotFound")
    return row


def _check_addresses(connection: Connection, context: Context, id: str) -> None:
    """Lock the address group *id* that a rule refers to. Raises ``NotFound`` if the caller may not see it."""
    visible = sharing.own_or_shared(address_groups)(context)
    if connection.execute(select(address_groups.c.id).where(
            address_groups.c.id == id, visible).with_for_update()).first() is None:
        raise NotFound(f"Address group {id} could not be found.", type="AddressGroupNotFound")


def rule_resource(has_engine: bool) -> NetworkResource:
    """Return the definition of the resource type "security group rule" (its table, checks, fields and filters).
    *has_engine*: whether there is a network engine (OVN); if so, it must support the rules."""
    return NetworkResource(
        name="security_group_rule", table=security_group_rules, visible=rows_of_caller(security_group_rules),
        create=partial(create_group_rule_row, has_engine), owner=_project_of_group,
        units=lambda _connection, row, _values: [f"group/{row['security_group_id']}"],
        defaults={"description": "", "ethertype": "IPv4", **dict.fromkeys(SAME[2:])})


class GroupStore(NetworkStore):
    """The operations on security groups. ``put`` can also set the rules of a security group. *rules*: the operations on
    rules."""

    def __init__(self, database: Database, resource: NetworkResource, quota: Quotas, log: ChangeLog,
                 rules: NetworkStore) -> None:
        super().__init__(database, resource, quota, log)
        self.rules = rules

    def _create(self, connection: Connection, context: Context, new: Documents) -> None:
        rules = default_rules.of_other_groups(connection)
        super()._create(connection, context, [{**values, "rules": rules} for values in new])

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Document]) -> None:
        """Replace the rules of the security group *row* by *parts*."""
        id = row["id"]
        connection.execute(select(security_groups.c.id).where(security_groups.c.id == id).with_for_update()).all()
        rule = security_group_rules.c
        have = {group_rule_key(group_rule): group_rule for group_rule in connection.execute(
            select(security_group_rules).where(
            rule.security_group_id == id)).mappings()}
        want = {group_rule_key(group_rule): {**self.rules.resource.defaults, **group_rule, "security_group_id": id}
                for group_rule in parts}
        removed_ids = [group_rule["id"] for key, group_rule in have.items() if key not in want]
        if removed_ids:
            connection.execute(deleting(security_group_rules).where(rule.id.in_(removed_ids)))
        more = [group_rule for key, group_rule in want.items() if key not in have]
        self.quota.within(connection, row["project_id"], security_group_rule=len(more))
        for group_rule in more:
            self.rules.resource.create(connection, context, {**group_rule, "id": str(uuid.uuid4())})
        if removed_ids or more:
            self.log.changed(connection, f"group/{id}")


def group_rule_key(rule: Document | RowMapping) -> tuple[Any, ...]:
    """Return the values of a security group rule as a tuple for comparison: two rules of a group with the same tuple
    are equal."""
    return (*({"ethertype": "IPv4", **rule}.get(name) for name in SAME), rule.get("description") or "")
