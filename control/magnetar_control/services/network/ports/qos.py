# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: ARG001 - the functions of a resource take the same arguments
"""QoS policies: limits of what ports send and receive, minimum bandwidth, and marks of their packets. A port has its
own policy, or its network's. Policies act on networks of an engine."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update
from sqlalchemy import delete as deleting

from magnetar_control.services import Context
from magnetar_control.services.network import sharing
from magnetar_control.services.network.engine import changes
from magnetar_control.services.network.resources import (
    NetworkResource,
    NetworkStore,
    find_resource_row,
    insert_resource_row,
)
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import networks, ports, qos_policies, qos_rules
from magnetar_control.store.engine.database import advisory_lock, utc_now
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidField, NotFound

from . import reservations, virtual_functions

#: Kinds of rules to the columns that each uses.
KINDS: dict[str, tuple[str, ...]] = {"bandwidth_limit": ("max_kbps", "max_burst_kbps", "direction"),
                                     "dscp_marking": ("dscp_mark",),
                                     "minimum_bandwidth": ("min_kbps", "direction")}


def qos_policy_documents(connection: Connection, rows: Sequence[RowMapping]) -> list[Document]:
    """Convert QoS policy *rows* to documents for callers, with the policies' rules."""
    rules_by_policy = rules_of_policies(connection, [row["id"] for row in rows])
    shared = sharing.sharing_of_rows(connection, rows)
    return [{**row, "rules": rules_by_policy.get(row["id"], []), "shared_with": shared[row["id"]]["shared_with"]}
            for row in rows]


def rules_of_policies(connection: Connection, ids: Collection[str]) -> dict[str, list[RowMapping]]:
    """Return the rules of the QoS policies *ids*: {policy id: rows of its rules}."""
    rules_by_policy: dict[str, list[RowMapping]] = {}
    for rule in connection.execute(select(qos_rules).where(qos_rules.c.policy_id.in_(ids)).order_by(
            qos_rules.c.created_at, qos_rules.c.id)).mappings() if ids else ():
        rules_by_policy.setdefault(rule["policy_id"], []).append(rule)
    return rules_by_policy


#: Policies that a caller may see and use.
visible = sharing.own_or_shared(qos_policies)


def create_qos_policy_row(connection: Connection, context: Context, values: Document) -> None:
    """Check *values* and insert a QoS policy. Raises ``InvalidField``, ``Conflict``."""
    _check_default(connection, values["project_id"], values)
    insert_resource_row(connection, qos_policies, values)
    sharing.share_new_row(connection, "qos_policy", values)


