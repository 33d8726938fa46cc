# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of security groups for taps, in the table of family bridge of ``port_filter``.

A tap with groups has an element in two maps, which send its frames to the chains of its *set of groups*: taps with the
same groups share the chains. A chain has the rules of the groups, and drops all other frames. The addresses of a
group's ports are a set: a port that is added or removed changes elements, and no rule.

Answers need no rule. The kernel tracks connections: in bridges themselves if it has nf_conntrack_bridge, otherwise in
the IP layer, which sees bridged packets when br_netfilter is on. Both set the mark ``ANSWER`` on packets that are
answers. In the original direction of a connection each packet needs a rule, so removing a rule ends its connections.
With UDP and similar protocols an end may send answers without new requests: so the kernel is told to forget such
connections (``forbidden_flows``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from magnetar_agent.host.networks import GroupRule, Port, PortFilter, PortGroup
from magnetar_agent.metadata import ADDRESS, ADDRESS6
from magnetar_agent.metadata import PORT as METADATA_PORT

from .conntrack import Flow, FlowEnd

#: Bits of packets' marks: answers, and guests' requests to the metadata service.
ANSWER, METADATA_REQUEST = "0x20000000", "0x10000000"
#: Named counters of packets that no rule permits.
DROPS = {"egress": "group_egress", "ingress": "group_ingress"}
#: By direction: the map from tap to chain, and nftables's word for the tap's interface.
MAPS = {"egress": ("sends", "iifname"), "ingress": ("hears", "oifname")}
#: Priorities: the metadata service takes its packets at -300, conntrack begins at -200, br_netfilter runs at 0.
ASKING, FOLLOWED, JUDGED = -305, -150, 10
#: Protocols with ports, and those of ICMP.
WITH_PORTS, ICMP = frozenset((6, 17, 33, 132, 136)), frozenset((1, 58))
_ANSWERS = (f"ct state related meta mark set meta mark | {ANSWER}",
            f"ct direction reply ct state established meta mark set meta mark | {ANSWER}")
_NEIGHBOURS = "nd-neighbor-solicit, nd-neighbor-advert, mld-listener-query, mld-listener-report, mld2-listener-report"
Element = tuple[str, str]


def is_used(desired: PortFilter) -> bool:
    """Return whether any port in the filter *desired* has security groups."""
    return any(port.groups is not None for port in desired.ports)


def group_elements(desired: PortFilter) -> Iterator[Element]:
    """Yield pairs (name, element) of all elements in the nftables maps and sets for the security groups in *desired*.
    """
    for port in desired.ports:
        if port.groups is None:
            continue
        for direction, (name, _end) in MAPS.items():
            yield name, f'"{port.tap}" : goto {_chain(port.groups, direction)}'
        if port.resolver:
            yield "resolvers", f'"{port.tap}" . {port.resolver}'
    for group in desired.groups:
        for member in group.members:
            yield _members(group.id, ip_address(member).version), member


def group_sets(desired: PortFilter) -> dict[str, tuple[str, str]]:
    """Return ``{name: ("map" or "set", nftables type)}`` of the maps and sets for the security groups in *desired*."""
    named_sets = {"sends": ("map", "type ifname : verdict;"), "hears": ("map", "type ifname : verdict;"),
                  "resolvers": ("set", "type ifname . ipv4_addr;")} if is_used(desired) else {}
    for group in desired.groups:
        for version in (4, 6):
            named_sets[_members(group.id, version)] = ("set", f"type ipv{version}_addr;")
    return named_sets


def group_chains(desired: PortFilter) -> dict[str, tuple[str, ...]]:
    """Return ``{chain name: rules}`` of the nftables chains for security groups: two chains (ingress and egress) for
    each combination of groups that occurs on a port in *desired*."""
    groups_by_id = {group.id: group for group in desired.groups}
    return {_chain(groups, direction): tuple(_rules(groups_by_id, groups, direction))
            for groups in {port.groups for port in desired.ports if port.groups is not None} for direction in MAPS}


def fixed_chains(prefix: str, metadata: str, bridges_follow: bool) -> tuple[str, ...]:
    """Return the nftables chains of family bridge that are the same for all security groups. *prefix*: the prefix of
    tap names. *metadata*: prefix of the metadata service's devices. *bridges_follow*: whether the kernel tracks
    connections in bridges."""
    follow = (f"chain followed {{ type filter hook prerouting priority {FOLLOWED}; policy accept;", *_ANSWERS, "}")
    return (
        f"chain asking {{ type filter hook prerouting priority {ASKING}; policy accept;",
        *(f'iifname "{prefix}*" {family} daddr {address} tcp dport {METADATA_PORT} '
          f'meta mark set meta mark | {METADATA_REQUEST}' for family, address in (("ip", ADDRESS), ("ip6", ADDRESS6))),
        f'iifname "{metadata}*" meta mark set meta mark | {ANSWER}', "}",
        *(follow if bridges_follow else ()),
        f"chain sending {{ type filter hook prerouting priority {JUDGED}; policy accept;", "iifname vmap @sends", "}",
        f"chain hearing {{ type filter hook postrouting priority {JUDGED}; policy accept;", "oifname vmap @hears", "}",
        "chain usual {", "ether type { arp, 0x8035 } accept", "ether type != { ip, ip6 } drop",
        f"meta mark & {ANSWER} == {ANSWER} accept", f"icmpv6 type {{ {_NEIGHBOURS} }} accept", "}",
        "chain usual_egress {", "jump usual", f"meta mark & {METADATA_REQUEST} == {METADATA_REQUEST} accept",
        "udp sport 68 udp dport 67 accept", "udp sport 546 udp dport 547 accept",
        "icmpv6 type nd-router-solicit accept",
        "iifname . ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept", "}",
        "chain usual_ingress {", "jump usual", "udp sport 67 udp dport 68 accept", "udp sport 547 udp dport 546 accept",
        "icmpv6 type nd-router-advert accept", "}")


def following_chains() -> tuple[str, ...]:
    """Return the nftables chains of family inet that mark response packets of tracked connections."""
    return tuple(line for hook in ("prerouting", "output") for line in (
        f"chain followed_{hook} {{ type filter hook {hook} priority {FOLLOWED}; policy accept;", *_ANSWERS, "}"))


def group_change(table: str, loaded: PortFilter, desired: PortFilter) -> tuple[str, str]:
    """Return two nftables scripts that change the security groups in *table* from *loaded* to *desired*: the first adds
    sets and chains, and runs before the elements of sets change; the second removes sets and chains, and runs
    afterwards."""
    had, has, old, new = group_chains(loaded), group_chains(desired), group_sets(loaded), group_sets(desired)
    first = [f"add {kind} bridge {table} {name} {{ {type} }}" for name, (kind, type) in new.items() if name not in old]
    first += [f"add chain bridge {table} {name}" for name in has if name not in had]
    for name, rules in has.items():
        if rules != had.get(name):
            first += [f"flush chain bridge {table} {name}", *(f"add rule bridge {table} {name} {rule}"
                                                              for rule in rules)]
    last = [f"{verb} chain bridge {table} {name}" for verb in ("flush", "delete") for name in had if name not in has]
    last += [f"delete {kind} bridge {table} {name}" for name, (kind, _type) in old.items() if name not in new]
    return "".join(f"{line}\n" for line in first), "".join(f"{line}\n" for line in last)


def _chain(groups: Iterable[str], direction: str) -> str:
    return f"{direction}_{hashlib.sha256(' '.join(groups).encode()).hexdigest()[:16]}"


def _members(group: str, version: int) -> str:
    return f"members{version}_{group.replace('-', '')}"


def _rules(groups_by_id: Mapping[str, PortGroup], groups: Iterable[str], direction: str) -> Iterator[str]:
    yield f"jump usual_{direction}"
    yield from dict.fromkeys(_rule(rule) for id in groups if id in groups_by_id for rule in groups_by_id[id].rules
                             if rule.direction == direction and (rule.group is None or rule.group in groups_by_id))
    yield f"counter name {DROPS[direction]} drop"


def _rule(rule: GroupRule) -> str:
    family = "ip" if rule.version == 4 else "ip6"
    words = [f"ether type {family}"]
    remote = f"{family} {'saddr' if rule.direction == 'ingress' else 'daddr'}"
    if rule.group is not None:
        words.append(f"{remote} @{_members(rule.group, rule.version)}")
    elif rule.prefix is not None and ip_network(rule.prefix).prefixlen:
        words.append(f"{remote} {rule.prefix}")
    return " ".join([*words, *_protocol(rule), "accept"])


def _protocol(rule: GroupRule) -> Iterator[str]:
    if rule.protocol is None:
        return
    if rule.protocol in ICMP:
        protocol_name = "icmp" if rule.version == 4 else "icmpv6"
        yield f"meta l4proto {1 if rule.version == 4 else 58}"
        yield from (f"{protocol_name} {name} {value}" for name, value in (("type", rule.least), ("code", rule.most))
                    if value is not None)
        return
    yield f"meta l4proto {rule.protocol}"
    if rule.protocol in WITH_PORTS and rule.least is not None and rule.most is not None:
        yield f"th dport {rule.least}" if rule.least == rule.most else f"th dport {rule.least}-{rule.most}"


# Connections that no rule permits any more ---------------------------------------------------------------------------
_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network
#: Rules with their parsed networks, by direction and version.
_Parsed = dict[tuple[str, int], list[tuple[GroupRule, _Network | None]]]


def restricted_taps(loaded: PortFilter | None, desired: PortFilter) -> frozenset[str]:
    """Return the taps whose security groups permit less in *desired* than in *loaded*, because connections of these
    taps may have to end. If *loaded* is ``None`` (unknown), return all taps with security groups."""
    ports = [port for port in desired.ports if port.groups is not None]
    if loaded is None or not ports:
        return frozenset(port.tap for port in ports)
    had, old, new = ({port.tap: port for port in loaded.ports}, *(
        {group.id: group for group in port_filter.groups} for port_filter in (loaded, desired)))
    taps = {port.tap for port in desired.ports}
    gone_addresses = {address for port in loaded.ports if port.tap not in taps for address in port.addresses}
    fewer = {id for id, group in new.items() if id in old and old[id].members - group.members - gone_addresses}

    def less(old_groups: tuple[str, ...] | None, new_groups: tuple[str, ...]) -> bool:
        if old_groups is None:
            return True
        rules = _all_rules(old, old_groups)
        return bool(rules - _all_rules(new, new_groups)) or any(rule.group in fewer for rule in rules)

    groups = {port.tap: (had[port.tap].groups, port.groups or ()) for port in ports if port.tap in had}
    lesser = {pair for pair in set(groups.values()) if less(*pair)}  # few pairs, however many ports there are
    return frozenset(tap for tap, pair in groups.items() if pair in lesser)


def forbidden_flows(desired: PortFilter, taps: Collection[str], flows: Iterable[Flow]) -> Iterator[Flow]:
    """Yield the connections in *flows* that the filter *desired* does not permit. Each end of a connection is checked
    separately, with the ports that have the address of this end. A connection is forbidden if, at one end or both, some
    of these ports have a tap in *taps* and none permits the connection.

    If no port has the address of either end, other ports are checked together instead. These have an allowed address
    pair in CIDR form that contains one of the two addresses.
    """
    groups_by_id, rules = {group.id: group for group in desired.groups}, dict[tuple[str, ...], _Parsed]()
    owners, wide = _owners(desired.ports)

    def lets(port: Port, flow: Flow, side: FlowEnd, direction: str) -> bool:
        if port.groups is None:
            return True
        if port.groups not in rules:
            rules[port.groups] = _parsed(_all_rules(groups_by_id, port.groups))
        remote = ip_address(side.there)
        return _is_usual(port, flow, side, direction) or any(
            _fits(rule, prefix, flow, side, remote, groups_by_id)
            for rule, prefix in rules[port.groups].get((direction, remote.version), ()))

    for flow in flows:
        sides = (("egress", flow.sent), ("ingress", flow.heard))
        judges = [[(port, side, direction) for port in owners.get(side.here, ())] for direction, side in sides]
        if not any(judges):
            judges = [[(port, side, direction) for direction, side in sides for port in wide(side.here)]]
        if any(any(port.tap in taps for port, *_end in each) and not any(
                lets(port, flow, side, direction) for port, side, direction in each) for each in judges):
            yield flow


def _owners(ports: Iterable[Port]) -> tuple[Mapping[str, Collection[Port]], Callable[[str], Collection[Port]]]:
    """Return ``{address: ports with this address}``, and a function that returns, for an address, the ports with an
    allowed address pair in CIDR form that contains the address."""
    owners: dict[str, list[Port]] = {}
    wide: dict[tuple[int, int], dict[int, list[Port]]] = {}  # (version, host bits) to network number to ports
    for port in ports:
        for address in port.addresses:
            if "/" not in address:
                owners.setdefault(address, []).append(port)
                continue
            network = ip_network(address)
            bits = network.max_prefixlen - network.prefixlen
            wide.setdefault((network.version, bits), {}).setdefault(
                int(network.network_address) >> bits, []).append(port)

    def of(address_text: str) -> Collection[Port]:
        address = ip_address(address_text)
        return [port for (version, bits), ports_by_network in wide.items() if version == address.version
                for port in ports_by_network.get(int(address) >> bits, ())]

    return owners, of if wide else lambda _here: ()


def _all_rules(groups_by_id: Mapping[str, PortGroup], groups: Iterable[str]) -> frozenset[GroupRule]:
    return frozenset(rule for id in groups if id in groups_by_id for rule in groups_by_id[id].rules
                     if rule.group is None or rule.group in groups_by_id)


def _parsed(rules: Iterable[GroupRule]) -> _Parsed:
    """Return *rules* as ``{(direction, IP version): [(rule, network)]}``. *network* is the rule's prefix as an object
    (``None``: no prefix), so that prefixes are parsed only once."""
    parsed_rules: _Parsed = {}
    for rule in rules:
        parsed_rules.setdefault((rule.direction, rule.version), []).append(
            (rule, None if rule.prefix is None else ip_network(rule.prefix)))
    return parsed_rules


def _is_usual(port: Port, flow: Flow, side: FlowEnd, direction: str) -> bool:
    """Return whether *flow* is permitted without a rule: DHCP, or DNS requests to the host's resolver. *side*: the
    connection as *port* sees it. *direction*: egress or ingress."""
    ports = {"egress": (67, 547), "ingress": (68, 546)}[direction]
    return flow.protocol == 17 and (side.port in ports or (side.port == 53 and side.there == port.resolver))


def _fits(rule: GroupRule, prefix: _Network | None, flow: Flow, side: FlowEnd, remote: _Address,
          groups_by_id: Mapping[str, PortGroup]) -> bool:
    """Return whether *rule* permits *flow*. The caller has already compared direction and IP version.

    - *prefix*: the rule's network as an object; ``None`` for any.
    - *side*, *remote*: the connection as the port sees it, and the address of the other end.
    - *groups_by_id*: the security groups, for rules with a remote group."""
    protocol = rule.protocol
    if protocol in ICMP:
        protocol = 1 if rule.version == 4 else 58
    if protocol not in (None, flow.protocol):
        return False
    if rule.group is not None:
        if side.there not in groups_by_id[rule.group].members:
            return False
    elif prefix is not None and remote not in prefix:
        return False
    if protocol in ICMP:
        return rule.least in (None, side.port) and rule.most in (None, side.code)
    if protocol in WITH_PORTS and rule.least is not None and rule.most is not None:
        return rule.least <= side.port <= rule.most
    return True
