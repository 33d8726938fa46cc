# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""QoS policies: how much ports may send and receive, how much they are promised, and how their packets are marked. A
port has its own policy, or its network's. They act on networks of an engine."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context, Document
from magnetar_control.services.network import sharing
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.resources import NetworkResource, NetworkStore, add, find
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import networks, ports, qos_policies, qos_rules
from magnetar_control.store.engine.database import advisory_lock, now
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound

from . import reservations, virtual_functions

#: Kinds of rules, with what of the row each has.
KINDS: dict[str, tuple[str, ...]] = {"bandwidth_limit": ("max_kbps", "max_burst_kbps", "direction"),
                                     "dscp_marking": ("dscp_mark",),
                                     "minimum_bandwidth": ("min_kbps", "direction")}


def documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """The rows, with their rules."""
    held = rules_of(connection, [row["id"] for row in rows])
    shared = sharing.told(connection, rows)
    return [{**row, "rules": held.get(row["id"], []), "shared_with": shared[row["id"]]["shared_with"]} for row in rows]


def rules_of(connection: Connection, ids: Collection[str]) -> dict[str, list[RowMapping]]:
    """Policy to its rules."""
    found: dict[str, list[RowMapping]] = {}
    for rule in connection.execute(select(qos_rules).where(qos_rules.c.policy_id.in_(ids)).order_by(
            qos_rules.c.created_at, qos_rules.c.id)).mappings() if ids else ():
        found.setdefault(rule["policy_id"], []).append(rule)
    return found


#: Policies that a caller may see, and use.
visible = sharing.own_or_shared(qos_policies)


def create(connection: Connection, context: Context, values: Document) -> None:
    """Add it."""
    _check_default(connection, values["project_id"], values)
    add(connection, qos_policies, values)
    sharing.begin(connection, "qos_policy", values)


