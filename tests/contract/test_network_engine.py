# SPDX-License-Identifier: GPL-3.0-or-later
"""What engines of networks promise: the fake one, and OVN's northbound database with ovn-northd beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.services.network.engine import (
    Incomplete,
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
    NetworkEngine,
    Unit,
    Wanted,
    key_of,
)
from magnetar_control.services.network.fake_engine import FakeEngine
from magnetar_control.services.network.ovn import OvnEngine
from magnetar_control.services.network.ovn_changes import Northbound
from magnetar_control.services.network.southbound import Southbound
from magnetar_core.errors import Unavailable
from tests.northbound import SHARE, LabCentral, missing
from tests.ports import free_port
from tests.unit.agent.pki import Pki

LAN = LogicalNetwork("n1", "lan", 1442, (LogicalSubnet("s1", "10.1.0.0/24", "10.1.0.1"),))
SSH = LogicalRule("r1", "ingress", "IPv4", "tcp", 22, 22)
OUT = LogicalRule("r2", "egress", "IPv4")
GROUP = LogicalGroup("g-1", rules=(SSH, OUT))


def port(number: int, *groups: str, **values: Any) -> LogicalPort:
    """The port ``p1`` and the like, 10.1.0.11 and the like."""
    return LogicalPort(f"p{number}", "n1", f"02:00:00:00:00:{number:02x}", (("s1", f"10.1.0.{10 + number}"),),
                       groups=groups, **values)


EXT = LogicalNetwork("n9", "ext", 1500, (LogicalSubnet("s9", "192.0.2.0/24", "192.0.2.1", dhcp=False),), "ext")
ROUTER = LogicalRouter(
    "r1", "r1", interfaces=(LogicalInterface("i1", "02:00:00:00:01:01", ("10.1.0.1/24",)),
                            LogicalInterface("i9", "02:00:00:00:01:09", ("192.0.2.9/24",), gateway=True)),
    routes=(("0.0.0.0/0", "192.0.2.1"),), chassis=("h1", "h2"),
    translations=(LogicalTranslation("t1", "snat", "192.0.2.9", "10.1.0.0/24"),
                  LogicalTranslation("t2", "floating", "192.0.2.10", "10.1.0.12", "p2", "02:00:00:00:01:0a")))
SIDES = (LogicalPort("i1", "n1", "02:00:00:00:01:01", (("s1", "10.1.0.1"),), secure=False, router="r1"),
         LogicalPort("i9", "n9", "02:00:00:00:01:09", (("s9", "192.0.2.9"),), secure=False, router="r1"))
FORWARDING = LogicalForwarding("t3", "tcp", "192.0.2.11", ((2222, "10.1.0.11", 22), (80, "10.1.0.12", 8080)))
ONE, TWO = port(1, "g-1"), port(2, "g-1")


def all_of(*units: Unit) -> Wanted:
    """These, and nothing else."""
    return Wanted({key_of(unit): unit for unit in units})


def some(*units: Unit, gone: tuple[str, ...] = ()) -> Wanted:
    """These, whatever else there is; and no more those of the keys *gone*."""
    return Wanted({key_of(unit): unit for unit in units}, frozenset({*map(key_of, units), *gone}))


def eventually(look: Callable[[], Any]) -> Any:
    """What *look* returns when that is true; ``Unavailable`` is waited for."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if found := look():
                return found
        except Unavailable:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


class FakeCentral:
    """A place for ``FakeEngine``, as ``OvnCentral`` is one."""

    def __init__(self) -> None:
        self.engine: Any = FakeEngine()

    def lose(self) -> None:
        self.engine.lose()

    def smart_nic(self, chassis: str, serial: str) -> None:
        """A SmartNIC says that it is there."""
        self.engine.cards[serial] = chassis

    def stop(self) -> None:
        pass


