# SPDX-License-Identifier: GPL-3.0-or-later
"""What security groups let guests send and hear: the kernel's filter, with network namespaces as guests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from magnetar_agent.host.networks import GroupRule, Port, PortFilter, PortGroup
from magnetar_agent.virt.network.conntrack import Flow, FlowEnd, list_flows
from magnetar_agent.virt.network.group_filter import forbidden_flows, restricted_taps
from magnetar_agent.virt.network.port_filter import NftPortFilter, _bridges_follow, replacement_script
from magnetar_core.errors import HypervisorError
from tests.support.agent.taps import Guest, in_own_network, ip, needs
from tests.support.waiting import eventually

pytestmark = [needs, pytest.mark.slow]

PREFIX, ONE, TWO = "tap-", "52:54:00:00:00:01", "52:54:00:00:00:02"
WEB, PEERS, OTHER = (f"{at}c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d" for at in "123")
OUT = tuple(GroupRule("egress", version) for version in (4, 6))
ANSWERER = """
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
with socket.socket(type=kind) as line:
    line.bind(("0.0.0.0", int(sys.argv[2])))
    if sys.argv[1] == "tcp":
        line.listen()
        while True:
            other, _ = line.accept()
            while held := other.recv(100):
                other.send(held)
    while True:
        line.sendto(*line.recvfrom(100))
"""
ASKER = """
import socket, sys
kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
with socket.socket(type=kind) as line:
    line.settimeout(float(sys.argv[4]))
    line.connect((sys.argv[2], int(sys.argv[3])))
    line.send(b"x" * int(sys.argv[5]))
    assert line.recv(9000)
