# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of the network service as units of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    RowMapping,
    Select,
    Table,
    and_,
    bindparam,
    or_,
    select,
    true,
)

from magnetar_control.services.network.ports import qos, virtual_functions
from magnetar_control.services.network.routers import router_ports
from magnetar_control.services.network.tables import (
    address_groups,
    addresses,
    floating_ips,
    forwardings,
    networks,
    ports,
    routers,
    security_group_rules,
    security_groups,
    subnets,
    subports,
    trunks,
)
from magnetar_control.store.engine.tables import hosts
from magnetar_core.hardware.pci import PAST_OVN, REMOTE

from .engine import (
    LogicalAddresses,
    LogicalForwarding,
    LogicalFunction,
    LogicalGroup,
    LogicalInterface,
    LogicalLimit,
    LogicalNetwork,
    LogicalPort,
    LogicalRouter,
    LogicalRule,
    LogicalSubnet,
    LogicalTranslation,
    Unit,
    Wanted,
    key_of,
)

parents = ports.alias("parents")
# Statements that each new port needs are made once: to make one takes longer than to execute it.
_SUBPORTS = select(subports.c.port_id).join(trunks, trunks.c.id == subports.c.trunk_id).where(
    trunks.c.port_id.in_(bindparam("ids", expanding=True)))
#: Ids in one statement.
MANY = 500
#: Hosts that may have a router's gateway: one has it, the next when that one fails.
GATEWAYS = 5


def unknown(_key: str) -> bool:
    """Nobody knows what the engine has."""
    return False


def read(connection: Connection, scope: Iterable[str] | None = None, gateways: Sequence[str] = (),
         there: Callable[[str], bool] = unknown) -> Wanted:
    """What is to be, of the units of these keys, with what these belong to; of all that there are without. What belongs
    to something is read before it, so that it is there. *gateways*: hosts through which routers go out; any where there
    are none. *there*: whether the engine has a network or group of a key, as it is unless *scope* has it too; else it
    is left out."""
    keys = None if scope is None else frozenset(scope)
    found = list(_ports(connection, _with_subports(connection, _ids(keys, "port"))))
    groups = list(_groups(connection, _ids(keys, "group", {
        id for id in {id for port in found for id in port.groups} if not there(f"group/{id}")})))
    if keys is not None:
        remote = {rule.remote_group for group in groups for rule in group.rules if rule.remote_group}
        groups += _groups(connection, sorted(remote - {group.id for group in groups}))
    named = {rule.remote_addresses for group in groups for rule in group.rules if rule.remote_addresses}
    sets = list(_addresses(connection, _ids(keys, "addresses", named)))
    outward = list(_routers(connection, _ids(keys, "router"), gateways))
    units: list[Unit] = [*sets, *found, *groups, *outward, *_networks(
        connection, _ids(keys, "network", {
            id for id in {port.network_id for port in found} if not there(f"network/{id}")}))]
    return Wanted({key_of(unit): unit for unit in units}, keys)


def _ids(keys: frozenset[str] | None, kind: str, besides: Iterable[str] = ()) -> list[str] | None:
    if keys is None:
        return None
    return sorted({key.partition("/")[2] for key in keys if key.startswith(f"{kind}/")}.union(besides))


def _some(column: ColumnElement[Any], every: bool) -> ColumnElement[bool]:
    """The condition of a statement about all rows, or about those of some ``ids``."""
    return true() if every else column.in_(bindparam("ids", expanding=True))


def _parts(ids: Sequence[str] | None) -> Iterator[tuple[bool, dict[str, Sequence[str]]]]:
    """*ids* for some statements in turn: whether it is about all rows, and its parameters."""
    if ids is None:
        yield True, {}
    for at in range(0, len(ids or ()), MANY):
        yield False, {"ids": (ids or ())[at:at + MANY]}


