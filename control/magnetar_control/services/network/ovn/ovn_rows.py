# SPDX-License-Identifier: GPL-3.0-or-later
"""The conversion of units (networks, ports, groups, routers) to rows of OVN's northbound database (ovn-nb(5))."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from magnetar_control.services.network.engine.engine import (
    LogicalAddresses,
    LogicalGroup,
    LogicalInterface,
    LogicalNetwork,
    LogicalPort,
    LogicalRouter,
    LogicalRule,
    LogicalSubnet,
    LogicalTranslation,
    Unit,
    unit_key,
)
from magnetar_control.services.network.security.group_rules import NUMBERS
from magnetar_core.router_advertisements import DSCP, TYPE

#: Seconds of a DHCP lease.
LEASE = 43200
#: The addresses of the metadata service of the host's agent, for guests.
METADATA, METADATA6 = "169.254.169.254", "fe80::a9fe:a9fe"
#: The DHCP server address of a subnet without a gateway: no guest has it.
NOBODY = METADATA
#: The next hop of a route to the link itself.
ON_LINK = "0.0.0.0"  # noqa: S104 (of DHCP, RFC 3442)
#: The port group of all ports with port security, which drops packets that no rule lets through; and the key of its
#: unit.
DROP, DROP_UNIT = "mag_drop", "group/drop"
#: Priorities of ACLs: rules come before the drop, and never let a guest answer DHCP.
FALL, LET, GUARD = 1001, 1002, 1003
#: Priorities of QoS rows: of those that mark a packet, the highest counts.
MEASURE, MARK = 2000, 3000
SWITCH, PORT, GROUP, ACL, DHCP = "Logical_Switch", "Logical_Switch_Port", "Port_Group", "ACL", "DHCP_Options"
ROUTER, ROUTER_PORT, NAT = "Logical_Router", "Logical_Router_Port", "NAT"
ROUTE, CHASSIS, QOS = "Logical_Router_Static_Route", "Gateway_Chassis", "QoS"
BALANCER, SET, NAMES = "Load_Balancer", "Address_Set", "DNS"
TABLES = (SWITCH, PORT, GROUP, ACL, DHCP, ROUTER, ROUTER_PORT, NAT, ROUTE, CHASSIS, QOS, BALANCER, SET, NAMES)
#: Columns that refer to rows which belong to the referring row: table, column, and table of those rows.
HOLDERS = ((SWITCH, "ports", PORT), (SWITCH, "acls", ACL), (SWITCH, "qos_rules", QOS),
           (SWITCH, "dns_records", NAMES),
           (GROUP, "ports", PORT), (GROUP, "acls", ACL),
           (ROUTER, "ports", ROUTER_PORT), (ROUTER, "nat", NAT), (ROUTER, "static_routes", ROUTE),
           (ROUTER, "load_balancer", BALANCER),
           (ROUTER_PORT, "gateway_chassis", CHASSIS))
#: The option of a port that names its chassis.
CHASSIS_OF = "requested-chassis"
#: The only protocols with ports in OVN's match language.
WORDS = {6: "tcp", 17: "udp", 132: "sctp"}


@dataclass(frozen=True)
class NorthRow:
    """A desired row of the northbound database. *unit*: the key of the network, port or other object that needs the
    row. *key*: unique in the table. *columns*: {column: value}; sets are sorted tuples. *refs*: for each column that
    refers to another row (``REFERRED``): the key of that row, or ``None``. *inside*: (table, key, column) of each
    column that must refer to this row. *kept*: the name of an option that keeps its value in an existing row."""

    unit: str
    table: str
    key: str
    columns: Mapping[str, Any]
    refs: Mapping[str, str | None] = field(default_factory=dict)
    inside: tuple[tuple[str, str, str], ...] = ()
    kept: str | None = None


#: Columns that refer to one row, and the table of that row.
REFERRED = {"dhcpv4_options": DHCP, "dhcpv6_options": DHCP}


def rows_of_unit(unit: Unit) -> Iterator[NorthRow]:
    """Yield the rows of the northbound database that *unit*, a network, port, group or router, needs."""
    if isinstance(unit, LogicalNetwork):
        yield from _network(unit)
    elif isinstance(unit, LogicalPort):
        yield _port(unit)
        yield from _qos(unit)
        yield from _names(unit)
    elif isinstance(unit, LogicalGroup):
        yield from _group(unit)
    elif isinstance(unit, LogicalAddresses):
        for version in (4, 6):  # a match has one version
            yield NorthRow(unit_key(unit), SET, f"{unit.id} {version}", {
                "name": set_name(unit.id, version),
                "addresses": tuple(sorted(address for address in unit.addresses if ip_network(address).version
                                          == version))})
    else:
        yield from _router(unit)


def permanent_rows() -> Iterator[NorthRow]:
    """Yield the rows that every northbound database needs: the port group that drops all packets that no rule allows,
    and its ACLs."""
    yield NorthRow(DROP_UNIT, GROUP, "drop", {"name": DROP})
    for key, direction, priority, match in (
            ("drop out", "from-lport", FALL, f"inport == @{DROP} && ip"),
            ("drop in", "to-lport", FALL, f"outport == @{DROP} && ip"),
            ("drop dhcp", "from-lport", GUARD, f"inport == @{DROP} && ip4 && udp.src == 67 && udp.dst == 68"),
            # The agent takes it off the tap. If Open vSwitch hears it too, it is dropped.
            ("drop metadata", "from-lport", GUARD,
             f"inport == @{DROP} && (ip4.dst == {METADATA} || ip6.dst == {METADATA6}) && tcp"),
            ("drop dhcp6", "from-lport", GUARD, f"inport == @{DROP} && ip6 && udp.src == 547 && udp.dst == 546")):
        yield _acl(DROP_UNIT, key, direction, priority, match, "drop", (GROUP, "drop", "acls"))


def group_name(id: str) -> str:
    """Return the name of OVN's port group for the security group *id*. OVN allows no dashes in the name."""
    return f"mag_{id.replace('-', '_')}"