"""


def one(*groups: str) -> Port:
    return Port("tap-one", ONE, ("10.9.9.1",), (), groups=groups, resolver="10.9.9.254")


def two(*groups: str) -> Port:
    return Port("tap-two", TWO, ("10.9.9.2",), (), groups=groups, resolver="10.9.9.254")


class Site:
    """Guests one and two on a bridge at which the host is 10.9.9.254, and what is loaded."""

    def __init__(self, guests: list[Guest]) -> None:
        self.one, self.two = guests
        self.loaded: PortFilter | None = None
        self.servers: list[subprocess.Popen[bytes]] = []

    def load(self, *ports: Port, groups: tuple[PortGroup, ...] = ()) -> None:
        wanted = PortFilter(PREFIX, frozenset(ports), groups=frozenset(groups), metadata="mg")
        NftPortFilter().filter_ports(wanted, self.loaded)
        self.loaded = wanted

    def serve(self, guest: Guest, kind: str, port: int) -> None:
        self.servers.append(subprocess.Popen(["nsenter", "-t", str(guest.process.pid), "-n", sys.executable, "-c",
                                              ANSWERER, kind, str(port)]))
        eventually(lambda: f":{port} " in guest.sh("ss -Hlntu"))

    def asks(self, guest: Guest, kind: str, port: int, address: str = "", patience: float = 0.6, size: int = 1) -> bool:
        there = address or ("10.9.9.2" if guest is self.one else "10.9.9.1")
        words = f"{sys.executable} -c '{ASKER}' {kind} {there} {port} {patience} {size} 2>/dev/null && echo done"
        return "done" in guest.sh(words, check=False)

    def pings(self, guest: Guest, address: str) -> bool:
        return "1 packets received" in guest.sh(f"busybox ping -c 1 -W 1 {address}", check=False)


@contextmanager
def site() -> Iterator[Site]:
    guests = []
    ip("link add br0 type bridge")
    ip("addr add 10.9.9.254/24 dev br0")
    ip("link set br0 up")
    made = None
    try:
        for name, card in (("one", ONE), ("two", TWO)):
            guests.append(Guest(name, "br0", name, f"10.9.9.{len(guests) + 1}/24", card))
        made = Site(guests)
        yield made
    finally:
        for server in made.servers if made else ():
            server.kill()
            server.wait()
        for guest in guests:
            guest.end()


def drops() -> dict[str, int]:
    done = subprocess.run(["nft", "-j", "list", "counters"], check=True, capture_output=True, text=True)
    return {each["name"]: each["packets"] for line in json.loads(done.stdout)["nftables"]
            for each in ([line["counter"]] if "counter" in line else [])}


def test_nothing_comes_in_without_a_rule_and_answers_need_none() -> None:
    web = GroupRule("ingress", 4, 6, 8000, 8080)

    def act() -> None:
        with site() as made:
            for guest in (made.one, made.two):
                made.serve(guest, "tcp", 8080)
            made.serve(made.two, "udp", 53)
            made.load(one(WEB), two(WEB), groups=(PortGroup(WEB, OUT),))
            assert not made.asks(made.one, "tcp", 8080) and not made.pings(made.one, "10.9.9.2")
            assert drops()["group_ingress"] > 0 and drops()["group_egress"] == 0
            # The host is no better, but gets answers, and gives them.
            assert subprocess.run(["busybox", "ping", "-c", "1", "-W", "1", "10.9.9.2"], check=False).returncode
            assert made.pings(made.one, "10.9.9.254")
            made.load(one(WEB), two(WEB), groups=(PortGroup(WEB, (*OUT, web)),))
            assert made.asks(made.one, "tcp", 8080) and made.asks(made.two, "tcp", 8080)
            assert not made.asks(made.one, "udp", 53) and not made.pings(made.one, "10.9.9.2")
            more = (GroupRule("ingress", 4, 17, prefix="10.9.9.0/31"), GroupRule("ingress", 4, 1, 8, 0))
            made.load(one(WEB), two(WEB), groups=(PortGroup(WEB, (*OUT, *more)),))
            assert made.asks(made.one, "udp", 53) and made.pings(made.one, "10.9.9.2")
            assert made.asks(made.one, "udp", 53, size=4000)  # in pieces
            assert not made.asks(made.one, "tcp", 8080)
            made.load(one(WEB), two(), groups=(PortGroup(WEB, (*OUT, *more)),))  # a group less
            assert not made.pings(made.one, "10.9.9.2") and not made.pings(made.two, "10.9.9.1")
            made.load(one(), replace(two(), groups=None))  # without groups all pass
            assert not made.pings(made.one, "10.9.9.2")
            made.load(replace(one(), groups=None), replace(two(), groups=None))
            assert made.pings(made.one, "10.9.9.2") and made.asks(made.one, "tcp", 8080)

    in_own_network(act)


def test_what_goes_out() -> None:
    def act() -> None:
        with site() as made:
            made.serve(made.two, "tcp", 8080)
            answers = subprocess.Popen([sys.executable, "-c", ANSWERER, "udp", "53"])
            made.servers.append(answers)
            eventually(lambda: b":53 " in subprocess.run(["ss", "-Hlnu"], check=True, capture_output=True).stdout)
            rule = GroupRule("egress", 4, 6, 8080, 8080, group=OTHER)
            group, every = PortGroup(WEB, (rule,)), GroupRule("ingress", 4)
            made.load(one(WEB), two(PEERS), groups=(group, PortGroup(PEERS, (every,)), PortGroup(OTHER)))
            assert not made.asks(made.one, "tcp", 8080) and drops()["group_egress"] > 0
            assert made.asks(made.one, "udp", 53, "10.9.9.254")  # its host's DNS
            made.load(one(WEB), two(PEERS), groups=(
                group, PortGroup(PEERS, (every,)), PortGroup(OTHER, members=frozenset({"10.9.9.2"}))))
            assert made.asks(made.one, "tcp", 8080) and not made.asks(made.one, "tcp", 8081)

    in_own_network(act)


def test_members_of_a_group_and_connections_that_are_open() -> None:
    def act() -> None:
        with site() as made:
            made.serve(made.two, "tcp", 8080)
            inward = PortGroup(PEERS, (*OUT, GroupRule("ingress", 4, group=PEERS)))
            both = replace(inward, members=frozenset({"10.9.9.1", "10.9.9.2"}))
            made.load(one(PEERS), two(PEERS), groups=(both,))
            assert made.asks(made.one, "tcp", 8080) and made.pings(made.one, "10.9.9.2")
            line = subprocess.Popen(
                ["nsenter", "-t", str(made.one.process.pid), "-n", "busybox", "nc", "10.9.9.2", "8080"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            made.servers.append(line)
            assert line.stdin and line.stdout
            line.stdin.write(b"first\n")
            line.stdin.flush()
            assert line.stdout.readline() == b"first\n"
            made.load(one(WEB), two(PEERS), groups=(
                replace(inward, members=frozenset({"10.9.9.2"})), PortGroup(WEB, OUT)))
            before = drops()["group_ingress"]
            line.stdin.write(b"second\n")
            line.stdin.flush()
            eventually(lambda: drops()["group_ingress"] > before)  # an open connection of one that is no member ends
            assert not made.pings(made.one, "10.9.9.2") and made.pings(made.two, "10.9.9.254")
            made.load(one(PEERS), two(PEERS), groups=(both,))
            assert line.stdout.readline() == b"second\n"

    in_own_network(act)


STREAM = """
import socket, sys, time
with socket.socket(type=socket.SOCK_DGRAM) as line:
    line.bind(("0.0.0.0", 7000))
    _, asker = line.recvfrom(100)
    while True:
        line.sendto(b"more", asker)
        time.sleep(0.02)
