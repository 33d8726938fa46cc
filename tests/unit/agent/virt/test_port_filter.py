# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests may send: the kernel's filter, with network namespaces as guests, frames of all kinds, and
counted drops."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest

from magnetar_agent.host.networks import Port, PortFilter
from magnetar_agent.virt.network import port_filter
from magnetar_agent.virt.network.port_filter import NftPortFilter
from magnetar_core.addresses import link_local
from tests.support.agent.taps import Guest, in_own_network, ip, needs
from tests.support.waiting import eventually

pytestmark = [needs, pytest.mark.slow]

PREFIX = "tap-"  # of the taps of these guests
ONE, TWO, BROADCAST = "52:54:00:00:00:01", "52:54:00:00:00:02", "ff:ff:ff:ff:ff:ff"
SENDER = """
import socket, sys
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as line:
    line.bind((sys.argv[1], 0))
    line.send(bytes.fromhex(sys.argv[2]))
"""


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def arp(source: str, card: str, address: str, operation: int = 1) -> bytes:
    return (mac(BROADCAST) + mac(source) + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, operation) + mac(card)
            + IPv4Address(address).packed + bytes(6) + IPv4Address("10.9.9.254").packed)


def udp(ports: tuple[int, int], more: bytes = b"") -> bytes:
    return struct.pack("!HHHH", *ports, 8 + len(more), 0) + more


def ipv4(source: str, address: str, ports: tuple[int, int] = (5000, 5001), more: bytes = b"") -> bytes:
    held = udp(ports, more)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(held), 0, 0, 64, 17, 0)
    head += IPv4Address(address).packed + IPv4Address("10.9.9.254").packed
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack("!H", ~total & 0xFFFF) + head[12:]
    return mac(BROADCAST) + mac(source) + b"\x08\x00" + head + held


def ipv6(source: str, address: str, held: bytes, protocol: int = 58) -> bytes:
    head = struct.pack("!IHBB", 6 << 28, len(held), protocol, 255) + IPv6Address(address).packed
    return mac("33:33:00:00:00:01") + mac(source) + b"\x86\xdd" + head + IPv6Address("ff02::1").packed + held


def neighbour(kind: int, target: str) -> bytes:
    return struct.pack("!BBHI", kind, 0, 0, 0) + IPv6Address(target).packed


def asks(card: str) -> bytes:
    """A request for DHCP, as far as it is looked at."""
    return struct.pack("!BBBBIHH", 1, 1, 6, 0, 7, 0, 0) + bytes(16) + mac(card) + bytes(10 + 64 + 128 + 4)


@contextmanager
def guests(*ports: Port, prefix: str = PREFIX, bridges: tuple[str, ...] = (),
           open_ports: tuple[str, ...] = ()) -> Iterator[list[Guest]]:
    """Guests one and two on br0, at which the host is 10.9.9.254."""
    made = []
    try:
        ip("link add br0 type bridge")
        ip("addr add 10.9.9.254/24 dev br0")
        ip("link set br0 up")
        for name, card in (("one", ONE), ("two", TWO)):
            made.append(Guest(name, "br0", name, f"10.9.9.{len(made) + 1}/24", card))
        NftPortFilter().filter_ports(PortFilter(prefix, frozenset(ports), frozenset(bridges), open_ports))
        yield made
    finally:
        for one in made:
            one.end()


def drops() -> dict[str, int]:
    """Packets by counter."""
    done = subprocess.run(["nft", "-j", "list", "counters"], check=True, capture_output=True, text=True)
    found = [one["counter"] for one in json.loads(done.stdout)["nftables"] if "counter" in one]
    return {one["name"]: one["packets"] for one in found}


def dropped(guest: Guest, frame: bytes) -> str:
    """The counter that has counted the guest's frame; "" when it passed."""
    other = {port_filter.CLOSED} | ({"unknown_tap"} if guest.mac == ONE else set())  # guest two may be unknown

    def still() -> dict[str, int]:
        return {name: count for name, count in drops().items() if name not in other}

    before = still()
    guest.sh(f"{sys.executable} -c '{SENDER}' {guest.device} {frame.hex()}")
    found = [name for name, count in still().items() if count > before[name]]
    return found[0] if found else ""


def quiet(guest: Guest) -> None:
    """Its own kernel says nothing, so that what is counted is what a test sent."""
    guest.sh(f"ip addr flush dev {guest.device}; ip link set {guest.device} addrgenmode none; "
             f"sysctl -qw net.ipv6.conf.{guest.device}.disable_ipv6=1")


