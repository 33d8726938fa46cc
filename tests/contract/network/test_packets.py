# SPDX-License-Identifier: GPL-3.0-or-later
"""What OVN does with packets, as ``ovn-trace`` and the flows of ovn-northd say it."""

from __future__ import annotations

from dataclasses import replace

from magnetar_control.services.network.engine.engine import (
    LogicalAddresses,
    LogicalGroup,
    LogicalInterface,
    LogicalLimit,
    LogicalNetwork,
    LogicalPort,
    LogicalRouter,
    LogicalRule,
    LogicalSubnet,
)
from magnetar_control.services.network.ovn.ovn_rows import DROP

from .units import EXT, FORWARDING, GROUP, LAN, ONE, OUT, ROUTER, SIDES, SIX, TWO, all_of, both, eventually, port, some


def frame(sender: int, receiver: int, rest: str, address: str | None = None) -> str:
    """A frame from one port to another, as ``ovn-trace`` takes it."""
    return (f'inport == "p{sender}" && eth.src == 02:00:00:00:00:{sender:02x} && '
            f"eth.dst == 02:00:00:00:00:{receiver:02x} && ip4.src == {address or f'10.1.0.{10 + sender}'} && "
            f"ip4.dst == 10.1.0.{10 + receiver} && ip.ttl == 64 && {rest}")


def test_packets_pass_where_a_rule_lets_them_and_nowhere_else(ovn):
    inner = LogicalGroup("g-2", rules=(
        LogicalRule("r3", "ingress", "IPv4", "udp", 53, 60, remote_group="g-1"),
        LogicalRule("r4", "ingress", "IPv4", "icmp", 8, prefix="10.1.0.11/32"),
        LogicalRule("r5", "ingress", "IPv4", "tcp", 443, 443, remote_addresses="a-1")))
    office = LogicalAddresses("a-1", ("10.1.0.12/32", "2001:db8::/64"))
    eventually(lambda: ovn.engine.repair(all_of(LAN, GROUP, office, inner, ONE, TWO, port(3, "g-2"), port(4),
                                                port(5, secure=False))))
    for sender, receiver, rest, passes in (
            (1, 2, "tcp && tcp.dst == 22", True), (1, 2, "tcp && tcp.dst == 23", False),
            (1, 2, "udp && udp.dst == 22", False),
            (2, 3, "udp && udp.dst == 60", True), (2, 3, "udp && udp.dst == 61", False),
            (1, 3, "icmp4.type == 8 && icmp4.code == 0", True), (2, 3, "icmp4.type == 8 && icmp4.code == 0", False),
            (2, 3, "tcp && tcp.dst == 443", True), (1, 3, "tcp && tcp.dst == 443", False),
            (3, 2, "tcp && tcp.dst == 22", False),  # no rule lets g-2 send
            (1, 4, "tcp && tcp.dst == 22", False), (4, 1, "tcp && tcp.dst == 22", False),  # no group, nothing passes
            (5, 1, "tcp && tcp.dst == 22", True), (5, 1, "tcp && tcp.dst == 80", False),
            (1, 5, "tcp && tcp.dst == 80", True),
            (1, 5, "udp && udp.src == 67 && udp.dst == 68", False)):  # no guest answers DHCP
        case = frame(sender, receiver, rest)
        assert ovn.central.passes("mag-n1", case, f"p{receiver}") == passes, case
    # A false address never leaves the port; without port security it does.
    assert not ovn.central.passes("mag-n1", frame(1, 5, "tcp && tcp.dst == 80", "10.1.0.99"), "p5")
    assert ovn.central.passes("mag-n1", frame(5, 2, "tcp && tcp.dst == 22", "10.1.0.99"), "p2")
    ovn.engine.repair(some(replace(GROUP, rules=(OUT,))))
    assert not ovn.central.passes("mag-n1", frame(1, 2, "tcp && tcp.dst == 22"), "p2")


