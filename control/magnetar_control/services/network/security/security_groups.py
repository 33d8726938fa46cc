# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""Security groups of projects, and their rules. They act on networks of an engine; elsewhere hosts filter by them
(``host_groups``)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson
from sqlalchemy import BindParameter, ColumnElement, Connection, RowMapping, bindparam, insert, or_, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context, Document, Documents
from magnetar_control.services.network import sharing
from magnetar_control.services.network.engine.changes import ChangeLog
from magnetar_control.services.network.resources import NetworkResource, NetworkStore, add, own
from magnetar_control.services.network.tables import (
    TAKEN,
    address_groups,
    addresses,
    ports,
    security_group_rules,
    security_groups,
)
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, added, now
from magnetar_core.errors import Conflict, InvalidField, InvalidRequest, NotFound
from magnetar_core.kinds.network import MOST_GROUPS

from . import default_rules, host_groups
from .group_rules import SAME, check

NAMESPACE = uuid.UUID("b0b7c1f0-54d3-5e5e-8a67-3f2f8f6f7b11")
#: Groups of the caller's project, and those that a caller may see, and give to ports.
OWN = own(security_groups)
VISIBLE = sharing.own_or_shared(security_groups)
_NAMES: BindParameter[str] = bindparam("names", expanding=True)
_NAMED = select(security_groups.c.id, security_groups.c.name).where(
    security_groups.c.project_id == bindparam("project"),
    or_(security_groups.c.name.in_(_NAMES), security_groups.c.id.in_(_NAMES)))
#: Of a server: its ports, and their groups.
_PORTS = select(*ports.c["id", "security_groups", "port_security_enabled"]).where(
    ports.c.device_id == bindparam("server"), TAKEN).order_by(ports.c.place).with_for_update()
_HELD = select(ports.c.security_groups).where(ports.c.device_id == bindparam("server"), TAKEN)
_ADDRESSED = select(addresses.c.port_id).where(addresses.c.port_id == bindparam("port")).limit(1)


def default_id(project_id: str | None) -> str:
    """Uuid of the group ``default`` of a project: it follows from the project, so that it is made once."""
    return str(uuid.uuid5(NAMESPACE, project_id or ""))


def default_group(connection: Connection, project_id: str | None) -> str:
    """The project's group ``default``, made when it is first needed."""
    id = default_id(project_id)
    if added(connection, security_groups, id=id, project_id=project_id or "", name="default",
             description="Default security group", created_at=now()):
        _have(connection, {"id": id, "project_id": project_id or ""}, default_rules.of_default_groups(connection))
        host_groups.changed(connection, [f"group/{id}"])  # hosts may know it from before
    return id


def _have(connection: Connection, group: Document, rules: Sequence[RowMapping]) -> None:
    """Give a new *group* what the default *rules* say."""
    if rules:
        connection.execute(insert(security_group_rules), [default_rules.rule(one, group) for one in rules])


def named(connection: Connection, project: str, names: Sequence[str], *, make: bool = False) -> list[str]:
    """Uuids of the project's groups *names* (or uuids); *make*: in a transaction, which may make ``default``. Raises
    ``InvalidRequest`` for one that is not there, 409 where several have the name."""
    rows = connection.execute(_NAMED, {"project": project, "names": list(names)}).all()
    found = []
    for name in dict.fromkeys(names):
        ids = [row.id for row in rows if row.id == name] or [row.id for row in rows if row.name == name]
        if not ids and name == "default":
            ids = [default_group(connection, project) if make else default_id(project)]
        if not ids:
            raise InvalidRequest(f"Security group {name} not found for project {project}.",
                                 type="SecurityGroupNotFound")
        if len(ids) > 1:
            raise Conflict(f"Multiple security groups found matching '{name}'. Use an ID to be more specific.")
        found.append(ids[0])
    check_number(found)
    return found


