# SPDX-License-Identifier: GPL-3.0-or-later
"""Minimum bandwidth: what ports need from the hosts of their servers, by the rules ``minimum_bandwidth`` of QoS
policies.

A server claims the bandwidth with its host (``store.claims.allocations``), so what a port needs does not change while a
server has the port. A change of policy or rules that would change this need is refused. A caller that attaches a port
to a server locks the port's network and policy against such changes (``bandwidth_of_ports`` with *lock*). Subports of
trunks claim nothing, so they cannot have a minimum bandwidth. Source: Neutron's *Quality of Service Guaranteed Minimum
Bandwidth*.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from magnetar_control.services.network.routers.router_ports import OWN
from magnetar_control.services.network.tables import SUBPORT, TAKEN, networks, ports, qos_policies, qos_rules
from magnetar_control.store.claims import nic_bandwidth
from magnetar_control.store.engine.tables import hosts
from magnetar_control.store.hosts.hosts import child_provider_id
from magnetar_core import bandwidth
from magnetar_core.document import Document
from magnetar_core.errors import Conflict

KIND = "minimum_bandwidth"
#: The policy of a port: its own, or its network's.
POLICY = func.coalesce(ports.c.qos_policy_id, networks.c.qos_policy_id)
#: The columns of ports that ``bandwidth_of_ports`` needs.
_PORTS = select(ports.c.id, POLICY.label("policy"), *networks.c["type", "bridge"]).join(
    networks, networks.c.id == ports.c.network_id)
_MINIMA = select(qos_rules.c.policy_id, qos_rules.c.direction, qos_rules.c.min_kbps).where(qos_rules.c.kind == KIND)


def bandwidth_network(type: str, physical: str | None) -> str:
    """Return the resource name that hosts use for the bandwidth of a network of this *type*: its physical network
    *physical*, or ``TUNNELS`` for a network that is tunnelled between hosts."""
    return bandwidth.TUNNELS if type == "ovn" or physical is None else physical


def network_affinity(row: Any) -> str:
    """Return the name that hosts use for the network *row* in their NUMA affinity reports (see ``bandwidth_network``),
    so that a server with a NIC on this network gets NUMA cells close to the network card. Empty for a network that
    exists only within one host."""
    return bandwidth_network(row["type"], row["bridge"]) if row["by_engine"] or row["bridge"] else ""


def minima_of_policies(connection: Connection, ids: Collection[str], *, lock: bool = False) -> dict[str,
                                                                                                    dict[str, int]]:
    """Return the minimum bandwidths of QoS policies: {policy: {direction: kbit/s}}, without policies that have none.
    *lock*: lock the policies, so that their rules cannot change until the transaction ends."""
    if lock and ids:
        connection.execute(select(qos_policies.c.id).where(qos_policies.c.id.in_(ids)).order_by(
            qos_policies.c.id).with_for_update(read=True))
    minima_by_policy: dict[str, dict[str, int]] = {}
    for row in connection.execute(_MINIMA.where(qos_rules.c.policy_id.in_(ids))) if ids else ():
        minima_by_policy.setdefault(row.policy_id, {})[row.direction] = row.min_kbps
    return minima_by_policy


def requested_bandwidth(minima: Mapping[str, int], type: str, physical: str | None) -> dict[str, int]:
    """Return the bandwidth that a port requests from its host: {name of the host's resource
    (``bandwidth.bandwidth_resource``): kbit/s}. *minima*: the port's minimum bandwidths, {direction: kbit/s}. *type*,
    *physical*: the type and the physical network of the port's network, as in ``bandwidth_network``."""
    return {bandwidth.bandwidth_resource(way, bandwidth_network(type, physical)): n for way,
            n in sorted(minima.items())}


def bandwidth_of_ports(connection: Connection, rows: Sequence[Mapping[Any, Any]], *,
                       lock: bool = False) -> dict[str, dict[str, int]]:
    """Return the bandwidth that ports request from their hosts: {port id: result of ``requested_bandwidth``}, without
    ports that need none. *rows*: the ports, with ``id``, ``policy`` (id of the QoS policy), and their networks'
    ``type`` and ``bridge``. *lock*: the QoS rules cannot change until the transaction ends."""
    minima = minima_of_policies(connection, {row["policy"] for row in rows if row["policy"]}, lock=lock)
    return {row["id"]: requested_bandwidth(minima[row["policy"]], row["type"], row["bridge"])
            for row in rows if row["policy"] in minima}


def request_id(port_id: str) -> str:
    """Return the uuid of the group in a port's ``resource_request``; it is derived from the port's uuid."""
    return str(uuid.uuid5(uuid.UUID(port_id), "minimum bandwidth"))