def test_answers_pass_by_the_state_of_a_group_or_by_a_rule(ovn):
    """Of a stateless group answers need a rule too; of one with state none."""
    asking, answer = LogicalGroup("g-1", rules=(OUT,)), frame(2, 1, "tcp && tcp.src == 80 && tcp.dst == 40000")
    every = replace(OUT, id="r8")
    eventually(lambda: ovn.engine.repair(all_of(LAN, asking, LogicalGroup("g-2", rules=(every,)), ONE, port(2, "g-2"))))
    assert ovn.central.passes("mag-n1", answer, "p1", "est,rpl est,rpl")
    assert not ovn.central.passes("mag-n1", answer, "p1", "est,rpl new")
    ovn.engine.repair(some(replace(asking, stateful=False)))
    untracked = "est,rpl new"  # at p1 nobody noted what it has asked
    assert not ovn.central.passes("mag-n1", answer, "p1", untracked)
    back = LogicalRule("r9", "ingress", "IPv4", "tcp", 40000, 40000)
    ovn.engine.repair(some(replace(asking, stateful=False, rules=(OUT, back))))
    assert ovn.central.passes("mag-n1", answer, "p1", untracked)


def test_what_a_port_sends_and_receives_is_measured_and_marked(ovn):
    limits = (LogicalLimit("egress", 1000, 100), LogicalLimit("ingress", 2000))
    eventually(lambda: ovn.engine.repair(all_of(LAN, replace(ONE, limits=limits, dscp=46), TWO)))
    ovn.central.nb("--wait=sb", "sync")
    flows = [line for line in ovn.central.sb("lflow-list", "mag-n1").splitlines() if "qos" in line]
    for side, action in (("inport", "set_meter(1000, 100)"), ("outport", "set_meter(2000)"),
                         ("inport", "ip.dscp = 46")):
        assert any(f'{side} == "p1"' in line and action in line for line in flows), flows
    assert not any('"p2"' in line for line in flows)


def test_names_are_found_and_open_nothing_between_guests(ovn):
    named, every = replace(LAN, domain="lab.example"), LogicalGroup("g-1", rules=(OUT,))
    web = replace(ONE, names=("web", "web.lab.example"), addresses=(("s1", "10.1.0.11"), ("s6", "fd00:1::11")))
    eventually(lambda: ovn.engine.repair(all_of(named, every, web, TWO, port(5, secure=False))))
    ovn.central.nb("--wait=sb", "sync")
    records = ovn.central.sb("--bare", "--columns=records", "list", "DNS")
    for said in ('web="10.1.0.11 fd00:1::11"', 'web.lab.example="10.1.0.11 fd00:1::11"',
                 '11.0.1.10.in-addr.arpa=web.lab.example'):
        assert said.replace('"', "") in records.replace('"', ""), records
    assert "dns_lookup()" in ovn.central.sb("lflow-list", "mag-n1")
    request = ('inport == "p2" && eth.src == 02:00:00:00:00:02 && eth.dst == ff:ff:ff:ff:ff:ff && '
               "ip4.src == 0.0.0.0 && ip4.dst == 255.255.255.255 && ip.ttl == 64 && udp.src == 68 && udp.dst == 67")
    assert 'domain_name = "lab.example"' in ovn.central.traced("mag-n1", request)
    # OVN lets what comes from port 53 pass to all ports of such a switch: guests begin nothing from there.
    assert not ovn.central.passes("mag-n1", frame(1, 2, "udp && udp.src == 53 && udp.dst == 9"), "p2")
    assert ovn.central.passes("mag-n1", frame(1, 2, "udp && udp.src == 53 && udp.dst == 9"), "p2", "est,rpl est,rpl")
    ovn.engine.repair(some(LAN, ONE))
    ovn.central.nb("--wait=sb", "sync")
    assert "dns_lookup()" not in ovn.central.sb("lflow-list", "mag-n1")


def test_dhcp_answers_a_guest_whatever_its_groups(ovn):
    eventually(lambda: ovn.engine.repair(all_of(LAN, port(4))))
    request = ('inport == "p4" && eth.src == 02:00:00:00:00:04 && eth.dst == ff:ff:ff:ff:ff:ff && '
               "ip4.src == 0.0.0.0 && ip4.dst == 255.255.255.255 && ip.ttl == 64 && udp.src == 68 && udp.dst == 67")
    assert "put_dhcp_opts(offerip = 10.1.0.14" in ovn.central.traced("mag-n1", request)


