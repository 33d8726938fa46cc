# SPDX-License-Identifier: GPL-3.0-or-later
"""The function that reads the rows of the network service, and returns the units which the engine must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from typing import Any

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
    DesiredContent,
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
    unit_key,
)

parents = ports.alias("parents")
# Statements that each new port needs are built once: building one takes longer than executing it.
_SUBPORTS = select(subports.c.port_id).join(trunks, trunks.c.id == subports.c.trunk_id).where(
    trunks.c.port_id.in_(bindparam("ids", expanding=True)))
#: Maximum number of ids in one statement.
MANY = 500
#: Number of hosts that may have a router's gateway: one has it, and the next takes over when that host fails.
GATEWAYS = 5


def knows_nothing(_key: str) -> bool:
    """Return false for any key. The default of the parameter *engine_has*, for callers that do not know the engine's
    content."""
    return False


def read_desired_units(connection: Connection, scope: Iterable[str] | None = None, gateways: Sequence[str] = (),
                       engine_has: Callable[[str], bool] = knows_nothing) -> DesiredContent:
    """Read the desired content of the network engine (OVN) from the database. *scope*: the keys to read, such as
    ``port/UUID``; ``None``: read all objects. The networks, groups and address groups that these objects need are read
    too. *engine_has*: returns whether the network or group with a key exists in the engine. If so, it is not read for
    the ports that need it. *gateways*: the hosts that may have the gateways of routers; empty: any host."""
    keys = None if scope is None else frozenset(scope)
    logical_ports = list(_ports(connection, _with_subports(connection, _ids(keys, "port"))))
    groups = list(_groups(connection, _ids(keys, "group", {
        id for id in {id for port in logical_ports for id in port.groups} if not engine_has(f"group/{id}")})))
    if keys is not None:
        remote = {rule.remote_group for group in groups for rule in group.rules if rule.remote_group}
        groups += _groups(connection, sorted(remote - {group.id for group in groups}))
    named = {rule.remote_addresses for group in groups for rule in group.rules if rule.remote_addresses}
    sets = list(_addresses(connection, _ids(keys, "addresses", named)))
    outward = list(_routers(connection, _ids(keys, "router"), gateways))
    units: list[Unit] = [*sets, *logical_ports, *groups, *outward, *_networks(
        connection, _ids(keys, "network", {
            id for id in {port.network_id for port in logical_ports} if not engine_has(f"network/{id}")}))]
    return DesiredContent({unit_key(unit): unit for unit in units}, keys)


def _ids(keys: frozenset[str] | None, kind: str, besides: Iterable[str] = ()) -> list[str] | None:
    if keys is None:
        return None
    return sorted({key.partition("/")[2] for key in keys if key.startswith(f"{kind}/")}.union(besides))


def _id_condition(column: ColumnElement[Any], every: bool) -> ColumnElement[bool]:
    """Return an SQL condition on *column*: always true if *every* is true, otherwise true for the values in the SQL
    parameter ``ids``."""
    return true() if every else column.in_(bindparam("ids", expanding=True))


def _parts(ids: Sequence[str] | None) -> Iterator[tuple[bool, dict[str, Sequence[str]]]]:
    """Split *ids* into parts for several SQL statements. Yield (false, {"ids": part}) for each statement. If *ids* is
    ``None``, yield (true, {}): a single statement for all rows."""
    if ids is None:
        yield True, {}
    for at in range(0, len(ids or ()), MANY):
        yield False, {"ids": (ids or ())[at:at + MANY]}


def _with_subports(connection: Connection, ids: Sequence[str] | None) -> list[str] | None:
    """Return the ids of the ports *ids* and of all subports of these ports. A subport is on the same host as its parent
    port, so a move of the parent port also moves the subport. Return ``None``, which means all ports, if *ids* is
    ``None``."""
    if ids is None:
        return None
    subport_ids: set[str] = set()
    for _every, parameters in _parts(ids):
        subport_ids.update(connection.execute(_SUBPORTS, parameters).scalars())
    return sorted(subport_ids.union(ids))


def _columns_of_engine(table: Table) -> list[Column[Any]]:
    """Return the columns of *table* that a network engine needs: all except ``tags`` and ``profile``, which may be long
    and slow to decode."""
    return [column for column in table.c if column.name not in ("tags", "profile")]


@cache
def _on_engine(every: bool) -> Select[Any]:
    """Return the SQL statement that selects the ports that the engine makes, one row for each address. *every*: select
    all of them; otherwise those whose ids are in the parameter ``ids``."""
    return select(
        *_columns_of_engine(ports), *addresses.c["subnet_id", "ip_address"],
        networks.c.admin_state_up.label("network_up"),
        networks.c.qos_policy_id.label("network_policy"), *networks.c["dns_domain", "mtu"], subports.c.segmentation_id,
        *(parents.c[name].label(f"parent_{name}") for name in ("id", "host", "vnic_type", "device"))).join(
        networks, networks.c.id == ports.c.network_id).outerjoin(
        subports, subports.c.port_id == ports.c.id).outerjoin(trunks, trunks.c.id == subports.c.trunk_id).outerjoin(
        parents, parents.c.id == trunks.c.port_id).outerjoin(addresses, addresses.c.port_id == ports.c.id).where(
        networks.c.by_engine, ports.c.vnic_type.not_in(PAST_OVN),
        ports.c.device_owner != router_ports.FLOATING, _id_condition(ports.c.id, every)).order_by(
        addresses.c.subnet_id, addresses.c.number)


def _ports(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalPort]:
    for every, some in _parts(ids):
        rows: dict[str, RowMapping] = {}
        addresses_by_port: dict[str, list[tuple[str, str]]] = {}
        for row in connection.execute(_on_engine(every), some).mappings():
            port_addresses = addresses_by_port.setdefault(rows.setdefault(row["id"], row)["id"], [])
            if row["subnet_id"]:
                port_addresses.append((row["subnet_id"], row["ip_address"]))
        policies = qos.rules_of_policies(connection, {id for row in rows.values() if (id := _policy(row))})
        for id, port in rows.items():
            yield _port(port, addresses_by_port[id], policies.get(_policy(port) or "", ()))


def _policy(port: RowMapping) -> str | None:
    """Return the id of the QoS policy of a port or, if it has none, of its network. Return ``None`` if neither has a
    policy, or if the port belongs to the cloud itself, such as a router's interface."""
    if port["device_owner"].startswith(router_ports.OWN):
        return None
    policy_id: str | None = port["qos_policy_id"] or port["network_policy"]
    return policy_id