def port_resource_requests(connection: Connection, rows: Sequence[RowMapping]) -> dict[str, dict[str, Any]]:
    """Return {port id: {"request": value of the API field ``resource_request``, "allocation": {group: resource
    provider} or ``None``}} for *rows*. The allocation exists if a server has the port on a host. Ports that need no
    bandwidth are omitted."""
    if not rows:
        return {}
    query = _PORTS.where(
        ports.c.id.in_([row["id"] for row in rows]), POLICY.is_not(None), ~ports.c.device_owner.startswith(OWN))
    bandwidth_by_port = bandwidth_of_ports(connection, connection.execute(query).mappings().all())
    names = {row["host"] for row in rows if row["id"] in bandwidth_by_port and row["host"]}
    where: dict[str, str] = dict(connection.execute(select(hosts.c.name, hosts.c.id).where(
        hosts.c.name.in_(names))).all()) if names else {}
    on_cards = {row["device_id"] for row in rows if row["vnic_type"] in bandwidth.OF_CARDS and row["host"] in where
                and row["id"] in bandwidth_by_port}
    cards = nic_bandwidth.fetch_card_places(connection, on_cards) if on_cards else {}
    requests_by_port = {}
    for row in rows:
        if (amounts := bandwidth_by_port.get(row["id"])) is None:
            continue
        network, group = bandwidth.split_resource(next(iter(amounts)))[1], request_id(row["id"])
        requests_by_port[row["id"]] = {
            "request": {"request_groups": [{
                "id": group, "required": sorted((bandwidth.place_trait(network),
                                                 bandwidth.type_trait(row["vnic_type"]))),
                "resources": {bandwidth.split_resource(name)[0]: n for name, n in amounts.items()}}],
                        "same_subtree": [group]},
            "allocation": {group: child_provider_id(where[row["host"]], cards.get((row["id"], row["host"]), network))}
            if row["place"] is not None and row["host"] in where else None}
    return requests_by_port


def check_bandwidth_rule(connection: Connection, policy_id: str, rule: Document) -> None:
    """Raise ``Conflict`` if a new or changed *rule* (with ``kind`` and ``direction``) makes the minimum bandwidth of
    the QoS policy greater than its bandwidth limit."""
    limit_column, other_column = ("min_kbps", "max_kbps") if rule["kind"] == KIND else ("max_kbps", "min_kbps")
    if rule.get(limit_column) is None:
        return
    kind = "bandwidth_limit" if rule["kind"] == KIND else KIND
    opposing_rule = connection.execute(select(qos_rules.c.id, qos_rules.c[other_column]).where(
        qos_rules.c.policy_id == policy_id, qos_rules.c.kind == kind,
        qos_rules.c.direction == rule["direction"])).first()
    if opposing_rule is not None and (rule[limit_column] > opposing_rule[1] if limit_column == "min_kbps"
                                      else rule[limit_column] < opposing_rule[1]):
        raise Conflict(
            f"{limit_column} {rule[limit_column]} conflicts with {other_column} {opposing_rule[1]} of rule "
            f"{opposing_rule[0]} of QoS policy "
                       f"{policy_id}, direction {rule['direction']}: no port is promised more than it may have.",
                       type="QoSRuleParameterConflict")


def check_promises(connection: Connection, policy_id: str) -> None:
    """Raise ``Conflict`` while servers have ports with this QoS policy, because the minimum bandwidth that the servers
    have claimed on hosts must not change. The caller has locked the policy."""
    _check_unused(connection, POLICY.is_not_distinct_from(policy_id), f"What QoS policy {policy_id} promises")


def check_policy(connection: Connection, which: ColumnElement[bool], current_policy: str | None,
                 new: str | None) -> None:
    """Raise ``Conflict`` when ports that servers have would get another minimum bandwidth, because their QoS policy
    changes from *current_policy* to *new*. *which*: the SQL condition for the ports to check. The caller has locked the
    port or network."""
    minima = minima_of_policies(connection, {policy_id for policy_id in (current_policy, new) if policy_id})
    if minima.get(current_policy or "") != minima.get(new or ""):
        _check_unused(connection, which, "The minimum bandwidth of a port")


def check_subports(connection: Connection, ids: Sequence[str]) -> None:
    """Raise ``Conflict`` if one of the ports *ids*, which will become subports of a trunk, has a minimum bandwidth.
    Locks their networks and QoS policies."""
    rows = connection.execute(_PORTS.where(ports.c.id.in_(ids)).order_by(networks.c.id).with_for_update(
        read=True, of=networks)).mappings().all()
    if promised := sorted(bandwidth_of_ports(connection, rows, lock=True)):
        raise Conflict(f"Port {promised[0]} cannot be a subport: its QoS policy promises it a minimum bandwidth, which "
                       "is claimed for ports that are NICs only. Take the policy from it, or make it a NIC.",
                       type="QosPolicyInUse")


def _check_unused(connection: Connection, which: ColumnElement[bool], subject: str) -> None:
    used = connection.execute(select(ports.c.id, ports.c.device_id, ports.c.device_owner).join(
        networks, networks.c.id == ports.c.network_id).where(
        which, TAKEN | (ports.c.device_owner == SUBPORT)).limit(1)).first()
    if used is not None and used.device_owner == SUBPORT:
        raise Conflict(f"{subject} cannot change while port {used.id} is a subport of a trunk: a minimum bandwidth is "
                       "claimed for ports that are NICs only. Remove it from its trunk first: openstack network trunk "
                       f"unset --subport {used.id} TRUNK.", type="QosPolicyInUse")
    if used is not None:
        raise Conflict(f"{subject} cannot change while a server has it: server {used.device_id} has claimed it of its "
                       f"host for port {used.id}. Detach the port first: openstack server remove port {used.device_id} "
                       f"{used.id}.", type="QosPolicyInUse")