def test_routers_lead_from_network_to_network_and_out(ovn):
    far = LogicalNetwork("n2", "far", 1442, (LogicalSubnet("s2", "10.2.0.0/24", "10.2.0.1"),))
    there = LogicalPort("p7", "n2", "02:00:00:00:00:07", (("s2", "10.2.0.7"),), secure=False)
    second = LogicalInterface("i2", "02:00:00:00:01:02", ("10.2.0.1/24",))
    router = replace(ROUTER, interfaces=(*ROUTER.interfaces, second), forwardings=(FORWARDING,))
    provider = LogicalPort("gw", "n9", "02:00:00:00:09:01", (("s9", "192.0.2.1"),), secure=False)
    side = LogicalPort("i2", "n2", "02:00:00:00:01:02", (("s2", "10.2.0.1"),), secure=False, router="r1")
    ovn.central.sb("chassis-add", "h1", "geneve", "127.0.0.1")
    units = (LAN, EXT, far, GROUP, ONE, TWO, there, router, *SIDES, side, provider)
    eventually(lambda: ovn.engine.repair(all_of(*units)))
    first = ('inport == "p1" && eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:01:01 && '
             "ip4.src == 10.1.0.11 && ip.ttl == 64 && ")
    assert ovn.central.passes("mag-n1", first + "ip4.dst == 10.2.0.7 && tcp && tcp.dst == 80", "p7")
    way = ovn.central.traced("mag-n1", first + "ip4.dst == 198.51.100.1 && tcp && tcp.dst == 80")
    assert "reg0 = 192.0.2.1" in way
    assert "(192.0.2.9);" in way  # source translated
    entry = ('inport == "gw" && eth.src == 02:00:00:00:09:01 && eth.dst == 02:00:00:00:01:09 && ip.ttl == 64 && '
             "ip4.src == 192.0.2.1 && ip4.dst == 192.0.2.11 && tcp && tcp.dst == ")
    for outer, inside in (("2222", "10.1.0.11:22"), ("80", "10.1.0.12:8080")):
        assert f"backends={inside}" in ovn.central.traced("mag-n9", entry + outer)
    assert "backends" not in ovn.central.traced("mag-n9", entry + "81")
    rows = ovn.central.nb("lr-nat-list", "mag-r1")
    assert "192.0.2.10" in rows
    assert "p2" in rows


def test_ipv6_of_a_port_is_its_own(ovn):
    """What it sends from, and what it says of neighbours; DHCPv6 answers it, and it answers nobody's."""
    web = LogicalGroup("g-1", rules=(LogicalRule("r1", "ingress", "IPv6", "tcp", 80, 80, prefix="fd00:1::/64"),
                                     LogicalRule("r2", "egress", "IPv6")))
    eventually(lambda: ovn.engine.repair(all_of(SIX, web, both(1, "g-1"), both(2, "g-1"), both(4))))

    def sent(rest: str, source: str = "fd00:1::11", target: str = "fd00:1::12", mac: str = "02:00:00:00:00:02") -> str:
        return (f'inport == "p1" && eth.src == 02:00:00:00:00:01 && eth.dst == {mac} && ip6.src == {source} && '
                f"ip6.dst == {target} && ip.ttl == 255 && {rest}")

    def passes(frame: str) -> bool:
        return ovn.central.passes("mag-n1", frame, "p2")

    assert passes(sent("tcp && tcp.dst == 80"))
    assert not passes(sent("tcp && tcp.dst == 81"))
    assert not passes(sent("tcp && tcp.dst == 80", source="fd00:1::99"))
    said = "icmp6.type == 136 && icmp6.code == 0 && nd.tll == 02:00:00:00:00:01 && nd.target == "
    everybody = {"source": "fd00:1::11", "target": "ff02::1", "mac": "33:33:00:00:00:01"}
    assert passes(sent(said + "fd00:1::11", **everybody))
    assert not passes(sent(said + "fd00:1::12", **everybody))  # a neighbour's address
    assert not passes(sent("udp && udp.src == 547 && udp.dst == 546"))  # no guest answers DHCPv6
    request = ('inport == "p4" && eth.src == 02:00:00:00:00:04 && eth.dst == 33:33:00:01:00:02 && '
               "ip6.src == fe80::ff:fe00:4 && ip6.dst == ff02::1:2 && ip.ttl == 1 && udp.src == 546 && udp.dst == 547")
    assert "put_dhcpv6_opts(ia_addr = fd00:1::14" in ovn.central.traced("mag-n1", request)  # whatever its groups