def set_name(id: str, version: int) -> str:
    """Return the name of OVN's address set for the addresses of the address group *id* with this IP *version*."""
    return f"mag_ag_{id.replace('-', '_')}_ip{version}"


def mac_of(*words: str) -> str:
    """Return a MAC address derived from *words*: the same for the same words, and outside the range of the ports'
    random MAC addresses."""
    digest = hashlib.sha256(" ".join(words).encode()).digest()
    return ":".join(("fa", "16", "3f", *(f"{byte:02x}" for byte in digest[:3])))


def _network(unit: LogicalNetwork) -> Iterator[NorthRow]:
    key = unit_key(unit)
    yield NorthRow(key, SWITCH, unit.id, {"name": f"mag-{unit.id}", "other_config": {"mcast_snoop": "false"}})
    if unit.physical is not None:
        yield NorthRow(key, PORT, f"{unit.id} localnet", {
            "name": f"mag-{unit.id}-localnet", "type": "localnet", "addresses": ("unknown",),
            "options": {"network_name": unit.physical},
            "tag": () if unit.vlan is None else (unit.vlan,)},
            inside=((SWITCH, unit.id, "ports"),))
    yield NorthRow(key, QOS, f"{unit.id} advertisements", {
        "priority": MARK, "direction": "from-lport", "bandwidth": {}, "action": {"dscp": DSCP},
        "match": f"inport == @{DROP} && icmp6.type == {TYPE}"}, inside=((SWITCH, unit.id, "qos_rules"),))
    if unit.domain:
        # Packets from port 53 pass to all ports of a switch with names (ovn-northd(8), ls_out_acl at 34000). Therefore
        # guests with port security start nothing from that port. Their answers to other guests' packets pass before
        # this rule, except answers of a guest with a stateless security group: OVN does not track its connections.
        yield _acl(key, f"{unit.id} names", "from-lport", GUARD, f"inport == @{DROP} && udp.src == 53", "drop",
                   (SWITCH, unit.id, "acls"))
    for subnet in unit.subnets:
        if subnet.dhcp and ":" in subnet.cidr:
            yield from _by_dhcpv6(unit, subnet)
        elif subnet.dhcp:
            yield NorthRow(key, DHCP, subnet.id, {"cidr": subnet.cidr, "options": _dhcp(unit, subnet)})
            # The request passes before all rules, to the server only.
            match = (f"inport == @{DROP} && ip4.dst == {{255.255.255.255, {_server(subnet)}}} && "
                     "udp.src == 68 && udp.dst == 67")
            yield _acl(key, f"{subnet.id} dhcp", "from-lport", LET, match, "allow", (SWITCH, unit.id, "acls"))