def check_number(groups: Sequence[str]) -> None:
    """Raises ``InvalidField`` for more *groups* than a port has at most: hosts take no more."""
    if len(groups) > MOST_GROUPS:
        raise InvalidField("security_groups", f"a port has {MOST_GROUPS} at most, and this would be {len(groups)}. Put "
                                              "the rules of several groups into one")


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their rules."""
    held: dict[str, list[Document]] = {row["id"]: [] for row in rows}
    for rule in connection.execute(select(security_group_rules).where(
            security_group_rules.c.security_group_id.in_(held))
            .order_by(security_group_rules.c.created_at, security_group_rules.c.id)).mappings():
        held[rule["security_group_id"]].append({**rule})
    shared = sharing.told(connection, rows)
    return [{**row, "rules": held[row["id"]], **shared[row["id"]]} for row in rows]


def of_server(connection: Connection, server_id: str) -> list[Document]:
    """The groups of the server's ports, each once, with their rules."""
    ids = host_groups.named(connection.execute(_HELD, {"server": server_id}).scalars())
    return documents(connection, connection.execute(select(security_groups).where(
        security_groups.c.id.in_(ids))).mappings().all())


def change(connection: Connection, project: str, server_id: str, name: str, *, add: bool) -> list[str]:
    """See ``services.Networks.change_groups``. Returns the units that are changed."""
    (id,) = named(connection, project, [name], make=True)
    held = connection.execute(_PORTS, {"server": server_id}).all()
    if not held:
        raise NotFound(f"Instance {server_id} has no ports that could have security groups.")
    if add and not all(port.port_security_enabled and connection.execute(_ADDRESSED, {"port": port.id}).first()
                       for port in held):
        raise InvalidRequest("Network requires port_security_enabled and subnet associated in order to apply security "
                             "groups.")
    changed = []
    for port in held:
        groups = orjson.loads(port.security_groups)
        if add == (id in groups):
            continue
        wanted = [*groups, id] if add else [one for one in groups if one != id]
        if add:
            check_number(wanted)
        connection.execute(update(ports).where(ports.c.id == port.id).values(
            security_groups=orjson.dumps(wanted).decode(), updated_at=now()))
        changed.append(f"port/{port.id}")
    if not changed and not add:
        raise NotFound(f"Security group {name} is not associated with instance {server_id}.")
    return [*changed, f"group/{id}"] if changed else []