class OvnCentral:
    """OVN's processes, and an engine on them."""

    def __init__(self, folder: Path) -> None:
        self.central = LabCentral(folder).start()
        self.engine: Any = OvnEngine(self.central.url, south=self.central.south)

    def lose(self) -> None:
        """The northbound database is made anew."""
        self.central.end("nb")
        (self.central.folder / "nb.db").unlink()
        self.central.begin("nb")

    def smart_nic(self, chassis: str, serial: str) -> None:
        """As its ovn-controller does."""
        self.central.sb("chassis-add", chassis, "geneve", "192.0.2.1")
        self.central.sb("set", "Chassis", chassis,
                        f'other_config:ovn-cms-options="enable-chassis-as-gw,card-serial-number={serial}"')

    def stop(self) -> None:
        self.engine.close()
        self.central.stop()


@pytest.fixture(params=["fake", "ovn"])
def place(request: Any, tmp_path_factory: Any) -> Iterator[FakeCentral | OvnCentral]:
    if request.param == "ovn" and missing():
        pytest.skip(missing())
    made = FakeCentral() if request.param == "fake" else OvnCentral(tmp_path_factory.mktemp("ovn"))
    try:
        made.engine.claim()
        eventually(made.engine.leads)
        yield made
    finally:
        made.stop()


@pytest.fixture
def engine(place: Any) -> NetworkEngine:
    return place.engine


def test_what_is_written_is_there_and_the_same_again_changes_nothing(engine):
    assert not engine.knows_all()
    wanted = all_of(LAN, GROUP, ONE, TWO)
    number = eventually(lambda: engine.repair(wanted))
    assert engine.knows_all()
    assert engine.differences(wanted) == []
    assert engine.repair(wanted) >= number
    many = [port(at, "g-1") for at in range(3, 103)]
    engine.repair(some(*many))  # one transaction
    assert engine.differences(all_of(LAN, GROUP, ONE, TWO, *many)) == []


def test_each_change_is_a_difference_of_its_unit_until_it_is_repaired(engine):
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE)))
    for changed in (replace(LAN, mtu=1300), replace(LAN, domain="lab.example"), replace(LAN, subnets=()),
                    replace(GROUP, rules=(SSH,)),
                    replace(GROUP, rules=()), replace(ONE, groups=()), replace(ONE, secure=False),
                    replace(ONE, limits=(LogicalLimit("egress", 1000, 100), LogicalLimit("ingress", 500)), dscp=46),
                    replace(ONE, limits=(LogicalLimit("egress", 2000),), dscp=0),
                    replace(ONE, names=("web", "web.lab.example")), replace(ONE, names=("db", "db.lab.example")),
                    replace(ONE, parent="p2", vlan=7), replace(ONE, parent="p2", vlan=8),
                    replace(ONE, hosts=("h1", "h2"), arriving=True), replace(ONE, enabled=False), ONE, GROUP, LAN):
        assert {one.unit for one in engine.differences(some(changed))} == {key_of(changed)}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []


def test_a_unit_that_is_not_wanted_goes_and_others_stay(engine):
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE, TWO)))
    engine.repair(some(gone=("port/p2",)))
    assert engine.differences(all_of(LAN, GROUP, ONE)) == []
    engine.repair(all_of(LAN))
    assert {one.unit for one in engine.differences(all_of(LAN, GROUP, ONE))} == {"group/g-1", "port/p1"}


def test_who_waits_for_the_hosts_goes_on_when_they_have_followed(engine):
    number = eventually(lambda: engine.repair(all_of(LAN)))
    assert engine.reached(number, 60)  # where there are no hosts, all have
    assert not engine.reached(number + 1, 0.1)
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(engine.reached, number, 60)
        later = engine.repair(all_of(LAN, GROUP, ONE))
        assert waits.result() and engine.reached(later, 60)


def test_addresses_of_rules_change_and_go(engine):
    named = replace(GROUP, rules=(replace(SSH, remote_addresses="a-1"), OUT))
    office = LogicalAddresses("a-1", ("192.0.2.0/24", "2001:db8::/64"))
    eventually(lambda: engine.repair(all_of(LAN, office, named, ONE)))
    for changed in (replace(office, addresses=()), replace(office, addresses=("198.51.100.7/32",)), office):
        assert {one.unit for one in engine.differences(some(changed))} == {"addresses/a-1"}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []
    engine.repair(all_of(LAN, GROUP, ONE))
    assert engine.differences(all_of(LAN, GROUP, ONE)) == []