def _with_subports(connection: Connection, ids: Sequence[str] | None) -> list[str] | None:
    """*ids* of ports, and of the subports of those that are parents: where these are, their parent says."""
    if ids is None:
        return None
    held: set[str] = set()
    for _every, given in _parts(ids):
        held.update(connection.execute(_SUBPORTS, given).scalars())
    return sorted(held.union(ids))


def _told(table: Table) -> list[Column[Any]]:
    """The columns of *table* but the tags: users may make them long, and no engine looks at them."""
    return [column for column in table.c if column.name != "tags"]


@cache
def _on_engine(every: bool) -> Select[Any]:
    """The statement about the engine's ports: a row for each address."""
    return select(
        *_told(ports), *addresses.c["subnet_id", "ip_address"], networks.c.admin_state_up.label("network_up"),
        networks.c.qos_policy_id.label("network_policy"), *networks.c["dns_domain", "mtu"], subports.c.segmentation_id,
        *(parents.c[name].label(f"parent_{name}") for name in ("id", "host", "vnic_type", "device"))).join(
        networks, networks.c.id == ports.c.network_id).outerjoin(
        subports, subports.c.port_id == ports.c.id).outerjoin(trunks, trunks.c.id == subports.c.trunk_id).outerjoin(
        parents, parents.c.id == trunks.c.port_id).outerjoin(addresses, addresses.c.port_id == ports.c.id).where(
        networks.c.by_engine, ports.c.vnic_type.not_in(PAST_OVN),
        ports.c.device_owner != router_ports.FLOATING, _some(ports.c.id, every)).order_by(
        addresses.c.subnet_id, addresses.c.number)


def _ports(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalPort]:
    for every, some in _parts(ids):
        rows: dict[str, RowMapping] = {}
        given: dict[str, list[tuple[str, str]]] = {}
        for row in connection.execute(_on_engine(every), some).mappings():
            held = given.setdefault(rows.setdefault(row["id"], row)["id"], [])
            if row["subnet_id"]:
                held.append((row["subnet_id"], row["ip_address"]))
        policies = qos.rules_of(connection, {id for row in rows.values() if (id := _policy(row))})
        for id, port in rows.items():
            yield _port(port, given[id], policies.get(_policy(port) or "", ()))


def _policy(port: RowMapping) -> str | None:
    """The QoS policy that counts for a port: its own, or its network's. The cloud's own ports have none."""
    if port["device_owner"].startswith(router_ports.OWN):
        return None
    found: str | None = port["qos_policy_id"] or port["network_policy"]
    return found


def _port(row: RowMapping, given: Sequence[tuple[str, str]], rules: Sequence[RowMapping]) -> LogicalPort:
    parent = row["parent_id"]
    # A subport follows when its parent has moved.
    bound = (row["parent_host"],) if parent else (row["host"], row["next_host"])
    above = {name: row[f"parent_{name}" if parent else name] for name in ("vnic_type", "device")}
    on_card, remote = above["vnic_type"] == REMOTE, virtual_functions.remote(above)
    places = () if on_card else tuple(dict.fromkeys(host for host in bound if host))
    function = None if parent or not remote else LogicalFunction(
        remote["pf_mac_address"], remote["vf_num"], row["mtu"])
    secure = row["port_security_enabled"]
    pairs = [(one.get("mac_address") or row["mac_address"], one["ip_address"]) for one in orjson.loads(row["pairs"])]
    return LogicalPort(
        row["id"], row["network_id"], row["mac_address"], tuple(given), row["admin_state_up"] and row["network_up"],
        secure, tuple(pairs), tuple(sorted(orjson.loads(row["security_groups"]))) if secure else (), places,
        row["arriving"], row["device_id"] if row["device_owner"].startswith(router_ports.OWN) else None,
        tuple(LogicalLimit(one["direction"], one["max_kbps"], one["max_burst_kbps"]) for one in rules
              if one["kind"] == "bandwidth_limit"),
        next((one["dscp_mark"] for one in rules if one["kind"] == "dscp_marking"), None),
        (row["dns_name"], f"{row['dns_name']}.{row['dns_domain']}".rstrip(".")) if row["dns_name"] and row[
            "dns_domain"] else (), parent, row["segmentation_id"], remote.get("card_serial_number", ""), function)