"""
HEARER = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as line:
    line.connect(("10.9.9.2", 7000))
    line.send(b"begin")
    while line.recv(100):
        print("heard", flush=True)
"""


def test_answers_that_go_on_end_with_the_rule_that_let_them_be_asked_for() -> None:
    """Nobody acknowledges UDP. Another rule that lets it begin keeps it, and so do connections of others."""
    def started(made: Site, guest: Guest, script: str) -> subprocess.Popen[bytes]:
        made.servers.append(subprocess.Popen(["nsenter", "-t", str(guest.process.pid), "-n", sys.executable, "-c",
                                              script], stdout=subprocess.PIPE))
        return made.servers[-1]

    def act() -> None:
        with site() as made:
            asked, wide = (GroupRule("egress", 4, 17, 7000, 7000), GroupRule("egress", 4, 17, 6000, 8000))
            inward, every = GroupRule("ingress", 4, 17, prefix="10.9.9.0/24"), GroupRule("ingress", 4)

            def load(*rules: GroupRule, others: tuple[GroupRule, ...] = (inward, every)) -> None:
                made.load(one(WEB), two(PEERS), groups=(PortGroup(WEB, rules), PortGroup(PEERS, others)))

            load(asked, wide)
            started(made, made.two, STREAM)
            eventually(lambda: ":7000 " in made.two.sh("ss -Hlnu"))
            hearer = started(made, made.one, HEARER)
            assert hearer.stdout and hearer.stdout.readline() == b"heard\n"
            load(wide)
            load(wide, others=(every,))
            made.loaded = None  # an agent that starts
            load(wide, others=(every,))
            assert [hearer.stdout.readline() for _time in range(100)] == [b"heard\n"] * 100
            load()
            before = drops()["group_egress"]  # of what neighbours say there are a few
            eventually(lambda: drops()["group_egress"] > before + 50)

    in_own_network(act)


def test_what_a_change_ends() -> None:
    """Of each kind of rule, and of each end."""
    def flow(protocol: int, here: str, there: str, port: int, code: int = 0) -> Flow:
        return Flow(protocol, FlowEnd(here, there, port, code), FlowEnd(there, here, port, code), b"")

    dns, stream = flow(17, "10.9.9.1", "10.9.9.254", 53), flow(17, "10.9.9.1", "10.9.9.2", 7000)
    ping, ping6 = flow(1, "10.9.9.1", "10.9.9.2", 8), flow(58, "fd00::1", "fd00::2", 128)
    away, other = flow(17, "10.9.9.1", "192.0.2.1", 7000), flow(17, "10.9.9.9", "192.0.2.1", 7000)
    every = [dns, stream, ping, ping6, away, other, flow(17, "10.9.9.1", "255.255.255.255", 67)]
    ports = frozenset((replace(one(WEB), ipv6=("fd00::1",)), replace(two(PEERS), ipv6=("fd00::2",))))
    inward = (GroupRule("ingress", 4), GroupRule("ingress", 6))

    def filter_(*rules: GroupRule, peers: tuple[GroupRule, ...] = inward, members: tuple[str, ...] = ()) -> PortFilter:
        return PortFilter(PREFIX, ports, groups=frozenset((
            PortGroup(WEB, rules), PortGroup(PEERS, peers), PortGroup(OTHER, members=frozenset(members)))))

    def rules_of(wanted: PortFilter, id: str) -> tuple[GroupRule, ...]:
        return next(group.rules for group in wanted.groups if group.id == id)

    for wanted, over in (
            (filter_(), [stream, ping, ping6, away]), (filter_(OUT[0]), [ping6]),
            (filter_(*OUT, peers=()), [stream, ping, ping6]), (filter_(*OUT, peers=inward[:1]), [ping6]),
            (filter_(GroupRule("egress", 4, 17)), [ping, ping6]),
            (filter_(GroupRule("egress", 4, 1, 8), GroupRule("egress", 6, 1, 128, 0)), [stream, away]),
            (filter_(GroupRule("egress", 4, 1, 0)), [stream, ping, ping6, away]),
            (filter_(GroupRule("egress", 4, prefix="10.9.9.0/24")), [ping6, away]),
            (filter_(GroupRule("egress", 4, 17, 7001, 7999)), [stream, ping, ping6, away]),
            (filter_(GroupRule("egress", 4, group=OTHER), members=("192.0.2.1",)), [stream, ping, ping6])):
        assert list(forbidden_flows(wanted, ["tap-one", "tap-two"], every)) == over
        assert restricted_taps(filter_(*OUT), wanted) == {
            tap for tap, id, had in (("tap-one", WEB, OUT), ("tap-two", PEERS, inward))
            if not {*had} <= {*rules_of(wanted, id)}}
        assert not restricted_taps(wanted, filter_(*{*OUT, *rules_of(wanted, WEB)}, members=("192.0.2.1",)))
    assert not list(forbidden_flows(filter_(*OUT), ["tap-one", "tap-two"], every))
    named = filter_(GroupRule("egress", 4, group=OTHER), members=("192.0.2.1", "10.9.9.2"))
    assert restricted_taps(named, filter_(GroupRule("egress", 4, group=OTHER), members=("192.0.2.1",))) == {"tap-one"}
    assert not restricted_taps(named, replace(  # its member's guest is gone
        filter_(GroupRule("egress", 4, group=OTHER), members=("192.0.2.1",)), ports=frozenset((one(WEB),))))
    assert restricted_taps(None, named) == {"tap-one", "tap-two"}