def test_a_router_changes_and_goes(engine):
    eventually(lambda: engine.repair(all_of(LAN, EXT, GROUP, ONE, TWO, ROUTER, *SIDES)))
    assert engine.differences(all_of(LAN, EXT, GROUP, ONE, TWO, ROUTER, *SIDES)) == []
    for changed in (replace(ROUTER, routes=()), replace(ROUTER, translations=ROUTER.translations[:1]),
                    replace(ROUTER, forwardings=(FORWARDING,)),
                    replace(ROUTER, forwardings=(replace(FORWARDING, targets=FORWARDING.targets[:1]),)),
                    replace(ROUTER, chassis=("h2", "h3")), replace(ROUTER, enabled=False),
                    replace(ROUTER, interfaces=ROUTER.interfaces[:1]), ROUTER):
        assert {one.unit for one in engine.differences(some(changed))} == {"router/r1"}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []
    engine.repair(some(gone=("router/r1", "port/i1", "port/i9")))
    assert engine.differences(all_of(LAN, EXT, GROUP, ONE, TWO)) == []


def test_a_port_without_its_network_is_refused(engine):
    eventually(lambda: engine.repair(all_of()))
    with pytest.raises(Incomplete):
        engine.repair(some(ONE))


def test_what_was_lost_is_known_to_be_lost(place, engine):
    wanted = all_of(LAN, GROUP, ONE)
    eventually(lambda: engine.repair(wanted))
    place.lose()
    eventually(lambda: engine.leads() and not engine.knows_all())
    eventually(lambda: engine.repair(wanted))
    assert engine.differences(wanted) == []


@pytest.fixture
def ovn(tmp_path_factory: Any) -> Iterator[OvnCentral]:
    if missing():
        pytest.skip(missing())
    made = OvnCentral(tmp_path_factory.mktemp("ovn"))
    try:
        made.engine.claim()
        eventually(made.engine.leads)
        yield made
    finally:
        made.stop()


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


def test_what_a_port_sends_and_receives_is_measured_and_marked(ovn):
    limits = (LogicalLimit("egress", 1000, 100), LogicalLimit("ingress", 2000))
    eventually(lambda: ovn.engine.repair(all_of(LAN, replace(ONE, limits=limits, dscp=46), TWO)))
    ovn.central.nb("--wait=sb", "sync")
    flows = [line for line in ovn.central.sb("lflow-list", "mag-n1").splitlines() if "qos" in line]
    for port, action in (("inport", "set_meter(1000, 100)"), ("outport", "set_meter(2000)"),
                         ("inport", "ip.dscp = 46")):
        assert any(f'{port} == "p1"' in line and action in line for line in flows), flows
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
    assert ovn.central.passes("mag-n1", frame(1, 2, "udp && udp.src == 53 && udp.dst == 9"), "p2", "est,rpl")
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


SIX = LogicalNetwork("n1", "lan", 1442, (
    LogicalSubnet("s1", "10.1.0.0/24", "10.1.0.1"),
    LogicalSubnet("s6", "fd00:1::/64", "fd00:1::1", dns=("fd00::53",), mode="dhcpv6-stateful"),
    LogicalSubnet("s7", "fd00:2::/64", "fd00:2::1", mode="slaac")))


def both(number: int, *groups: str) -> LogicalPort:
    """As ``port``, with fd00:1::11 and the like."""
    return replace(port(number, *groups), addresses=(("s1", f"10.1.0.{10 + number}"),
                                                     ("s6", f"fd00:1::{10 + number}")))


def test_the_mode_of_a_subnet_changes_and_a_port_loses_its_address(engine):
    eventually(lambda: engine.repair(all_of(SIX, GROUP, both(1, "g-1"))))
    assert engine.differences(all_of(SIX, GROUP, both(1, "g-1"))) == []
    stateless = replace(SIX.subnets[1], mode="dhcpv6-stateless")
    for changed in (replace(SIX, subnets=(SIX.subnets[0], stateless)), port(1, "g-1"), both(1, "g-1"), SIX):
        assert {one.unit for one in engine.differences(some(changed))} == {key_of(changed)}
        engine.repair(some(changed))
        assert engine.differences(some(changed)) == []


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