def _port(row: RowMapping, port_addresses: Sequence[tuple[str, str]], rules: Sequence[RowMapping]) -> LogicalPort:
    parent = row["parent_id"]
    # A subport moves when its parent has moved.
    bound = (row["parent_host"],) if parent else (row["host"], row["next_host"])
    above = {name: row[f"parent_{name}" if parent else name] for name in ("vnic_type", "device")}
    on_card, remote = above["vnic_type"] == REMOTE, virtual_functions.smartnic_device(above)
    places = () if on_card else tuple(dict.fromkeys(host for host in bound if host))
    function = None if parent or not remote else LogicalFunction(
        remote["pf_mac_address"], remote["vf_num"], row["mtu"])
    secure = row["port_security_enabled"]
    pairs = [(pair.get("mac_address") or row["mac_address"], pair["ip_address"]) for pair in row["pairs"]]
    return LogicalPort(
        row["id"], row["network_id"], row["mac_address"], tuple(port_addresses),
        row["admin_state_up"] and row["network_up"],
        secure, tuple(pairs), tuple(sorted(row["security_groups"])) if secure else (), places,
        row["arriving"], row["device_id"] if row["device_owner"].startswith(router_ports.OWN) else None,
        tuple(LogicalLimit(rule["direction"], rule["max_kbps"], rule["max_burst_kbps"]) for rule in rules
              if rule["kind"] == "bandwidth_limit"),
        next((rule["dscp_mark"] for rule in rules if rule["kind"] == "dscp_marking"), None),
        (row["dns_name"], f"{row['dns_name']}.{row['dns_domain']}".rstrip(".")) if row["dns_name"] and row[
            "dns_domain"] else (), parent, row["segmentation_id"], remote.get("card_serial_number", ""), function)