def _by_dhcpv6(unit: LogicalNetwork, subnet: LogicalSubnet) -> Iterator[NorthRow]:
    """Yield the rows that a *subnet* of the network *unit* needs for DHCPv6: its options (ovn-nb(5)), and the ACL that
    allows requests to the DHCP server. A subnet with SLAAC or without an address mode needs none."""
    if subnet.mode not in ("dhcpv6-stateful", "dhcpv6-stateless"):
        return
    key, options = unit_key(unit), {"server_id": mac_of("dhcp", unit.id)}
    if subnet.mode == "dhcpv6-stateless":
        options["dhcpv6_stateless"] = "true"
    if subnet.dns:
        options["dns_server"] = f"{{{', '.join(subnet.dns)}}}"
    if unit.domain:
        options["domain_search"] = f'"{unit.domain}"'
    yield NorthRow(key, DHCP, subnet.id, {"cidr": subnet.cidr, "options": options})
    match = f"inport == @{DROP} && ip6.dst == ff02::1:2 && udp.src == 546 && udp.dst == 547"
    yield _acl(key, f"{subnet.id} dhcp", "from-lport", LET, match, "allow", (SWITCH, unit.id, "acls"))


def _server(subnet: LogicalSubnet) -> str:
    return subnet.gateway or NOBODY


def _dhcp(network: LogicalNetwork, subnet: LogicalSubnet) -> dict[str, str]:
    """Return the DHCPv4 options of a subnet (ovn-nb(5), "DHCPv4 options"). The default route is in the router option
    and also among the classless routes (option 121), because clients that get classless routes ignore the router option
    (RFC 3442). The route to the metadata service has no next hop, because guests reach the service directly on their
    network."""
    options = {"server_id": _server(subnet), "server_mac": mac_of("dhcp", network.id), "lease_time": str(LEASE),
               "mtu": str(network.mtu)}
    if subnet.gateway:
        options["router"] = subnet.gateway
    if subnet.dns:
        options["dns_server"] = f"{{{', '.join(subnet.dns)}}}"
    if network.domain:
        options["domain_name"] = f'"{network.domain}"'
    routes = [(f"{METADATA}/32", ON_LINK), *(route for route in subnet.routes if route[0] != f"{METADATA}/32"),
              *([("0.0.0.0/0", subnet.gateway)] if subnet.gateway else ())]
    options["classless_static_route"] = f"{{{', '.join(f'{to},{by}' for to, by in routes)}}}"
    return options


def _port(unit: LogicalPort) -> NorthRow:
    ips = " ".join(address for _subnet, address in unit.addresses)
    columns: dict[str, Any] = {"name": unit.id, "enabled": (unit.enabled,), "type": "", "port_security": (),
                               "parent_name": () if unit.parent is None else (unit.parent,),
                               "tag": () if unit.vlan is None else (unit.vlan,)}
    inside = [(SWITCH, unit.network_id, "ports")]
    options: dict[str, str] = {}
    if unit.router is not None:
        columns.update(type="router", addresses=("router",))
        options = {"router-port": f"mag-{unit.id}", "nat-addresses": "router"}
        return NorthRow(unit_key(unit), PORT, unit.id, {**columns, "options": options}, inside=tuple(inside))
    own_addresses = f"{unit.mac} {ips}".strip()
    if unit.secure:
        columns.update(addresses=(own_addresses,), port_security=_port_security(own_addresses, unit))
        inside += [(GROUP, "drop", "ports"), *((GROUP, id, "ports") for id in unit.groups)]
    else:
        columns["addresses"] = tuple(sorted((own_addresses, "unknown")))
    if unit.hosts:
        options[CHASSIS_OF] = ",".join(unit.hosts)
    if unit.arriving and len(unit.hosts or ()) > 1:
        options["activation-strategy"] = "rarp"
    if unit.function is not None:  # plugged in there by ovn-controller (OVN-VIF, plug "representor")
        options |= {"vif-plug-type": "representor", "vif-plug-mtu-request": str(unit.function.mtu),
                    "vif-plug:representor:pf-mac": unit.function.parent_mac,
                    "vif-plug:representor:vf-num": str(unit.function.number)}
    refs: dict[str, str | None] = dict.fromkeys(REFERRED)
    for subnet, address in reversed(unit.addresses):  # the first of each version counts
        refs["dhcpv6_options" if ":" in address else "dhcpv4_options"] = subnet
    return NorthRow(unit_key(unit), PORT, unit.id, {**columns, "options": options}, refs, tuple(inside),
                    CHASSIS_OF if unit.hosts is None else None)


