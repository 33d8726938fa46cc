# SPDX-License-Identifier: GPL-3.0-or-later
"""Minimum bandwidth: what ports ask of the hosts of their servers, by the rules ``minimum_bandwidth`` of the QoS policy
that counts for them.

A server claims it with its host (``store.claims.allocations``), so what a server's port asks for does not change while
the server has it: a policy, or the rules of one, that would change it is refused. Whoever takes a port for a server
locks its network and policy against that (``of_ports`` with *lock*). Nobody claims anything for subports of trunks, so
that those are promised nothing. Source: Neutron's *Quality of Service Guaranteed Minimum Bandwidth*.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from magnetar_control.services import Document
from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import SUBPORT, TAKEN, networks, ports, qos_policies, qos_rules
from magnetar_control.store.claims import nic_bandwidth
from magnetar_control.store.engine.tables import hosts
from magnetar_control.store.hosts.hosts import child_id
from magnetar_core import bandwidth
from magnetar_core.errors import Conflict

KIND = "minimum_bandwidth"
#: The policy that counts for a port: its own, or its network's.
POLICY = func.coalesce(ports.c.qos_policy_id, networks.c.qos_policy_id)
#: What ``of_ports`` needs of ports.
_PORTS = select(ports.c.id, POLICY.label("policy"), *networks.c["type", "bridge"]).join(
    networks, networks.c.id == ports.c.network_id)
_MINIMA = select(qos_rules.c.policy_id, qos_rules.c.direction, qos_rules.c.min_kbps).where(qos_rules.c.kind == KIND)


def place(type: str, physical: str | None) -> str:
    """Where the bandwidth of a network is: its physical network, or the one between hosts."""
    return bandwidth.TUNNELS if type == "ovn" or physical is None else physical


def near(row: Any) -> str:
    """Near which network's NUMA cells a server with a NIC is to be, as ``place``; empty for one that is of its host
    alone. *row*: of its network."""
    return place(row["type"], row["bridge"]) if row["by_engine"] or row["bridge"] else ""


def of_policies(connection: Connection, ids: Collection[str], *, lock: bool = False) -> dict[str, dict[str, int]]:
    """Policy to kbit/s by direction, of those that promise some. *lock*: their rules stay until the transaction
    ends."""
    if lock and ids:
        connection.execute(select(qos_policies.c.id).where(qos_policies.c.id.in_(ids)).order_by(
            qos_policies.c.id).with_for_update(read=True))
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(_MINIMA.where(qos_rules.c.policy_id.in_(ids))) if ids else ():
        found.setdefault(row.policy_id, {})[row.direction] = row.min_kbps
    return found


def asked(minima: Mapping[str, int], type: str, physical: str | None) -> dict[str, int]:
    """What a port of a network asks for by these *minima*, by ``bandwidth.resource``."""
    return {bandwidth.resource(way, place(type, physical)): n for way, n in sorted(minima.items())}


def of_ports(connection: Connection, rows: Sequence[Mapping[Any, Any]], *,
             lock: bool = False) -> dict[str, dict[str, int]]:
    """Port to what it asks for. *rows*: with ``id``, ``policy``, ``type`` and ``bridge`` of its network."""
    minima = of_policies(connection, {row["policy"] for row in rows if row["policy"]}, lock=lock)
    return {row["id"]: asked(minima[row["policy"]], row["type"], row["bridge"])
            for row in rows if row["policy"] in minima}


def request_id(port_id: str) -> str:
    """The uuid of the one group of what a port asks for: the same each time."""
    return str(uuid.uuid5(uuid.UUID(port_id), "minimum bandwidth"))


def requests(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, dict[str, Any]]:
    """Rows of ports to their ``resource_request`` (API reference, extension port-resource-request-groups), and to the
    ``allocation`` of its group where a server has it on a host; ports that ask for nothing are left out."""
    if not rows:
        return {}
    query = _PORTS.where(
        ports.c.id.in_([row["id"] for row in rows]), POLICY.is_not(None), ~ports.c.device_owner.startswith(OWN))
    wanted = of_ports(connection, connection.execute(query).mappings().all())
    names = {row["host"] for row in rows if row["id"] in wanted and row["host"]}
    where: dict[str, str] = dict(connection.execute(select(hosts.c.name, hosts.c.id).where(
        hosts.c.name.in_(names))).all()) if names else {}
    on_cards = {row["device_id"] for row in rows if row["vnic_type"] in bandwidth.OF_CARDS and row["host"] in where
                and row["id"] in wanted}
    cards = nic_bandwidth.cards_of(connection, on_cards) if on_cards else {}
    found = {}
    for row in rows:
        if (amounts := wanted.get(row["id"])) is None:
            continue
        network, group = bandwidth.split(next(iter(amounts)))[1], request_id(row["id"])
        found[row["id"]] = {
            "request": {"request_groups": [{
                "id": group, "required": sorted((bandwidth.own_trait(network), bandwidth.type_trait(row["vnic_type"]))),
                "resources": {bandwidth.split(name)[0]: n for name, n in amounts.items()}}], "same_subtree": [group]},
            "allocation": {group: child_id(where[row["host"]], cards.get((row["id"], row["host"]), network))}
            if row["place"] is not None and row["host"] in where else None}
    return found


def check_rule(connection: Connection, policy_id: str, rule: Document) -> None:
    """Raises ``Conflict`` where a rule of the policy (with ``kind`` and ``direction``) would promise more than another
    lets through, or let less through than another promises."""
    own, other = ("min_kbps", "max_kbps") if rule["kind"] == KIND else ("max_kbps", "min_kbps")
    if rule.get(own) is None:
        return
    kind = "bandwidth_limit" if rule["kind"] == KIND else KIND
    there = connection.execute(select(qos_rules.c.id, qos_rules.c[other]).where(
        qos_rules.c.policy_id == policy_id, qos_rules.c.kind == kind,
        qos_rules.c.direction == rule["direction"])).first()
    if there is not None and (rule[own] > there[1] if own == "min_kbps" else rule[own] < there[1]):
        raise Conflict(f"{own} {rule[own]} conflicts with {other} {there[1]} of rule {there[0]} of QoS policy "
                       f"{policy_id}, direction {rule['direction']}: no port is promised more than it may have.",
                       type="QoSRuleParameterConflict")


def check_promises(connection: Connection, policy_id: str) -> None:
    """Raises ``Conflict`` while servers have ports for which the policy counts: what they claim of their hosts stays.
    Call it with the policy locked."""
    _check_unused(connection, POLICY.is_not_distinct_from(policy_id), f"What QoS policy {policy_id} promises")


def check_policy(connection: Connection, which: ColumnElement[bool], had: str | None, new: str | None) -> None:
    """Raises ``Conflict`` where servers have some of the ports *which*, and policy *new* promises them something else
    than *had*. Call it with port or network locked."""
    minima = of_policies(connection, {one for one in (had, new) if one})
    if minima.get(had or "") != minima.get(new or ""):
        _check_unused(connection, which, "The minimum bandwidth of a port")


def check_subports(connection: Connection, ids: Sequence[str]) -> None:
    """Raises ``Conflict`` where one of these ports is promised something. Their networks and policies are locked."""
    rows = connection.execute(_PORTS.where(ports.c.id.in_(ids)).order_by(networks.c.id).with_for_update(
        read=True, of=networks)).mappings().all()
    if promised := sorted(of_ports(connection, rows, lock=True)):
        raise Conflict(f"Port {promised[0]} cannot be a subport: its QoS policy promises it a minimum bandwidth, which "
                       "is claimed for ports that are NICs only. Take the policy from it, or make it a NIC.",
                       type="QosPolicyInUse")


def _check_unused(connection: Connection, which: ColumnElement[bool], what: str) -> None:
    used = connection.execute(select(ports.c.id, ports.c.device_id, ports.c.device_owner).join(
        networks, networks.c.id == ports.c.network_id).where(
        which, TAKEN | (ports.c.device_owner == SUBPORT)).limit(1)).first()
    if used is not None and used.device_owner == SUBPORT:
        raise Conflict(f"{what} cannot change while port {used.id} is a subport of a trunk: a minimum bandwidth is "
                       "claimed for ports that are NICs only. Remove it from its trunk first: openstack network trunk "
                       f"unset --subport {used.id} TRUNK.", type="QosPolicyInUse")
    if used is not None:
        raise Conflict(f"{what} cannot change while a server has it: server {used.device_id} has claimed it of its "
                       f"host for port {used.id}. Detach the port first: openstack server remove port {used.device_id} "
                       f"{used.id}.", type="QosPolicyInUse")