KNOWN = Port("tap-one", ONE, ("10.9.9.1", "10.20.0.0/24"), ("fd00::1",))
FREE = Port("tap-one", ONE, None, None, not_from=("10.9.9.254",))
LOCAL = link_local(ONE)
FALSE = {
    "false_mac": ipv4(TWO, "10.9.9.1"), "false_ipv4": ipv4(ONE, "10.9.9.2"),
    "dhcp_server": ipv4(ONE, "10.9.9.1", (67, 68)),
    "other_protocol": mac(BROADCAST) + mac(ONE) + b"\x88\xcc" + bytes(46),
    "false_arp": arp(ONE, ONE, "10.9.9.2", 2), "router": ipv6(ONE, LOCAL, struct.pack("!BBHIII", 134, 0, 0, 0, 0, 0)),
    "false_ipv6": ipv6(ONE, "fd00::2", neighbour(135, "fd00::9")),
    "false_neighbour": ipv6(ONE, LOCAL, neighbour(136, "fd00::9")),
}
MORE_FALSE = [
    (arp(ONE, TWO, "10.9.9.1", 2), "false_arp"), (arp(ONE, ONE, "10.9.9.254", 2), "false_arp"),
    (arp(ONE, ONE, "0.0.0.0", 2), "false_arp"), (arp(TWO, ONE, "10.9.9.1"), "false_mac"),
    (ipv4(ONE, "0.0.0.0", (68, 67), asks(TWO)), "false_mac"), (ipv4(ONE, "0.0.0.0"), "false_ipv4"),
    (ipv4(ONE, "10.9.9.254", (67, 68)), "dhcp_server"), (ipv4(ONE, "10.20.1.1"), "false_ipv4"),
    (ipv6(ONE, LOCAL, udp((547, 546)), 17), "dhcp_server"),
    (ipv6(ONE, link_local(TWO), neighbour(135, LOCAL)), "false_ipv6"),
    (ipv6(ONE, "::", neighbour(135, "fd00::9")), "false_neighbour"),
    (ipv6(ONE, LOCAL, neighbour(137, "fd00::9")), "router"),
    # A router's word behind a header of extensions, and in pieces.
    (ipv6(ONE, LOCAL, bytes((58, 0, 1, 4, 0, 0, 0, 0)) + struct.pack("!BBHIII", 134, 0, 0, 0, 0, 0), 60), "router"),
    (ipv6(ONE, LOCAL, bytes((58, 0, 0, 1, 0, 0, 0, 7)) + neighbour(136, LOCAL), 44), "false_ipv6"),
    (mac(BROADCAST) + mac(ONE) + b"\x81\x00\x00\x05" + arp(ONE, ONE, "10.9.9.2")[12:], "other_protocol"),
]  # fmt: skip
TRUE = [
    arp(ONE, ONE, "10.9.9.1"), arp(ONE, ONE, "0.0.0.0"), ipv4(ONE, "10.9.9.1"), ipv4(ONE, "10.20.0.77"),
    arp(ONE, ONE, "10.20.0.77", 2), ipv4(ONE, "0.0.0.0", (68, 67), asks(ONE)), ipv6(ONE, LOCAL, neighbour(136, LOCAL)),
    ipv6(ONE, "fd00::1", neighbour(136, "fd00::1")), ipv6(ONE, "::", neighbour(135, LOCAL)),
    mac(BROADCAST) + mac(ONE) + b"\x80\x35" + bytes(46),
]  # fmt: skip


def test_only_its_own_addresses_pass() -> None:
    def act() -> None:
        with guests(KNOWN) as (one, two):
            quiet(one)
            assert {name: dropped(one, frame) for name, frame in FALSE.items()} == {name: name for name in FALSE}
            assert [dropped(one, frame) for frame, _name in MORE_FALSE] == [name for _frame, name in MORE_FALSE]
            assert [dropped(one, frame) for frame in TRUE] == [""] * len(TRUE)
            quiet(two)
            assert dropped(two, ipv4(TWO, "10.9.9.2")) == "unknown_tap"  # of the agent's taps one that nobody knows

    in_own_network(act)


def test_addresses_that_nobody_knows() -> None:
    """The MAC counts all the same, and nobody is a DHCP server, a router or the host."""
    def act() -> None:
        with guests(FREE) as (one, _two):
            quiet(one)
            passes = {"false_ipv4", "false_arp", "false_ipv6", "false_neighbour"}
            assert {name: dropped(one, frame) for name, frame in FALSE.items()} == {
                name: "" if name in passes else name for name in FALSE}
            assert dropped(one, arp(ONE, ONE, "10.9.9.254", 2)) == "false_arp"
            assert dropped(one, ipv4(ONE, "10.9.9.254")) == "false_ipv4"

    in_own_network(act)


def test_port_security_turned_off_and_changed() -> None:
    def act() -> None:
        with guests(Port("tap-one", ONE, secure=False)) as (one, _two):
            quiet(one)
            assert {dropped(one, frame) for frame in (*FALSE.values(), *(frame for frame, _name in MORE_FALSE))} == {""}
            before = PortFilter(PREFIX, frozenset({Port("tap-one", ONE, secure=False)}))
            after = PortFilter(PREFIX, frozenset({Port("tap-one", ONE, ("10.9.9.5",))}))
            NftPortFilter().filter_ports(after, before)
            assert dropped(one, ipv4(ONE, "10.9.9.1")) == "false_ipv4" and dropped(one, ipv4(ONE, "10.9.9.5")) == ""

    in_own_network(act)