def test_what_a_change_ends_of_a_port_that_has_a_whole_network() -> None:
    """What has an address of that network is its own, unless another port has this address."""
    def flow(here: str, there: str) -> Flow:
        return Flow(17, FlowEnd(here, there, 7000), FlowEnd(there, here, 7000), b"")

    behind, beyond = flow("10.8.0.7", "192.0.2.1"), flow("198.51.100.1", "192.0.2.1")
    inward, second, six = flow("192.0.2.1", "10.8.0.7"), flow("10.8.0.2", "192.0.2.1"), flow("fd08::7", "fd01::1")
    every = [behind, beyond, inward, second, six]
    ports = frozenset((replace(one(WEB), ipv4=("10.9.9.1", "10.8.0.0/24"), ipv6=("fd08::/64",)),
                       replace(two(PEERS), ipv4=("10.8.0.2",))))

    def filter_(*rules: GroupRule) -> PortFilter:
        return PortFilter(PREFIX, ports, groups=frozenset((PortGroup(WEB, rules), PortGroup(PEERS, OUT))))

    both = (*OUT, GroupRule("ingress", 4))
    for wanted, over in ((filter_(*both), []), (filter_(*OUT), [inward]), (filter_(*both[1:]), [behind]),
                         (filter_(both[0], both[2]), [six]), (filter_(), [behind, inward, six])):
        assert list(forbidden_flows(wanted, ["tap-one", "tap-two"], every)) == over


def test_connections_in_zones_are_those_of_others() -> None:
    """Open vSwitch has them for OVN, whose networks may have any addresses."""
    def act() -> None:
        subprocess.run(["nft", "-f", "-"], input="""table ip zones {
            chain out { type filter hook output priority -300; policy accept; udp dport 7001 ct zone set 5; }
        }""", check=True, text=True)
        with socket.socket(type=socket.SOCK_DGRAM) as hearer, socket.socket(type=socket.SOCK_DGRAM) as sender:
            hearer.bind(("127.0.0.1", 7000))
            for port in (7000, 7001):
                sender.sendto(b"x", ("127.0.0.1", port))
            assert {flow.sent.port for flow in list_flows() if flow.protocol == 17} == {7000}

    in_own_network(act)


def test_a_port_that_may_send_from_everywhere_ends_nothing_of_others() -> None:
    """Nor does it end what it goes on letting begin, to an address that it might send from itself."""
    def flow(here: str, there: str) -> Flow:
        return Flow(17, FlowEnd(here, there, 7000), FlowEnd(there, here, 7000), b"")

    own, others, inward = flow("10.9.9.1", "192.0.2.1"), flow("10.9.9.2", "192.0.2.1"), flow("192.0.2.1", "10.9.9.2")
    behind, others_behind = flow("10.8.0.7", "192.0.2.1"), flow("10.7.0.7", "192.0.2.1")
    every = [own, others, inward, behind, others_behind]

    def filter_(*rules: GroupRule) -> PortFilter:
        ports = frozenset((replace(one(WEB), ipv4=("10.9.9.1", "0.0.0.0/0")),
                           replace(two(PEERS), ipv4=("10.9.9.2", "10.7.0.0/16"))))
        return PortFilter(PREFIX, ports, groups=frozenset((
            PortGroup(WEB, rules), PortGroup(PEERS, (*OUT, GroupRule("ingress", 4))))))

    assert list(forbidden_flows(filter_(*OUT), ["tap-one"], every)) == []
    assert list(forbidden_flows(filter_(GroupRule("ingress", 4)), ["tap-one"], every)) == [own]
    assert list(forbidden_flows(filter_(), ["tap-one"], every)) == [own, behind]


