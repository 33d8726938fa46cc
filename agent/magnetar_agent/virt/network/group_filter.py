# SPDX-License-Identifier: GPL-3.0-or-later
"""What security groups let taps send and hear, in the table of family bridge of ``port_filter``.

A tap with groups has an element in two maps, which lead its frames to the chains of its *set of groups*: these are the
same for all taps with these groups. A chain has the rules of the groups, and drops what none of them lets pass. The
addresses of a group's ports are a set: a port that comes or goes changes elements, and no rule.

Answers need no rule. Connections are followed by the kernel: bridges of themselves where it has nf_conntrack_bridge,
else the IP layer, which sees bridged packets where br_netfilter is on. Both leave ``ANSWER`` in the packet's mark. In
the direction in which a connection began each packet needs a rule, so that one that goes ends what it let begin. By UDP
and the like somebody may answer without being asked again: such connections the kernel forgets (``ended``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from magnetar_agent.host.networks import GroupRule, Port, PortFilter, PortGroup
from magnetar_agent.metadata import ADDRESS, ADDRESS6
from magnetar_agent.metadata import PORT as METADATA_PORT

from .conntrack import Flow, FlowEnd

#: Bits of the marks of packets: answers, and what guests ask of the metadata service.
ANSWER, ASKED = "0x20000000", "0x10000000"
#: Named counters of what no rule lets pass.
DROPS = {"egress": "group_egress", "ingress": "group_ingress"}
#: By direction: the map from tap to chain, and what the tap is.
MAPS = {"egress": ("sends", "iifname"), "ingress": ("hears", "oifname")}
#: Priorities: the metadata service takes its packets at -300, conntrack begins at -200, br_netfilter looks at 0.
ASKING, FOLLOWED, JUDGED = -305, -150, 10
#: Protocols with ports, and those of ICMP.
WITH_PORTS, ICMP = frozenset((6, 17, 33, 132, 136)), frozenset((1, 58))
_ANSWERS = (f"ct state related meta mark set meta mark | {ANSWER}",
            f"ct direction reply ct state established meta mark set meta mark | {ANSWER}")
_NEIGHBOURS = "nd-neighbor-solicit, nd-neighbor-advert, mld-listener-query, mld-listener-report, mld2-listener-report"
Element = tuple[str, str]


def is_used(wanted: PortFilter) -> bool:
    """Whether a port has groups."""
    return any(port.groups is not None for port in wanted.ports)


def elements(wanted: PortFilter) -> Iterator[Element]:
    """(map or set, element) of all that has some."""
    for port in wanted.ports:
        if port.groups is None:
            continue
        for direction, (name, _end) in MAPS.items():
            yield name, f'"{port.tap}" : goto {_chain(port.groups, direction)}'
        if port.resolver:
            yield "resolvers", f'"{port.tap}" . {port.resolver}'
    for group in wanted.groups:
        for one in group.members:
            yield _members(group.id, ip_address(one).version), one


def sets(wanted: PortFilter) -> dict[str, tuple[str, str]]:
    """The maps and sets: name to what it is (map or set), and its type."""
    found = {"sends": ("map", "type ifname : verdict;"), "hears": ("map", "type ifname : verdict;"),
             "resolvers": ("set", "type ifname . ipv4_addr;")} if is_used(wanted) else {}
    for group in wanted.groups:
        for version in (4, 6):
            found[_members(group.id, version)] = ("set", f"type ipv{version}_addr;")
    return found


def chains(wanted: PortFilter) -> dict[str, tuple[str, ...]]:
    """The chains of all sets of groups that ports have: name to rules."""
    known = {group.id: group for group in wanted.groups}
    return {_chain(groups, direction): tuple(_rules(known, groups, direction))
            for groups in {port.groups for port in wanted.ports if port.groups is not None} for direction in MAPS}


def frame(prefix: str, metadata: str, bridges_follow: bool) -> tuple[str, ...]:
    """The chains that are the same whatever the groups say. *metadata*: how devices of the metadata service begin;
    *bridges_follow*: whether bridges follow connections of themselves."""
    follow = (f"chain followed {{ type filter hook prerouting priority {FOLLOWED}; policy accept;", *_ANSWERS, "}")
    return (
        f"chain asking {{ type filter hook prerouting priority {ASKING}; policy accept;",
        *(f'iifname "{prefix}*" {family} daddr {address} tcp dport {METADATA_PORT} meta mark set meta mark | {ASKED}'
          for family, address in (("ip", ADDRESS), ("ip6", ADDRESS6))),
        f'iifname "{metadata}*" meta mark set meta mark | {ANSWER}', "}",
        *(follow if bridges_follow else ()),
        f"chain sending {{ type filter hook prerouting priority {JUDGED}; policy accept;", "iifname vmap @sends", "}",
        f"chain hearing {{ type filter hook postrouting priority {JUDGED}; policy accept;", "oifname vmap @hears", "}",
        "chain usual {", "ether type { arp, 0x8035 } accept", "ether type != { ip, ip6 } drop",
        f"meta mark & {ANSWER} == {ANSWER} accept", f"icmpv6 type {{ {_NEIGHBOURS} }} accept", "}",
        "chain usual_egress {", "jump usual", f"meta mark & {ASKED} == {ASKED} accept",
        "udp sport 68 udp dport 67 accept", "udp sport 546 udp dport 547 accept",
        "icmpv6 type nd-router-solicit accept",
        "iifname . ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept", "}",
        "chain usual_ingress {", "jump usual", "udp sport 67 udp dport 68 accept", "udp sport 547 udp dport 546 accept",
        "icmpv6 type nd-router-advert accept", "}")


def following() -> tuple[str, ...]:
    """The chains of family inet: the IP layer follows connections of the host, and those that it is the router of."""
    return tuple(line for hook in ("prerouting", "output") for line in (
        f"chain followed_{hook} {{ type filter hook {hook} priority {FOLLOWED}; policy accept;", *_ANSWERS, "}"))


def change(table: str, before: PortFilter, wanted: PortFilter) -> tuple[str, str]:
    """What is told before the elements change, and what after: sets and chains that come, and those that go."""
    had, has, old, new = chains(before), chains(wanted), sets(before), sets(wanted)
    first = [f"add {kind} bridge {table} {name} {{ {type} }}" for name, (kind, type) in new.items() if name not in old]
    first += [f"add chain bridge {table} {name}" for name in has if name not in had]
    for name, rules in has.items():
        if rules != had.get(name):
            first += [f"flush chain bridge {table} {name}", *(f"add rule bridge {table} {name} {one}" for one in rules)]
    after = [f"{verb} chain bridge {table} {name}" for verb in ("flush", "delete") for name in had if name not in has]
    after += [f"delete {kind} bridge {table} {name}" for name, (kind, _type) in old.items() if name not in new]
    return "".join(f"{one}\n" for one in first), "".join(f"{one}\n" for one in after)


def _chain(groups: Iterable[str], direction: str) -> str:
    return f"{direction}_{hashlib.sha256(' '.join(groups).encode()).hexdigest()[:16]}"


def _members(group: str, version: int) -> str:
    return f"members{version}_{group.replace('-', '')}"


def _rules(known: Mapping[str, PortGroup], groups: Iterable[str], direction: str) -> Iterator[str]:
    yield f"jump usual_{direction}"
    yield from dict.fromkeys(_rule(rule) for id in groups if id in known for rule in known[id].rules
                             if rule.direction == direction and (rule.group is None or rule.group in known))
    yield f"counter name {DROPS[direction]} drop"


def _rule(rule: GroupRule) -> str:
    family = "ip" if rule.version == 4 else "ip6"
    words = [f"ether type {family}"]
    there = f"{family} {'saddr' if rule.direction == 'ingress' else 'daddr'}"
    if rule.group is not None:
        words.append(f"{there} @{_members(rule.group, rule.version)}")
    elif rule.prefix is not None and ip_network(rule.prefix).prefixlen:
        words.append(f"{there} {rule.prefix}")
    return " ".join([*words, *_protocol(rule), "accept"])


def _protocol(rule: GroupRule) -> Iterator[str]:
    if rule.protocol is None:
        return
    if rule.protocol in ICMP:
        word = "icmp" if rule.version == 4 else "icmpv6"
        yield f"meta l4proto {1 if rule.version == 4 else 58}"
        yield from (f"{word} {name} {value}" for name, value in (("type", rule.least), ("code", rule.most))
                    if value is not None)
        return
    yield f"meta l4proto {rule.protocol}"
    if rule.protocol in WITH_PORTS and rule.least is not None and rule.most is not None:
        yield f"th dport {rule.least}" if rule.least == rule.most else f"th dport {rule.least}-{rule.most}"


# Connections that no rule lets begin any more ------------------------------------------------------------------------
_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network
#: Rules with the networks that they name, by direction and version.
_Parsed = dict[tuple[str, int], list[tuple[GroupRule, _Network | None]]]


def lessened(before: PortFilter | None, wanted: PortFilter) -> frozenset[str]:
    """The taps with groups that are let do less than *before* (``None``: nobody knows what was before)."""
    ports = [port for port in wanted.ports if port.groups is not None]
    if before is None or not ports:
        return frozenset(port.tap for port in ports)
    had, old, new = ({port.tap: port for port in before.ports}, *(
        {group.id: group for group in one.groups} for one in (before, wanted)))
    taps = {port.tap for port in wanted.ports}
    gone = {address for port in before.ports if port.tap not in taps for address in port.addresses}
    fewer = {id for id, group in new.items() if id in old and old[id].members - group.members - gone}

    def less(was: tuple[str, ...] | None, now: tuple[str, ...]) -> bool:
        if was is None:
            return True
        rules = _all_rules(old, was)
        return bool(rules - _all_rules(new, now)) or any(rule.group in fewer for rule in rules)

    groups = {port.tap: (had[port.tap].groups, port.groups or ()) for port in ports if port.tap in had}
    lesser = {pair for pair in set(groups.values()) if less(*pair)}  # of few, however many ports there are
    return frozenset(tap for tap, pair in groups.items() if pair in lesser)


def ended(wanted: PortFilter, taps: Collection[str], flows: Iterable[Flow]) -> Iterator[Flow]:
    """Those of *flows* that began at one of these *taps*, or came to one, and that nothing lets pass now. Ports whose
    addresses nobody knows have none.

    Where neither end is a port's own, it may be of any port that may send from a network with one of them, in either
    direction: it ends where none of them lets it pass. That ends nothing of others, whose rules let them."""
    known, rules = {group.id: group for group in wanted.groups}, dict[tuple[str, ...], _Parsed]()
    own, wide = _owners(wanted.ports)

    def lets(port: Port, flow: Flow, side: FlowEnd, direction: str) -> bool:
        if port.groups is None:
            return True
        if port.groups not in rules:
            rules[port.groups] = _parsed(_all_rules(known, port.groups))
        there = ip_address(side.there)
        return _is_usual(port, flow, side, direction) or any(
            _fits(rule, prefix, flow, side, there, known)
            for rule, prefix in rules[port.groups].get((direction, there.version), ()))

    for flow in flows:
        sides = (("egress", flow.sent), ("ingress", flow.heard))
        judges = [[(port, side, direction) for port in own.get(side.here, ())] for direction, side in sides]
        if not any(judges):
            judges = [[(port, side, direction) for direction, side in sides for port in wide(side.here)]]
        if any(any(port.tap in taps for port, *_end in each) and not any(
                lets(port, flow, side, direction) for port, side, direction in each) for each in judges):
            yield flow


def _owners(ports: Iterable[Port]) -> tuple[Mapping[str, Collection[Port]], Callable[[str], Collection[Port]]]:
    """The ports that have an address; and what tells those that may send from a network with one."""
    own: dict[str, list[Port]] = {}
    wide: dict[tuple[int, int], dict[int, list[Port]]] = {}  # version and bits that differ in it: by the others
    for port in ports:
        for address in port.addresses:
            if "/" not in address:
                own.setdefault(address, []).append(port)
                continue
            network = ip_network(address)
            bits = network.max_prefixlen - network.prefixlen
            wide.setdefault((network.version, bits), {}).setdefault(
                int(network.network_address) >> bits, []).append(port)

    def of(here: str) -> Collection[Port]:
        address = ip_address(here)
        return [port for (version, bits), found in wide.items() if version == address.version
                for port in found.get(int(address) >> bits, ())]

    return own, of if wide else lambda _here: ()


def _all_rules(known: Mapping[str, PortGroup], groups: Iterable[str]) -> frozenset[GroupRule]:
    return frozenset(rule for id in groups if id in known for rule in known[id].rules
                     if rule.group is None or rule.group in known)


def _parsed(rules: Iterable[GroupRule]) -> _Parsed:
    """They are read once, however many connections a guest has made."""
    found: _Parsed = {}
    for rule in rules:
        found.setdefault((rule.direction, rule.version), []).append(
            (rule, None if rule.prefix is None else ip_network(rule.prefix)))
    return found


def _is_usual(port: Port, flow: Flow, side: FlowEnd, direction: str) -> bool:
    """Whether it is what chains let pass without a rule: DHCP, and the host's DNS."""
    ports = {"egress": (67, 547), "ingress": (68, 546)}[direction]
    return flow.protocol == 17 and (side.port in ports or (side.port == 53 and side.there == port.resolver))


def _fits(rule: GroupRule, prefix: _Network | None, flow: Flow, side: FlowEnd, there: _Address,
          known: Mapping[str, PortGroup]) -> bool:
    """Whether *rule*, of the connection's direction and version, lets it begin."""
    protocol = rule.protocol
    if protocol in ICMP:
        protocol = 1 if rule.version == 4 else 58
    if protocol not in (None, flow.protocol):
        return False
    if rule.group is not None:
        if side.there not in known[rule.group].members:
            return False
    elif prefix is not None and there not in prefix:
        return False
    if protocol in ICMP:
        return rule.least in (None, side.port) and rule.most in (None, side.code)
    if protocol in WITH_PORTS and rule.least is not None and rule.most is not None:
        return rule.least <= side.port <= rule.most
    return True