@cache
def _groups_and_rules(every: bool) -> Select[Any]:
    """Return the SQL statement that selects security groups, one row for each rule. *every*: select all groups;
    otherwise those whose ids are in the parameter ``ids``."""
    group_ids, rule = select(security_groups.c.id), security_group_rules.c
    return select(security_groups.c.id.label("group"), security_groups.c.stateful, security_group_rules).outerjoin(
        security_group_rules, and_(rule.security_group_id == security_groups.c.id, or_(
            rule.remote_group_id.is_(None), rule.remote_group_id.in_(group_ids)))).where(
        _id_condition(security_groups.c.id, every)).order_by(rule.id)


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
                _id_condition(address_groups.c.id, every)), some):
            yield LogicalAddresses(row.id, tuple(sorted(row.addresses)))


def _rule(row: Row[Any]) -> LogicalRule:
    return LogicalRule(row.id, row.direction, row.ethertype, row.protocol, row.port_range_min, row.port_range_max,
                       row.remote_ip_prefix, row.remote_group_id, row.remote_address_group_id)


@cache
def _networks_and_subnets(every: bool) -> Select[Any]:
    """Return the SQL statement that selects the networks that the engine makes, one row for each subnet. *every*:
    select all of them; otherwise those whose ids are in the parameter ``ids``."""
    return select(networks.c.id.label("network"), *networks.c["name", "mtu", "bridge", "segment", "dns_domain"],
                  *subnets.c["id", "cidr", "gateway_ip", "enable_dhcp", "dns_nameservers", "host_routes",
                             "ipv6_address_mode"]).outerjoin(
        subnets, subnets.c.network_id == networks.c.id).where(
        networks.c.by_engine, _id_condition(networks.c.id, every)).order_by(subnets.c.id)


def _networks(connection: Connection, ids: Sequence[str] | None) -> Iterator[LogicalNetwork]:
    for every, some in _parts(ids):
        rows_by_network: dict[str, Row[Any]] = {}
        subnets_by_network: dict[str, list[LogicalSubnet]] = {}
        for row in connection.execute(_networks_and_subnets(every), some):
            subnets_ = subnets_by_network.setdefault(rows_by_network.setdefault(row.network, row).network, [])
            if row.id:
                subnets_.append(LogicalSubnet(
                    row.id, row.cidr, row.gateway_ip, row.enable_dhcp, tuple(row.dns_nameservers),
                    tuple((route["destination"], route["nexthop"]) for route in row.host_routes),
                    row.ipv6_address_mode))
        for id, network in rows_by_network.items():
            yield LogicalNetwork(id, network.name, network.mtu, tuple(subnets_by_network[id]), network.bridge,
                                 network.segment, network.dns_domain.rstrip("."))


def _routers(connection: Connection, ids: Sequence[str] | None, gateways: Sequence[str]) -> Iterator[LogicalRouter]:
    for every, some in _parts(ids):
        router_rows = connection.execute(select(*_columns_of_engine(routers)).where(_id_condition(routers.c.id, every)),
                                         some).all()
        router_ids = [row.id for row in router_rows]
        ports_by_router: dict[str, list[RowMapping]] = {id: [] for id in router_ids}
        for port in router_ports.ports_of_routers(connection, router_ids) if router_ids else ():
            ports_by_router[port["device_id"]].append(port)
        reached: dict[str, list[LogicalTranslation]] = {id: [] for id in router_ids}
        for row in connection.execute(select(*_columns_of_engine(floating_ips), ports.c.mac_address).join(
                ports, ports.c.id == floating_ips.c.own_port_id).where(
                floating_ips.c.router_id.in_(router_ids), floating_ips.c.port_id.is_not(None)).order_by(
                floating_ips.c.id)) if router_ids else ():
            reached[row.router_id].append(LogicalTranslation(
                row.id, "floating", row.floating_ip_address, row.fixed_ip_address, row.port_id, row.mac_address))
        led = _forwardings(connection, router_ids) if router_ids else {}
        out = list(gateways) or (sorted(connection.execute(select(hosts.c.name)).scalars()) if router_ids else [])
        for router in router_rows:
            yield _router(router, ports_by_router[router.id], reached[router.id], out, led.get(router.id, ()))