def _qos(unit: LogicalPort) -> Iterator[NorthRow]:
    """Yield the QoS rows of a port (ovn-nb(5), QoS): its bandwidth limits and its DSCP mark. Rows for outgoing packets
    act where the packets enter the switch, rows for incoming packets where the packets leave the switch."""
    rows: list[tuple[str, str, dict[str, int], dict[str, int]]] = []
    for limit in unit.limits:
        burst = {"burst": limit.burst} if limit.burst else {}
        rows.append((f"{unit.id} {limit.direction}", limit.direction, {"rate": limit.kbps, **burst}, {}))
    if unit.dscp is not None:
        rows.append((f"{unit.id} dscp", "egress", {}, {"dscp": unit.dscp}))
    for key, direction, bandwidth, action in rows:
        out = direction == "egress"
        yield NorthRow(unit_key(unit), QOS, key, {
            "priority": MEASURE, "direction": "from-lport" if out else "to-lport", "bandwidth": bandwidth,
            "action": action, "match": f'{"inport" if out else "outport"} == "{unit.id}"'},
            inside=((SWITCH, unit.network_id, "qos_rules"),))


def _names(unit: LogicalPort) -> Iterator[NorthRow]:
    """Yield the row with the DNS records of a port (ovn-nb(5), DNS): from each name to the addresses, and from each
    address to the name. Yield nothing for a port without names."""
    if not unit.names or not unit.addresses:
        return
    port_addresses = [address for _subnet, address in unit.addresses]
    yield NorthRow(unit_key(unit), NAMES, f"{unit.id} names", {"records": {
        **dict.fromkeys(unit.names, " ".join(port_addresses)),
        **{ip_address(address).reverse_pointer: unit.names[-1] for address in port_addresses}}},
        inside=((SWITCH, unit.network_id, "dns_records"),))


def _port_security(own_addresses: str, unit: LogicalPort) -> tuple[str, ...]:
    """Return the column ``port_security``: each MAC that the port may send from, with its addresses. *own_addresses*:
    the text with the port's MAC and fixed addresses."""
    addresses_by_mac = {unit.mac: own_addresses}
    for mac, address in unit.pairs:
        addresses_by_mac[mac] = f"{addresses_by_mac.get(mac, mac)} {address}"
    return tuple(sorted(addresses_by_mac.values()))


def _group(unit: LogicalGroup) -> Iterator[NorthRow]:
    yield NorthRow(unit_key(unit), GROUP, unit.id, {"name": group_name(unit.id)})
    action = "allow-related" if unit.stateful else "allow-stateless"
    for rule in unit.rules:
        yield _acl(unit_key(unit), rule.id, "to-lport" if rule.direction == "ingress" else "from-lport", LET,
                   rule_match(group_name(unit.id), rule), action, (GROUP, unit.id, "acls"))


def _acl(unit: str, key: str, direction: str, priority: int, match: str, action: str,
         inside: tuple[str, str, str]) -> NorthRow:
    return NorthRow(unit, ACL, key, {"direction": direction, "priority": priority, "match": match, "action": action,
                                     "log": False}, inside=(inside,))


def rule_match(group: str, rule: LogicalRule) -> str:
    """Return the match expression of an ACL for *rule* (ovn-sb(5), Logical_Flow) that applies to the ports of the port
    group *group*."""
    inward, six = rule.direction == "ingress", rule.ethertype == "IPv6"
    words = [f"{'outport' if inward else 'inport'} == @{group}", "ip6" if six else "ip4"]
    remote_field = f"{words[-1]}.{'src' if inward else 'dst'}"
    if rule.remote_group:
        words.append(f"{remote_field} == ${group_name(rule.remote_group)}_{words[1]}")
    elif rule.remote_addresses:
        words.append(f"{remote_field} == ${set_name(rule.remote_addresses, 6 if six else 4)}")
    elif rule.prefix and ip_network(rule.prefix).prefixlen:
        words.append(f"{remote_field} == {rule.prefix}")
    return " && ".join([*words, *_protocol(rule, six)])