def test_ipv6() -> None:
    """Neighbours find one another whatever the rules say."""
    def act() -> None:
        with site() as made:
            for at, guest in enumerate((made.one, made.two), 1):
                guest.sh(f"ip addr add fd00::{at}/64 dev {guest.device} nodad")
            ports = replace(one(WEB), ipv6=("fd00::1",)), replace(two(PEERS), ipv6=("fd00::2",))
            pings: Callable[[], bool] = lambda: "1 packets received" in made.one.sh(  # noqa: E731
                "busybox ping6 -c 1 -W 1 fd00::2", check=False)
            made.load(*ports, groups=(PortGroup(WEB, OUT), PortGroup(PEERS)))
            assert not pings() and "REACHABLE" in made.one.sh("ip -6 neigh show fd00::2")
            made.load(*ports, groups=(PortGroup(WEB, OUT, frozenset({"fd00::1"})), PortGroup(PEERS, (
                GroupRule("ingress", 6, 1, 128, group=WEB),))))
            assert pings() and not made.pings(made.one, "10.9.9.2")
            made.load(*ports, groups=(PortGroup(WEB, OUT), PortGroup(PEERS, (GroupRule("ingress", 6, 58, 1, 0),))))
            assert not pings()

    in_own_network(act)


def test_where_nobody_follows_connections() -> None:
    """It is said, and all is closed."""
    def act() -> None:
        with site() as made:
            subprocess.run(["sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0"], check=True)
            if _bridges_follow():
                pytest.skip("this kernel's bridges follow connections of themselves")
            ping = PortGroup(WEB, (*OUT, GroupRule("ingress", 4, 1, 8, 0)))
            with pytest.raises(HypervisorError, match="net.bridge.bridge-nf-call-iptables to 1"):
                made.load(one(WEB), two(WEB), groups=(ping,))
            assert not made.pings(made.one, "10.9.9.2") and made.pings(made.one, "10.9.9.254")

    in_own_network(act)


def test_where_bridges_follow_connections() -> None:
    """What such a kernel is told more; this machine's may be none."""
    before, after = (replacement_script(PortFilter(PREFIX, frozenset({one(WEB)}), metadata="mg"), (),
                                        follow).splitlines()
                     for follow in (False, True))
    at = after.index("chain followed { type filter hook prerouting priority -150; policy accept;")
    assert after[:at] + after[at + 4:] == before
    assert after[at + 2] == "ct direction reply ct state established meta mark set meta mark | 0x20000000"


def test_a_tap_that_nobody_has_told_of_hears_nothing() -> None:
    """A guest may start a moment before its filter is there."""
    def act() -> None:
        with site() as made:
            got = subprocess.Popen(["nsenter", "-t", str(made.two.process.pid), "-n", sys.executable, "-c", (
                "import socket\nline = socket.socket(type=socket.SOCK_DGRAM)\nline.bind(('', 9))\n"
                "print(line.recv(9).decode(), flush=True)\n")], stdout=subprocess.PIPE)
            made.servers.append(got)
            eventually(lambda: ":9 " in made.two.sh("ss -Hlnu"))
            made.two.sh("ip neigh add 10.9.9.1 lladdr " + ONE + f" dev {made.two.device}")
            send = f"ip neigh replace 10.9.9.2 lladdr {TWO} dev {made.one.device}; echo -n %s >/dev/udp/10.9.9.2/9"
            made.load(one(WEB), groups=(PortGroup(WEB, OUT),))
            made.one.sh(f"bash -c '{send % 'early'}'")
            eventually(lambda: drops()["unknown_tap"] > 0)
            made.load(one(WEB), two(PEERS), groups=(
                PortGroup(WEB, OUT), PortGroup(PEERS, (GroupRule("ingress", 4),))))
            made.one.sh(f"bash -c '{send % 'later'}'")
            assert got.stdout and got.stdout.readline() == b"later\n"

    in_own_network(act)


def test_nothing_is_left_of_groups() -> None:
    def act() -> None:
        with site() as made:
            made.load(one(WEB), two(), groups=(PortGroup(WEB, OUT, frozenset({"10.9.9.1"})),))
            made.load(replace(one(), groups=None), two())
            said = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
            assert "members4" not in said and said.count("goto egress_") == 1
            made.load(two())
            made.load(replace(two(), groups=None))
            said = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
            assert "ct state related" not in said and "group_filter" not in said and "sends" not in said

    in_own_network(act)