def test_the_chassis_of_a_smart_nic(place, engine):
    assert engine.knows_cards and engine.chassis_of("AB12") is None
    place.smart_nic("dpu1", "AB12")
    assert eventually(lambda: engine.chassis_of("AB12")) == "dpu1"
    assert engine.chassis_of("AB1") is None


def test_a_port_of_a_smart_nic_is_on_its_chassis(ovn):
    """And on none while nobody says where the card is, which is a difference then."""
    there = replace(ONE, card="AB12", function=LogicalFunction("02:00:00:00:00:0a", 3, 1442))
    eventually(lambda: ovn.engine.repair(all_of(LAN, GROUP, there, TWO)))
    plug = {"vif-plug-type": "representor", "vif-plug-mtu-request": "1442",
            "vif-plug:representor:pf-mac": "02:00:00:00:00:0a", "vif-plug:representor:vf-num": "3"}

    def options() -> Any:
        row = next(one for one in ovn.engine._connected().idl.tables["Logical_Switch_Port"].rows.values()
                   if one.name == "p1")
        return dict(row.options)

    assert eventually(options) == plug
    assert [one.text for one in ovn.engine.differences(all_of(LAN, GROUP, there, TWO))] == [
        "port p1: no chassis has card-serial-number=AB12"]
    ovn.smart_nic("dpu1", "AB12")
    eventually(lambda: ovn.engine.chassis_of("AB12"))
    ovn.engine.repair(all_of(LAN, GROUP, there, TWO))
    assert eventually(lambda: "requested-chassis" in options() and options()) == {**plug, "requested-chassis": "dpu1"}
    assert ovn.engine.differences(all_of(LAN, GROUP, there, TWO)) == []
    ovn.central.nb("--wait=sb", "sync")
    assert ovn.central.sb("--bare", "--columns=requested_chassis", "find", "Port_Binding", "logical_port=p1").strip()
    ovn.engine.repair(some(ONE))
    assert eventually(lambda: not options())


def test_what_the_southbound_database_told_is_known_while_it_is_away(ovn):
    ovn.smart_nic("dpu1", "AB12")
    eventually(lambda: ovn.engine.chassis_of("AB12"))
    ovn.central.end("sb")
    assert ovn.engine.chassis_of("AB12") == "dpu1"
    alone = OvnEngine(ovn.central.url, south=ovn.central.south, patience=1.0)
    with pytest.raises(Unavailable, match="ovn_southbound"):
        alone.chassis_of("AB12")
    alone.close()
    assert not OvnEngine(ovn.central.url).knows_cards


def test_a_southbound_cluster_that_begins_anew(tmp_path):
    """It counts its changes from the beginning, and what it has is not old for that."""
    central = LabCentral(tmp_path / "ovn")
    file, alone = central.folder / "sb.db", central.folder / "alone.db"
    member = f"unix:{central.folder}/sb.raft"
    south = Southbound(central.south, 10.0)
    try:
        central._run("ovsdb-tool", "create-cluster", str(file), str(SHARE / "ovn-sb.ovsschema"), member)
        central.begin("sb")
        for number in range(5):
            central.sb("chassis-add", f"dpu{number}", "geneve", f"192.0.2.{number}", "--", "set", "Chassis",
                       f"dpu{number}", f"other_config:ovn-cms-options=card-serial-number=AB{number}")
        eventually(lambda: south.chassis_of("AB4"))
        central.end("sb")
        central._run("ovsdb-tool", "cluster-to-standalone", str(alone), str(file))
        file.unlink()
        central._run("ovsdb-tool", "create-cluster", str(file), str(alone), member)
        central.begin("sb")
        central.sb("set", "Chassis", "dpu4", "other_config:ovn-cms-options=card-serial-number=CD4")
        assert eventually(lambda: south.chassis_of("CD4")) == "dpu4"
    finally:
        south.close()
        central.stop()


def test_what_others_made_is_left_alone(ovn):
    ovn.central.nb("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port", "--", "pg-add", "their_group",
                   "their-port")
    eventually(lambda: ovn.engine.repair(all_of(LAN, ONE)))
    ovn.central.nb("lsp-add", "mag-n1", "guest-of-theirs")
    assert ovn.engine.differences(all_of(LAN, ONE)) == []
    ovn.engine.repair(all_of(LAN))
    assert {"their-port", "guest-of-theirs"} <= set(ovn.central.nb("--bare", "--columns=name", "find",
                                                                   "Logical_Switch_Port").split())