def _protocol(rule: LogicalRule, six: bool) -> list[str]:
    if rule.protocol is None:
        return []
    number = NUMBERS[rule.protocol] if rule.protocol in NUMBERS else int(rule.protocol)
    if number in (1, 58):
        protocol = "icmp6" if six else "icmp4"
        return [protocol, *(f"{protocol}.{name} == {value}" for name,
                            value in (("type", rule.least), ("code", rule.most))
                            if value is not None)]
    if number not in WORDS:
        return [f"ip.proto == {number}"]
    protocol = WORDS[number]
    if rule.least is None or rule.most is None:
        return [protocol]
    if rule.least == rule.most:
        return [protocol, f"{protocol}.dst == {rule.least}"]
    return [protocol, f"{protocol}.dst >= {rule.least}", f"{protocol}.dst <= {rule.most}"]


def _router(unit: LogicalRouter) -> Iterator[NorthRow]:
    key = unit_key(unit)
    yield NorthRow(key, ROUTER, unit.id, {"name": f"mag-{unit.id}", "enabled": (unit.enabled,), "options": {
        # The router asks for a neighbour's address when it first sends to it, and keeps no others.
        "always_learn_from_arp_request": "false", "dynamic_neigh_routers": "true"}})
    for interface in unit.interfaces:
        yield from _interface(unit, interface)
    for to, by in unit.routes:
        yield NorthRow(key, ROUTE, f"{unit.id} {to} {by}", {"ip_prefix": to, "nexthop": by},
                       inside=((ROUTER, unit.id, "static_routes"),))
    for nat in unit.translations:
        yield _translation(unit, nat)
    for led in unit.forwardings:  # a load balancer of one server per port (ovn-nb(5), Load_Balancer)
        yield NorthRow(key, BALANCER, f"{led.id} {led.protocol}", {
            "name": f"mag-{led.id}-{led.protocol}", "protocol": (led.protocol,),
            "vips": {f"{led.outside}:{port}": f"{address}:{inner}" for port, address, inner in led.targets}},
            inside=((ROUTER, unit.id, "load_balancer"),))


def _interface(unit: LogicalRouter, interface: LogicalInterface) -> Iterator[NorthRow]:
    # Router advertisements (ovn-nb(5), ipv6_ra_configs).
    ra_configs = {"address_mode": interface.advertises.replace("-", "_"), "send_periodic": "true",
                  **({"mtu": str(interface.mtu)} if interface.mtu else {})} if interface.advertises else {}
    yield NorthRow(unit_key(unit), ROUTER_PORT, interface.port_id, {
        "name": f"mag-{interface.port_id}", "mac": interface.mac, "ipv6_ra_configs": ra_configs,
        "networks": tuple(sorted(str(ip_interface(each)) for each in interface.networks))},
        inside=((ROUTER, unit.id, "ports"),))
    for at, host in enumerate(unit.chassis if interface.gateway else ()):
        yield NorthRow(unit_key(unit), CHASSIS, f"{interface.port_id} {host}", {
            "name": f"mag-{interface.port_id}_{host}", "chassis_name": host, "priority": 1000 - at},
            inside=((ROUTER_PORT, interface.port_id, "gateway_chassis"),))


def _translation(unit: LogicalRouter, nat: LogicalTranslation) -> NorthRow:
    columns: dict[str, Any] = {"type": "snat" if nat.kind == "snat" else "dnat_and_snat", "external_ip": nat.outside,
                               "logical_ip": nat.inside, "logical_port": (), "external_mac": ()}
    if nat.port_id and nat.mac:
        columns.update(logical_port=(nat.port_id,), external_mac=(nat.mac,))
    return NorthRow(unit_key(unit), NAT, nat.id, columns, inside=((ROUTER, unit.id, "nat"),))