def prepare_qos_policy_update(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    """Check the new *values* of the QoS policy *row*. Raises ``Conflict`` if the policy would no longer be shared
    although other projects use it."""
    row = find_resource_row(connection, context, POLICY, row["id"], lock=True)  # as it is now
    if values.get("is_default") and not row["is_default"]:
        _check_default(connection, row["project_id"], values)
    sharing.apply_sharing_change(connection, "qos_policy", row, values)


def _check_default(connection: Connection, project: str, values: Document) -> None:
    if not values.get("is_default"):
        return
    advisory_lock(connection, "default QoS policy", project)
    existing_id = default_qos_policy(connection, project)
    if existing_id is not None:
        raise Conflict(f"A default QoS policy exists for project {project}: {existing_id}. Make it no default first.",
                       type="QoSPolicyDefaultAlreadyExists")


def default_qos_policy(connection: Connection, project: str) -> str | None:
    """Return the id of the default QoS policy, which new networks of the project get; ``None`` if the project has none.
    Locks the policy."""
    return connection.execute(select(qos_policies.c.id).where(
        qos_policies.c.project_id == project, qos_policies.c.is_default).with_for_update()).scalar()


def prepare_qos_policy_delete(connection: Connection, context: Context, row: RowMapping) -> None:
    """Delete the RBAC policies of the QoS policy *row*, which will be deleted. Raises ``Conflict`` while a network or
    port uses the QoS policy."""
    find_resource_row(connection, context, POLICY, row["id"], lock=True)
    for user_kind, table in (("Network", networks), ("Port", ports)):
        user = connection.execute(select(table.c.id).where(table.c.qos_policy_id == row["id"]).limit(1)).scalar()
        if user is not None:
            raise Conflict(f"QoS Policy {row['id']} is used by {user_kind} {user}. Take it from there first.",
                           type="QosPolicyInUse")
    sharing.delete_sharing_policies(connection, row["id"])


def check_qos_policy(connection: Connection, context: Context, network: RowMapping | Document, values: Document,
                     current_policy: str | None = None) -> None:
    """Check that a network, or a port on *network*, may get the ``qos_policy_id`` in *values*, and lock this policy.
    *current_policy*: the id of the present policy of the network or port. Raises ``Forbidden`` if the caller cannot see
    the present policy, and so may not replace it. Raises ``InvalidField`` if OVN does not make *network*, and
    ``NotFound`` if the caller cannot see the new policy."""
    if "qos_policy_id" not in values or values["qos_policy_id"] == current_policy:
        return
    if current_policy is not None and connection.execute(select(qos_policies.c.id).where(
            qos_policies.c.id == current_policy, visible(context))).first() is None:
        raise Forbidden(f"Policy {current_policy} cannot be removed: it is another project's.",
                        type="PolicyRemoveAuthorizationError")
    id = values["qos_policy_id"]
    if id is None:
        return
    if not network["by_engine"]:
        raise InvalidField("qos_policy_id", "must be null: QoS policies act on networks that OVN makes, and this is "
                                            f"one of type {network['type']}, without it", id)
    if connection.execute(select(qos_policies.c.id).where(
            qos_policies.c.id == id, visible(context)).with_for_update()).first() is None:
        raise NotFound(f"QoS policy {id} could not be found.", type="QosPolicyNotFound")


def ports_with(connection: Connection, policy_id: str) -> list[str]:
    """Return the keys (``port/ID``) of the ports that have the QoS policy *policy_id*, directly or through their
    network."""
    by_network = ports.c.qos_policy_id.is_(None) & (networks.c.qos_policy_id == policy_id)
    query = select(ports.c.id).join(networks, networks.c.id == ports.c.network_id).where(
        ~ports.c.device_owner.startswith(OWN), (ports.c.qos_policy_id == policy_id) | by_network)
    return changes.port_unit_keys(connection.execute(query).scalars())


POLICY = NetworkResource(
    name="qos_policy", table=qos_policies, visible=visible, documents=qos_policy_documents,
    create=create_qos_policy_row, update=prepare_qos_policy_update,
    delete=prepare_qos_policy_delete, writers_are_admins=True,
    defaults={"description": "", "shared": False, "is_default": False})


def _create_rule(kind: str, connection: Connection, context: Context, values: Document) -> None:
    policy = find_resource_row(connection, context, POLICY, values["policy_id"], lock=True)
    values.update(kind=kind, project_id=policy["project_id"])
    _check_alone(connection, values["policy_id"], values)
    _check_rule(connection, values["policy_id"], values)
    insert_resource_row(connection, qos_rules, values)


def _check_rule(connection: Connection, policy_id: str, rule: Document) -> None:
    """Raise ``Conflict`` if the new or changed *rule* contradicts another rule of the policy, cannot apply to a virtual
    function that has the policy, or changes the minimum bandwidth of ports that servers have."""
    reservations.check_bandwidth_rule(connection, policy_id, rule)
    virtual_functions.check_host_device_rule(connection, policy_id, rule)
    if rule["kind"] == reservations.KIND:
        reservations.check_promises(connection, policy_id)


def _check_alone(connection: Connection, policy_id: str, values: Mapping[Any, Any]) -> None:
    """Raise ``Conflict`` when the QoS policy already has a rule with the kind and direction in *values*."""
    rule = qos_rules.c
    existing_id = connection.execute(select(rule.id).where(
        rule.policy_id == policy_id, rule.kind == values["kind"], rule.direction == values["direction"],
        rule.id != values["id"])).scalar()
    if existing_id is not None:
        raise Conflict(f"Rule {values['kind']} already exists for direction {values['direction']} in QoS policy "
                       f"{policy_id}: {existing_id}. Change that one.", type="QoSRulesConflict")


def _change_rule(connection: Connection, context: Context, row: RowMapping, values: Document) -> None:
    find_resource_row(connection, context, POLICY, row["policy_id"], lock=True)
    _check_alone(connection, row["policy_id"], {**row, **values})
    if any(row[name] != value for name, value in values.items()):
        _check_rule(connection, row["policy_id"], {**row, **values})


def _drop_rule(connection: Connection, context: Context, row: RowMapping) -> None:
    find_resource_row(connection, context, POLICY, row["policy_id"], lock=True)
    virtual_functions.check_host_device_rule(connection, row["policy_id"], None)
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
    """The operations on QoS policies. ``put`` can also set the rules of a QoS policy."""

    def set_parts(self, connection: Connection, context: Context, row: RowMapping, parts: Sequence[Document]) -> None:
        """Replace the rules of the policy *row* by *parts*: {kind, direction, …}, at most one for each kind and
        direction."""
        find_resource_row(connection, context, POLICY, row["id"], lock=True)
        current_rules = rules_of_policies(connection, [row["id"]]).get(row["id"], [])
        have: dict[tuple[str, str], RowMapping] = {(rule["kind"], rule["direction"]): rule for rule in current_rules}
        want = {(rule["kind"], rule["direction"]): rule for rule in parts}
        other = [rule for key, rule in want.items()
                 if key not in have or any(have[key][name] != rule[name] for name in KINDS[key[0]])]
        removed_ids = [rule["id"] for key, rule in have.items() if key not in want]
        touched = {rule["kind"] for rule in other} | {kind for kind, direction in have.keys() - want.keys()}
        if reservations.KIND in touched:
            reservations.check_promises(connection, row["id"])
        for rule in [*other, *([None] if removed_ids else [])]:
            virtual_functions.check_host_device_rule(connection, row["id"], rule)
        if removed_ids:
            connection.execute(deleting(qos_rules).where(qos_rules.c.id.in_(removed_ids)))
        for changed_rule in other:
            current_rule = have.get((changed_rule["kind"], changed_rule["direction"]))
            values = {name: changed_rule[name] for name in KINDS[changed_rule["kind"]]}
            if current_rule is None:
                insert_resource_row(connection, qos_rules, {**values, "id": str(uuid.uuid4()),
                                                            "kind": changed_rule["kind"], "direction": changed_rule[
                    "direction"], "policy_id": row["id"], "project_id": row["project_id"]})
            else:
                connection.execute(update(qos_rules).where(qos_rules.c.id == current_rule["id"]).values(
                    **values, updated_at=utc_now()))
        for changed_rule in other:
            reservations.check_bandwidth_rule(connection, row["id"], changed_rule)
        if removed_ids or other:
            self.log.note(connection, *ports_with(connection, row["id"]))