def change(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """It stays shared while others use it."""
    row = find(connection, context, POLICY, row["id"], lock=True)  # as it is now
    if values.get("is_default") and not row["is_default"]:
        _check_default(connection, row["project_id"], values)
    sharing.follow(connection, "qos_policy", row, values)


def _check_default(connection: Connection, project: str, values: Document) -> None:
    if not values.get("is_default"):
        return
    advisory_lock(connection, "default QoS policy", project)
    there = default(connection, project)
    if there is not None:
        raise Conflict(f"A default QoS policy exists for project {project}: {there}. Make it no default first.",
                       type="QoSPolicyDefaultAlreadyExists")


def default(connection: Connection, project: str) -> str | None:
    """The policy that new networks of a project have."""
    return connection.execute(select(qos_policies.c.id).where(
        qos_policies.c.project_id == project, qos_policies.c.is_default).with_for_update()).scalar()


def delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """It goes when no network or port has it."""
    find(connection, context, POLICY, row["id"], lock=True)
    for word, table in (("Network", networks), ("Port", ports)):
        user = connection.execute(select(table.c.id).where(table.c.qos_policy_id == row["id"]).limit(1)).scalar()
        if user is not None:
            raise Conflict(f"QoS Policy {row['id']} is used by {word} {user}. Take it from there first.",
                           type="QosPolicyInUse")
    sharing.forget(connection, row["id"])


def check(connection: Connection, context: Context, network: RowMapping | Document, given: Document,
          had: str | None = None) -> None:
    """Whether the ``qos_policy_id`` of *given* values of a network or port may be, on *network*; *had*: what it was.
    Whose policy somebody does not see, stays: it is the operator's limit. The policy is locked."""
    if "qos_policy_id" not in given or given["qos_policy_id"] == had:
        return
    if had is not None and connection.execute(select(qos_policies.c.id).where(
            qos_policies.c.id == had, visible(context))).first() is None:
        raise Forbidden(f"Policy {had} cannot be removed: it is another project's.",
                        type="PolicyRemoveAuthorizationError")
    id = given["qos_policy_id"]
    if id is None:
        return
    if not network["by_engine"]:
        raise InvalidField("qos_policy_id", "must be null: QoS policies act on networks that OVN makes, and this is "
                                            f"one of type {network['type']}, without it", id)
    if connection.execute(select(qos_policies.c.id).where(
            qos_policies.c.id == id, visible(context)).with_for_update()).first() is None:
        raise NotFound(f"QoS policy {id} could not be found.", type="QosPolicyNotFound")


def ports_with(connection: Connection, policy_id: str) -> list[str]:
    """Units of the ports for which a policy counts."""
    by_network = ports.c.qos_policy_id.is_(None) & (networks.c.qos_policy_id == policy_id)
    query = select(ports.c.id).join(networks, networks.c.id == ports.c.network_id).where(
        ~ports.c.device_owner.startswith(OWN), (ports.c.qos_policy_id == policy_id) | by_network)
    return changes.ports(connection.execute(query).scalars())


POLICY = NetworkResource(
    name="qos_policy", table=qos_policies, visible=visible, documents=documents, create=create, update=change,
    delete=delete, writers_are_admins=True,
    defaults={"description": "", "shared": False, "is_default": False})


def _create_rule(kind: str, connection: Connection, context: Context, values: Document) -> None:
    policy = find(connection, context, POLICY, values["policy_id"], lock=True)
    values.update(kind=kind, project_id=policy["project_id"])
    _check_alone(connection, values["policy_id"], values)
    _check_rule(connection, values["policy_id"], values)
    add(connection, qos_rules, values)


def _check_rule(connection: Connection, policy_id: str, rule: Document) -> None:
    """Raises ``Conflict`` for a rule that contradicts another, or changes what servers have claimed."""
    reservations.check_rule(connection, policy_id, rule)
    virtual_functions.check_rule(connection, policy_id, rule)
    if rule["kind"] == reservations.KIND:
        reservations.check_promises(connection, policy_id)


def _check_alone(connection: Connection, policy_id: str, values: Mapping[Any, Any]) -> None:
    """A policy has one rule of a kind in a direction."""
    rule = qos_rules.c
    there = connection.execute(select(rule.id).where(
        rule.policy_id == policy_id, rule.kind == values["kind"], rule.direction == values["direction"],
        rule.id != values["id"])).scalar()
    if there is not None:
        raise Conflict(f"Rule {values['kind']} already exists for direction {values['direction']} in QoS policy "
                       f"{policy_id}: {there}. Change that one.", type="QoSRulesConflict")


def _change_rule(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    find(connection, context, POLICY, row["policy_id"], lock=True)
    _check_alone(connection, row["policy_id"], {**row, **values})
    if any(row[name] != value for name, value in values.items()):
        _check_rule(connection, row["policy_id"], {**row, **values})


def _drop_rule(connection: Connection, context: Context, row: RowMapping) -> None:
    find(connection, context, POLICY, row["policy_id"], lock=True)
    virtual_functions.check_rule(connection, row["policy_id"], None)
    if row["kind"] == reservations.KIND:
        reservations.check_promises(connection, row["policy_id"])


def _rule(kind: str, **defaults: Any) -> NetworkResource:
    return NetworkResource(
        name=f"{kind}_rule", table=qos_rules, create=partial(_create_rule, kind), update=_change_rule,
        delete=_drop_rule, visible=lambda context: (qos_rules.c.kind == kind) & qos_rules.c.policy_id.in_(
            select(qos_policies.c.id).where(visible(context))),
        writers_are_admins=True, defaults={"direction": "egress", **defaults},
        units=lambda connection, row, _values: ports_with(connection, row["policy_id"]))


RULES = tuple(_rule(kind, **defaults) for kind, defaults in (
    ("bandwidth_limit", {"max_burst_kbps": 0}), ("dscp_marking", {}), ("minimum_bandwidth", {})))


class PolicyStore(NetworkStore):
    """QoS policies, of which the rules can be said too."""

    def enter(self, connection: Connection, context: Context, row: RowMapping, held: Sequence[Document]) -> None:
        """All rules of the policy *row*: {kind, direction, …}, one of a kind in a direction."""
        find(connection, context, POLICY, row["id"], lock=True)
        there_are = rules_of(connection, [row["id"]]).get(row["id"], [])
        have: dict[tuple[str, str], RowMapping] = {(one["kind"], one["direction"]): one for one in there_are}
        want = {(one["kind"], one["direction"]): one for one in held}
        other = [one for key, one in want.items()
                 if key not in have or any(have[key][name] != one[name] for name in KINDS[key[0]])]
        gone = [one["id"] for key, one in have.items() if key not in want]
        touched = {one["kind"] for one in other} | {kind for kind, direction in have.keys() - want.keys()}
        if reservations.KIND in touched:
            reservations.check_promises(connection, row["id"])
        for rule in [*other, *([None] if gone else [])]:
            virtual_functions.check_rule(connection, row["id"], rule)
        if gone:
            connection.execute(deleting(qos_rules).where(qos_rules.c.id.in_(gone)))
        for one in other:
            there = have.get((one["kind"], one["direction"]))
            values = {name: one[name] for name in KINDS[one["kind"]]}
            if there is None:
                add(connection, qos_rules, {**values, "id": str(uuid.uuid4()), "kind": one["kind"], "direction": one[
                    "direction"], "policy_id": row["id"], "project_id": row["project_id"]})
            else:
                connection.execute(update(qos_rules).where(qos_rules.c.id == there["id"]).values(
                    **values, updated_at=now()))
        for one in other:
            reservations.check_rule(connection, row["id"], one)
        if gone or other:
            self.log.note(connection, *ports_with(connection, row["id"]))