@cache
def _groups_and_rules(every: bool) -> Select[Any]:
    """The statement about security groups: a row for each rule."""
    there, rule = select(security_groups.c.id), security_group_rules.c
    return select(security_groups.c.id.label("group"), security_groups.c.stateful, security_group_rules).outerjoin(
        security_group_rules, and_(rule.security_group_id == security_groups.c.id, or_(
            rule.remote_group_id.is_(None), rule.remote_group_id.in_(there)))).where(
        _some(security_groups.c.id, every)).order_by(rule.id)


def _groups(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalGroup]:
    for every, some in _parts(ids):
        stateful: dict[str, bool] = {}
        rules: dict[str, list[LogicalRule]] = {}
        for row in connection.execute(_groups_and_rules(every), some):
            stateful[row.group] = row.stateful
            if row.id:
                rules.setdefault(row.group, []).append(_rule(row))
        for id, keeps in stateful.items():
            yield LogicalGroup(id, keeps, tuple(rules.get(id, ())))


def _addresses(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalAddresses]:
    for every, some in _parts(ids):
        for row in connection.execute(select(*address_groups.c["id", "addresses"]).where(
                _some(address_groups.c.id, every)), some):
            yield LogicalAddresses(row.id, tuple(sorted(orjson.loads(row.addresses))))


def _rule(row: Row[Any]) -> LogicalRule:
    return LogicalRule(row.id, row.direction, row.ethertype, row.protocol, row.port_range_min, row.port_range_max,
                       row.remote_ip_prefix, row.remote_group_id, row.remote_address_group_id)


@cache
def _networks_and_subnets(every: bool) -> Select[Any]:
    """The statement about the engine's networks: a row for each subnet."""
    return select(networks.c.id.label("network"), *networks.c["name", "mtu", "bridge", "segment", "dns_domain"],
                  *subnets.c["id", "cidr", "gateway_ip", "enable_dhcp", "dns_nameservers", "host_routes",
                             "ipv6_address_mode"]).outerjoin(
        subnets, subnets.c.network_id == networks.c.id).where(
        networks.c.by_engine, _some(networks.c.id, every)).order_by(subnets.c.id)


def _networks(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalNetwork]:
    for every, some in _parts(ids):
        found: dict[str, Row[Any]] = {}
        held: dict[str, list[LogicalSubnet]] = {}
        for row in connection.execute(_networks_and_subnets(every), some):
            subnets_ = held.setdefault(found.setdefault(row.network, row).network, [])
            if row.id:
                subnets_.append(LogicalSubnet(
                    row.id, row.cidr, row.gateway_ip, row.enable_dhcp, tuple(orjson.loads(row.dns_nameservers)),
                    tuple((one["destination"], one["nexthop"]) for one in orjson.loads(row.host_routes)),
                    row.ipv6_address_mode))
        for id, network in found.items():
            yield LogicalNetwork(id, network.name, network.mtu, tuple(held[id]), network.bridge, network.segment,
                                 network.dns_domain.rstrip("."))


def _routers(connection: Connection, ids: Sequence[str] | None, gateways: Sequence[str]) -> Iterator[LogicalRouter]:
    for every, some in _parts(ids):
        these = connection.execute(select(*_told(routers)).where(_some(routers.c.id, every)), some).all()
        known = [row.id for row in these]
        held: dict[str, list[RowMapping]] = {id: [] for id in known}
        for port in router_ports.of(connection, known) if known else ():
            held[port["device_id"]].append(port)
        reached: dict[str, list[LogicalTranslation]] = {id: [] for id in known}
        for row in connection.execute(select(*_told(floating_ips), ports.c.mac_address).join(
                ports, ports.c.id == floating_ips.c.own_port_id).where(
                floating_ips.c.router_id.in_(known), floating_ips.c.port_id.is_not(None)).order_by(
                floating_ips.c.id)) if known else ():
            reached[row.router_id].append(LogicalTranslation(
                row.id, "floating", row.floating_ip_address, row.fixed_ip_address, row.port_id, row.mac_address))
        led = _forwardings(connection, known) if known else {}
        out = list(gateways) or (sorted(connection.execute(select(hosts.c.name)).scalars()) if known else [])
        for router in these:
            yield _router(router, held[router.id], reached[router.id], out, led.get(router.id, ()))