def reached(guest: Guest, port: int, protocol: str = "tcp") -> bool:
    """Whether a packet of the guest to a port of the host gets there."""
    before, kind = drops()[port_filter.CLOSED], "STREAM" if protocol == "tcp" else "DGRAM"
    guest.sh(f"{sys.executable} -c 'import socket; s = socket.socket(type=socket.SOCK_{kind}); s.settimeout(0.2); "
             f's.connect(("10.9.9.254", {port})); s.send(b"x")\'', check=False)
    return drops()[port_filter.CLOSED] == before


@pytest.mark.parametrize("prefix", [PREFIX, "another-"])
def test_ports_of_the_host_are_closed(prefix: str) -> None:
    """On a bridge of the host's by the tap, and on a network of the agent's by the bridge, whoever is on it."""
    def act() -> None:
        ports = (KNOWN, Port("tap-two", TWO, secure=False)) if prefix == PREFIX else ()
        with guests(*ports, prefix=prefix, bridges=() if ports else ("br0",),
                    open_ports=("tcp/3142", "udp/8000-8002")) as both:
            # What other tables accept does not matter.
            subprocess.run(["nft", "add table inet o; add chain inet o i { type filter hook input priority -200; }; "
                            "add rule inet o i accept"], check=True)
            for one in both:
                eventually(lambda one=one: "1 packets rec" in one.sh("busybox ping -c 1 -W 1 10.9.9.254", check=False))
                assert [reached(one, port) for port in (22, 80, 6553, 3141, 3142)] == [False] * 4 + [True]
                assert [reached(one, port, "udp") for port in (53, 8001, 8003)] == [True, True, False]

    in_own_network(act)


def test_the_host_takes_nothing_from_taps_of_open_vswitch() -> None:
    """Where it forwards in a process, the kernel sees the packets of such a tap, which is on no bridge of its own."""
    def act() -> None:
        with guests(Port("tap-one", ONE, switched=True), Port("tap-two", TWO, secure=False)) as (one, two):
            ip("link set tap-one nomaster")
            ip("addr add 10.9.8.254/24 dev tap-one")
            one.sh(f"ip addr add 10.9.8.1/24 dev {one.device}")
            before = drops()[port_filter.CLOSED]
            assert "0 packets received" in one.sh("busybox ping -c 2 -W 1 10.9.8.254", check=False)
            assert drops()[port_filter.CLOSED] > before
            eventually(lambda: "1 packets received" in two.sh("busybox ping -c 1 -W 1 10.9.9.254", check=False))

    in_own_network(act)


def test_a_firewall_that_is_loaded_anew_is_heard_of() -> None:
    def act() -> None:
        heard: list[int] = []
        with guests(KNOWN):
            watch = NftPortFilter()
            watch.on_filters_gone(lambda: heard.append(1))
            assert watch.filters_ports(PREFIX)
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            eventually(lambda: heard)
            assert not watch.filters_ports(PREFIX)
            watch.end_filters()

    in_own_network(act)


def test_what_dhcp_gives_passes(tmp_path: Path) -> None:
    """A guest without a fixed address sends from the one that the host's DHCP gave it, also after a reload."""
    port = Port("tap-one", ONE, (), dhcp=True)

    def act() -> None:
        with guests(port, bridges=("br0",)) as (one, _two):
            one.sh(f"ip addr flush dev {one.device}")
            script = tmp_path / "script"
            script.write_text(f"#!/bin/sh\n[ $1 != bound ] || ip addr add $ip/24 dev {one.device}\n")
            script.chmod(0o755)
            server = subprocess.Popen(
                ["dnsmasq", "-k", "-p0", "--interface=br0", "--dhcp-range=10.9.9.50,10.9.9.99,1h", "-u", "root",
                 f"--dhcp-leasefile={tmp_path / 'leases'}", "--pid-file=", "--no-ping", "--conf-file=/dev/null"])
            try:
                eventually(lambda: "10.9.9." in one.sh(
                    f"busybox udhcpc -i {one.device} -n -q -f -t 3 -s {script}; ip addr", check=False))
                given = (tmp_path / "leases").read_text().split()[2]
                assert dropped(one, ipv4(ONE, given)) == "" and dropped(one, arp(ONE, ONE, given)) == ""
                assert dropped(one, ipv4(ONE, "10.9.9.2")) == "false_ipv4"
                NftPortFilter().filter_ports(PortFilter(PREFIX, frozenset({port})))
                assert dropped(one, ipv4(ONE, given)) == ""
                subprocess.run(["nft", "flush", "ruleset"], check=True)
                NftPortFilter().filter_ports(PortFilter(PREFIX, frozenset({port})))
                assert dropped(one, ipv4(ONE, given)) == "false_ipv4"
                NftPortFilter().allow_leased(PREFIX, [("tap-one", given)])
                assert dropped(one, ipv4(ONE, given)) == ""
            finally:
                server.kill()
                server.wait()

    in_own_network(act)


def test_nothing_is_left() -> None:
    def act() -> None:
        with guests(KNOWN, bridges=("br0",)):
            NftPortFilter().filter_ports(PortFilter(PREFIX), PortFilter(PREFIX, frozenset({KNOWN}), frozenset({"br0"})))
            rules = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
            assert "magnetar" not in rules

    in_own_network(act)