def test_no_rule_stops_an_advertisement(ovn):
    """Which `docs/explanation/ovn-security.md` says, and why hosts drop them (``test_advertisements.py``): where this
    fails, an OVN has come that lets a rule of ``ovn_rows.permanent_rows`` do it."""
    eventually(lambda: ovn.engine.repair(all_of(SIX, GROUP, both(1, "g-1"), both(2, "g-1"))))
    for words in (("acl-add", DROP, "from-lport", "32767", f"inport == @{DROP} && nd_ra", "drop"),
                  ("--apply-after-lb", "acl-add", DROP, "from-lport", "32767", f"inport == @{DROP} && nd_ra", "drop"),
                  ("acl-add", DROP, "to-lport", "32767", f"outport == @{DROP} && nd_ra", "drop")):
        ovn.central.nb("--type=port-group", *words)
    said = ('inport == "p1" && eth.src == 02:00:00:00:00:01 && eth.dst == 33:33:00:00:00:01 && ip6.dst == ff02::1 && '
            "ip6.src == {} && ip.ttl == 255 && icmp6.type == 134 && icmp6.code == 0")
    assert ovn.central.passes("mag-n1", said.format("fe80::ff:fe00:1"), "p2")
    flows = [line for line in ovn.central.sb("lflow-list", "mag-n1").splitlines() if "nd_ra" in line and "_acl" in line]
    dropped = ("/* drop */", "reg8[17] = 1")  # by OVN 23.03, and by 25.03
    assert [sum(any(word in line for word in dropped) for line in flows) > 2,  # all of the rules are there, below
            sum("priority=65532" in line for line in flows)] == [True, 3], flows


def test_a_router_advertises_and_leads_between_subnets_of_ipv6(ovn):
    far = LogicalNetwork("n2", "far", 1442, (LogicalSubnet("s2", "fd00:9::/64", "fd00:9::1", mode="slaac"),))
    there = LogicalPort("p7", "n2", "02:00:00:00:00:07", (("s2", "fd00:9::7"),), secure=False)
    router = LogicalRouter("r1", "r1", interfaces=(
        LogicalInterface("i1", "02:00:00:00:01:01", ("fd00:1::1/64",), advertises="dhcpv6-stateful", mtu=1442),
        LogicalInterface("i2", "02:00:00:00:01:02", ("fd00:9::1/64",), advertises="slaac", mtu=1442)))
    sides = (LogicalPort("i1", "n1", "02:00:00:00:01:01", (("s6", "fd00:1::1"),), secure=False, router="r1"),
             LogicalPort("i2", "n2", "02:00:00:00:01:02", (("s2", "fd00:9::1"),), secure=False, router="r1"))
    open_ = LogicalGroup("g-1", rules=(LogicalRule("r2", "egress", "IPv6"),))
    units = (SIX, far, open_, both(1, "g-1"), there, router, *sides)
    eventually(lambda: ovn.engine.repair(all_of(*units)))
    assert ovn.engine.differences(all_of(*units)) == []
    first = 'inport == "p1" && eth.src == 02:00:00:00:00:01 && ip.ttl == 64 && '
    assert ovn.central.passes("mag-n1", first + "eth.dst == 02:00:00:00:01:01 && ip6.src == fd00:1::11 && "
                                                "ip6.dst == fd00:9::7 && tcp && tcp.dst == 80", "p7")
    flows = ovn.central.sb("lflow-list", "mag-r1")  # ovn-trace knows no answers to solicitations
    assert 'put_nd_ra_opts(addr_mode = "dhcpv6_stateful"' in flows
    assert 'put_nd_ra_opts(addr_mode = "slaac"' in flows
    assert flows.count("mtu = 1442") == 2