def _forwardings(connection: Connection, router_ids: Sequence[str]) -> dict[str, list[LogicalForwarding]]:
    """Router to the port forwardings at it, those of a floating IP and protocol together."""
    row = forwardings.c
    held: dict[tuple[str, ...], list[tuple[int, str, int]]] = {}
    query = select(forwardings, *floating_ips.c["router_id", "floating_ip_address"]).join(
        floating_ips, floating_ips.c.id == row.floatingip_id).where(floating_ips.c.router_id.in_(router_ids))
    for one in connection.execute(query.order_by(row.floatingip_id, row.protocol, row.external_port)):
        held.setdefault((one.router_id, one.floatingip_id, one.protocol, one.floating_ip_address), []).append(
            (one.external_port, one.internal_ip_address, one.internal_port))
    found: dict[str, list[LogicalForwarding]] = {}
    for (router, floating, protocol, outside), targets in held.items():
        found.setdefault(router, []).append(LogicalForwarding(floating, protocol, outside, tuple(targets)))
    return found


def _router(router: Row[Any], held: Sequence[RowMapping], reached: Sequence[LogicalTranslation],
            out: Sequence[str], led: Sequence[LogicalForwarding]) -> LogicalRouter:
    gateway = [one for one in held if one["device_owner"] == router_ports.GATEWAY]
    inside = [one for one in held if one["device_owner"] == router_ports.INTERFACE]
    sides: dict[str, list[RowMapping]] = {}
    for one in held:
        sides.setdefault(one["id"], []).append(one)
    interfaces = [_interface(side) for side in sides.values()]
    routes = [(one["destination"], one["nexthop"]) for one in orjson.loads(router.routes)]
    routes += [("::/0" if ":" in one["cidr"] else "0.0.0.0/0", one["gateway_ip"]) for one in gateway
               if one["gateway_ip"]]
    outside = [one for one in gateway if ":" not in one["cidr"]]
    translations = list(reached)
    if outside and router.enable_snat:  # addresses of IPv6 are not translated
        scope = outside[0]["address_scope_id"]  # of which no addresses are translated
        translations += [LogicalTranslation(one["id"], "snat", outside[0]["ip_address"], one["cidr"]) for one in inside
                         if ":" not in one["cidr"] and (scope is None or one["address_scope_id"] != scope)]
    # The hosts that would have the gateway, drawn so that another host more changes little.
    chosen = sorted(out, key=lambda host: sha256(f"{router.id} {host}".encode()).digest())[:GATEWAYS]
    return LogicalRouter(router.id, router.name, router.admin_state_up, tuple(interfaces), tuple(routes),
                         tuple(translations), tuple(chosen) if gateway else (), tuple(led))


def _interface(side: Sequence[RowMapping]) -> LogicalInterface:
    """Of a port's rows, one for each address."""
    first, gateway = side[0], side[0]["device_owner"] == router_ports.GATEWAY
    modes = [one["ipv6_ra_mode"] for one in side if one["ipv6_ra_mode"] and not gateway]
    return LogicalInterface(first["id"], first["mac_address"], tuple(_with_prefix(one) for one in side), gateway,
                            modes[0] if modes else None, first["mtu"] if modes else None)


def _with_prefix(one: RowMapping) -> str:
    return f"{one['ip_address']}/{one['cidr'].partition('/')[2]}"