def test_one_process_writes_and_another_goes_on_when_it_ends(ovn):
    second = OvnEngine(ovn.central.url)
    try:
        second.claim()
        assert not second.leads()
        eventually(lambda: ovn.engine.repair(all_of(LAN)))
        with pytest.raises(Unavailable):
            second.repair(all_of())
        assert second.differences(all_of(LAN)) == []  # nobody needs the right to write to look
        ovn.engine.close()
        eventually(second.leads)
        assert not second.knows_all()
        second.repair(all_of(LAN, ONE))
        assert second.differences(all_of(LAN, ONE)) == []
    finally:
        second.close()


def test_by_tls_with_certificates_of_both_sides(tmp_path):
    if missing():
        pytest.skip(missing())
    pki, port = Pki(tmp_path / "pki"), free_port()
    (certificate, key), (own, own_key) = pki.issue("127.0.0.1"), pki.issue("control")
    central = LabCentral(tmp_path / "ovn", f"--remote=pssl:{port}:127.0.0.1", f"--private-key={key}",
                         f"--certificate={certificate}", f"--ca-cert={pki.ca}").start()
    # Where nobody listens, the next is tried.
    engine = OvnEngine(f"ssl:127.0.0.1:{free_port()},ssl:127.0.0.1:{port}", own_key, own, pki.ca)
    try:
        engine.claim()
        eventually(engine.leads)
        eventually(lambda: engine.repair(all_of(LAN)))
        assert engine.differences(all_of(LAN)) == []
        central.end("nb")
        assert eventually(lambda: _refusal(engine.leads))
        central.begin("nb")
        eventually(engine.leads)
    finally:
        engine.close()
        central.stop()


def test_an_engine_that_is_away_says_so(ovn):
    ovn.central.end("nb")
    said = eventually(lambda: _refusal(ovn.engine.leads))
    assert "northbound database" in said
    assert "ovn_northbound" in said
    assert "northbound database" in _refusal(lambda: ovn.engine.repair(all_of(LAN)))
    none = OvnEngine(f"unix:{ovn.central.folder}/none.sock", patience=1)
    assert "none.sock" in _refusal(none.leads)


def _refusal(ask: Callable[[], Any]) -> str:
    """In which words it does not answer; none where it does."""
    try:
        ask()
    except Unavailable as error:
        return error.message
    return ""


def test_the_rows_that_are_known_are_those_that_there_are(ovn):
    """A change looks only at rows that it is about: what is known of all others is kept up to date."""
    def known() -> Northbound:
        idl = ovn.engine._open.idl
        kept, now = idl.known(), Northbound(idl.tables)
        for name in ("rows", "units", "names", "holders", "_held"):
            assert {key: value for key, value in getattr(kept, name).items() if value} == {
                key: value for key, value in getattr(now, name).items() if value}, name
        return kept

    engine = ovn.engine
    eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE)))
    first = known()
    engine.repair(some(TWO, LAN, GROUP))
    engine.repair(some(replace(ONE, groups=()), LAN))
    engine.repair(some(replace(GROUP, rules=GROUP.rules[:1])))
    assert known() is first
    engine.repair(some(gone=("port/p1",)))
    ovn.central.nb("ls-add", "theirs", "--", "lsp-add", "theirs", "their-port")
    ovn.central.nb("clear", "port_group", "mag_drop", "ports")
    eventually(lambda: engine.differences(all_of(LAN, GROUP, TWO)))
    assert known() is first
    engine.repair(some(TWO, LAN, GROUP))
    assert known() is first
    wanted = all_of(LAN, replace(GROUP, rules=GROUP.rules[:1]), TWO)
    engine.repair(wanted)
    assert engine.differences(wanted) == []
    ovn.lose()
    eventually(lambda: engine.leads() and not engine.knows_all())
    eventually(lambda: engine.repair(wanted))
    engine.repair(some(ONE, LAN, GROUP))
    assert known() is not first