def create(engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Add it, with the default ``rules``. There is one ``default``, which is made by itself."""
    _check_stateful(engine, values)
    if values["name"] == "default":
        raise Conflict("Default security group already exists.", type="SecurityGroupDefaultAlreadyExists")
    default_group(connection, values["project_id"])
    add(connection, security_groups, values)
    _have(connection, values, values["rules"])


def check_update(engine: bool, connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """The name ``default`` is kept."""
    _check_stateful(engine, values)
    if "name" in values and "default" in (row["name"], values["name"]) and row["name"] != values["name"]:
        raise Conflict("Updating default security group not allowed.", type="SecurityGroupCannotUpdateDefault")


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no port has it and no default rule names it, with the rules of other groups that name it, as in
    Neutron."""
    if row["name"] == "default" and not context.is_admin:
        raise Conflict("Insufficient rights for removing default security group.",
                       type="SecurityGroupCannotRemoveDefault")
    held = ports.c.security_groups.contains(f'"{row["id"]}"')
    if connection.execute(select(ports.c.id).where(held).limit(1)).first():
        raise Conflict(f"Security Group {row['id']} in use.", type="SecurityGroupInUse")
    # Locked: a default rule that begins to name it waits, or is seen.
    connection.execute(select(security_groups.c.id).where(security_groups.c.id == row["id"]).with_for_update())
    default_rules.check_unnamed(connection, row["id"])
    rule = security_group_rules.c
    connection.execute(deleting(security_group_rules).where(rule.remote_group_id == row["id"]))
    sharing.forget(connection, row["id"])


def units(connection: Connection, row: RowMapping, changed: Document | None) -> list[str]:
    """The group; and when it goes, those with rules that name it. A new one may have brought the project's
    ``default``."""
    if changed is not None:
        return [f"group/{row['id']}"] if "stateful" in changed else []
    rule = security_group_rules.c
    ids = [row["id"], default_id(row["project_id"]), *connection.execute(select(rule.security_group_id).where(
        rule.remote_group_id == row["id"])).scalars()]
    return [f"group/{id}" for id in ids]


def _prepare(connection: Connection, context: Context) -> list[str]:
    there = select(security_groups.c.id).where(security_groups.c.id == default_id(context.project_id))
    if not context.project_id or connection.execute(there).first():
        return []
    return [f"group/{default_group(connection, context.project_id)}"]


def group_resource(engine: bool) -> NetworkResource:
    """Security groups; *engine*: whether there is one, which knows groups that are not stateful."""
    return NetworkResource(
        name="security_group", table=security_groups, visible=VISIBLE, documents=documents,
        create=partial(create, engine), update=partial(check_update, engine), delete=delete,
        defaults={"description": "", "stateful": True}, before_list=_prepare,
        counts=lambda values: {"security_group_rule": len(values["rules"])}, units=units)


def _check_stateful(engine: bool, values: Document) -> None:
    if values.get("stateful") is False and not engine:
        raise InvalidField("stateful", "must be true: answers always pass where hosts filter, as they do without OVN "
                                       "(setting ovn_northbound)", False)


def create_rule(engine: bool, connection: Connection, context: Context, values: Document) -> None:
    """Add it to a group of the project. *engine*: whether there is one, which has to know what the rule says."""
    check(engine, values)
    group = _existing(connection, context, values["security_group_id"])
    values["project_id"] = group["project_id"]
    if values["remote_address_group_id"]:
        _check_addresses(connection, context, values["remote_address_group_id"])
    if values["remote_group_id"]:
        _existing(connection, context, values["remote_group_id"], VISIBLE)
    rule = security_group_rules.c
    same = select(rule.id).where(rule.security_group_id == group["id"],
                                 *(rule[name].is_not_distinct_from(values[name]) for name in SAME))
    if there := connection.execute(same).scalar():
        raise Conflict(f"Security group rule already exists. Rule id is {there}.", type="SecurityGroupRuleExists")
    add(connection, security_group_rules, values)


def _owner(connection: Connection, context: Context, values: Document) -> str:
    """A rule is the project's whose its group is."""
    return str(_existing(connection, context, values["security_group_id"])["project_id"])


def _existing(connection: Connection, context: Context, id: str,
              seen: Callable[[Context], ColumnElement[bool]] = OWN) -> RowMapping:
    row = connection.execute(select(security_groups).where(
        security_groups.c.id == id, seen(context))).mappings().first()
    if row is None:
        raise NotFound(f"Security group {id} does not exist", type="SecurityGroupNotFound")
    return row


def _check_addresses(connection: Connection, context: Context, id: str) -> None:
    """Lock the address group that a rule names; raises ``NotFound``."""
    seen = sharing.own_or_shared(address_groups)(context)
    if connection.execute(select(address_groups.c.id).where(
            address_groups.c.id == id, seen).with_for_update()).first() is None:
        raise NotFound(f"Address group {id} could not be found.", type="AddressGroupNotFound")


def rule_resource(engine: bool) -> NetworkResource:
    """Rules; *engine*: see ``create_rule``."""
    return NetworkResource(
        name="security_group_rule", table=security_group_rules, visible=own(security_group_rules),
        create=partial(create_rule, engine), owner=_owner,
        units=lambda _connection, row, _values: [f"group/{row['security_group_id']}"],
        defaults={"description": "", "ethertype": "IPv4", **dict.fromkeys(SAME[2:])})


class GroupStore(NetworkStore):
    """Security groups, of which the rules can be said too. *rules*: their store."""

    def __init__(self, database: Database, resource: NetworkResource, quota: Quotas, log: ChangeLog,
                 rules: NetworkStore) -> None:
        super().__init__(database, resource, quota, log)
        self.rules = rules

    def _create(self, connection: Connection, context: Context, new: Documents) -> None:
        rules = default_rules.of_other_groups(connection)
        super()._create(connection, context, [{**values, "rules": rules} for values in new])

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """All rules of the group *row*."""
        id = row["id"]
        connection.execute(select(security_groups.c.id).where(security_groups.c.id == id).with_for_update()).all()
        rule = security_group_rules.c
        have = {said(one): one for one in connection.execute(select(security_group_rules).where(
            rule.security_group_id == id)).mappings()}
        want = {said(one): {**self.rules.resource.defaults, **one, "security_group_id": id} for one in held}
        gone = [one["id"] for key, one in have.items() if key not in want]
        if gone:
            connection.execute(deleting(security_group_rules).where(rule.id.in_(gone)))
        more = [one for key, one in want.items() if key not in have]
        self.quota.within(connection, row["project_id"], security_group_rule=len(more))
        for one in more:
            self.rules.resource.create(connection, context, {**one, "id": str(uuid.uuid4())})
        if gone or more:
            self.log.changed(connection, f"group/{id}")


def said(rule: Document | RowMapping) -> tuple[Any, ...]:
    """What a rule says: two that say the same are one."""
    return (*({"ethertype": "IPv4", **rule}.get(name) for name in SAME), rule.get("description") or "")