def _forwardings(connection: Connection, router_ids: Sequence[str]) -> dict[str, list[LogicalForwarding]]:
    """Return {router id: port forwardings}. The forwardings of one floating IP and protocol are one
    ``LogicalForwarding``."""
    row = forwardings.c
    targets_by_address: dict[tuple[str, ...], list[tuple[int, str, int]]] = {}
    query = select(forwardings, *floating_ips.c["router_id", "floating_ip_address"]).join(
        floating_ips, floating_ips.c.id == row.floatingip_id).where(floating_ips.c.router_id.in_(router_ids))
    for forwarding in connection.execute(query.order_by(row.floatingip_id, row.protocol, row.external_port)):
        targets_by_address.setdefault((forwarding.router_id, forwarding.floatingip_id, forwarding.protocol,
                                       forwarding.floating_ip_address), []).append(
            (forwarding.external_port, forwarding.internal_ip_address, forwarding.internal_port))
    forwardings_by_router: dict[str, list[LogicalForwarding]] = {}
    for (router, floating, protocol, outside), targets in targets_by_address.items():
        forwardings_by_router.setdefault(router, []).append(LogicalForwarding(floating, protocol, outside,
                                                                              tuple(targets)))
    return forwardings_by_router


def _router(router: Row[Any], port_rows: Sequence[RowMapping], reached: Sequence[LogicalTranslation],
            out: Sequence[str], led: Sequence[LogicalForwarding]) -> LogicalRouter:
    gateway = [port_row for port_row in port_rows if port_row["device_owner"] == router_ports.GATEWAY]
    inside = [port_row for port_row in port_rows if port_row["device_owner"] == router_ports.INTERFACE]
    rows_by_port: dict[str, list[RowMapping]] = {}
    for port_row in port_rows:
        rows_by_port.setdefault(port_row["id"], []).append(port_row)
    interfaces = [_interface(rows) for rows in rows_by_port.values()]
    routes = [(route["destination"], route["nexthop"]) for route in router.routes]
    routes += [("::/0" if ":" in port_row["cidr"] else "0.0.0.0/0", port_row["gateway_ip"]) for port_row in gateway
               if port_row["gateway_ip"]]
    outside = [port_row for port_row in gateway if ":" not in port_row["cidr"]]
    translations = list(reached)
    if outside and router.enable_snat:  # IPv6 addresses are not translated
        scope = outside[0]["address_scope_id"]  # its own addresses are not translated
        translations += [LogicalTranslation(port_row["id"], "snat", outside[0]["ip_address"], port_row["cidr"])
                         for port_row in inside
                         if ":" not in port_row["cidr"] and (scope is None or port_row["address_scope_id"] != scope)]
    # The hosts that may have the gateway. They are drawn by a hash, so that a new host changes little.
    chosen = sorted(out, key=lambda host: sha256(f"{router.id} {host}".encode()).digest())[:GATEWAYS]
    return LogicalRouter(router.id, router.name, router.admin_state_up, tuple(interfaces), tuple(routes),
                         tuple(translations), tuple(chosen) if gateway else (), tuple(led))


def _interface(rows: Sequence[RowMapping]) -> LogicalInterface:
    """Return the router interface of one port. *rows*: the port's rows, one for each address."""
    first, gateway = rows[0], rows[0]["device_owner"] == router_ports.GATEWAY
    modes = [port_row["ipv6_ra_mode"] for port_row in rows if port_row["ipv6_ra_mode"] and not gateway]
    return LogicalInterface(first["id"], first["mac_address"], tuple(_with_prefix(port_row) for port_row in rows),
                            gateway, modes[0] if modes else None, first["mtu"] if modes else None)


def _with_prefix(port_row: RowMapping) -> str:
    return f"{port_row['ip_address']}/{port_row['cidr'].partition('/')[2]}"
