# SPDX-License-Identifier: GPL-3.0-or-later
"""Who asks the metadata service is told by the tap that the packet comes from: the kernel's part and the process, with
network namespaces as guests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar_agent.metadata import guest_process
from magnetar_agent.metadata import process as guest_side
from magnetar_core.errors import HypervisorError
from tests.support.agent.taps import Guest, in_own_network, index, ip, needs
from tests.support.reports import ask_report
from tests.support.waiting import eventually
from tests.unit.agent.conftest import SMALL, Host

pytestmark = [needs, pytest.mark.slow]
OTHER_PORTS = [f"169.254.169.254:{port}" for port in (22, 81, 443)]


@contextmanager
def two_guests(host: Host) -> Iterator[list[Guest]]:
    """Servers one and two on the bridge br0 and a third, with the first one's MAC and address, on br1."""
    guests = []
    try:
        for name in ("br0", "br1"):
            ip(f"link add {name} type bridge")
            ip(f"link set {name} up")
        for name, bridge, address, mac in (("one", "br0", "10.9.9.1/24", "52:54:00:00:00:01"),
                                           ("two", "br0", "10.9.9.2/24", "52:54:00:00:00:02"),
                                           ("three", "br1", "10.9.9.1/24", "52:54:00:00:00:01")):
            server = host.ensure("server", name, {"flavor": SMALL, "metadata": {"is": name}}).resource
            guests.append(Guest(name, bridge, server["id"], address, mac))
        host.restart()
        host.fake.plugged_taps = [guest.tap for guest in guests]
        host.agent.metadata._todo.put(("all", ""))
        eventually(lambda: guests[0].get("/openstack") and guests[2].get("/openstack"))
        yield guests
    finally:
        host.agent.close()
        for guest in guests:
            guest.end()


def name_of(guest: Guest, *options: str, host: str = "169.254.169.254") -> str:
    said = guest.get("/openstack/latest/meta_data.json", *options, host=host)
    return str(json.loads(said)["meta"]["is"]) if said.startswith("{") else said


def test_each_guest_gets_its_own_and_nobody_elses(host: Host) -> None:
    def act() -> None:
        with two_guests(host) as (one, two, three):
            assert [name_of(guest) for guest in (one, two, three)] == ["one", "two", "three"]
            for guest, name in ((one, "one"), (two, "two"), (three, "three")):  # once each knows that its own is unique
                eventually(lambda guest=guest: guest.get("/openstack", host=f"[fe80::a9fe:a9fe%25{guest.device}]"))
                assert name_of(guest, host=f"[fe80::a9fe:a9fe%25{guest.device}]") == name
            # No header says who somebody is.
            for header in ("X-Forwarded-For: 10.9.9.2", f"X-Instance-ID: {two.tap.server}", "Host: two",
                           "X-Tenant-ID: two", "Forwarded: for=10.9.9.2", f"X-Instance-ID-Signature: {two.tap.server}"):
                assert name_of(one, "-H", header) == "one"
            # Nor an address or a MAC: whoever has another's gets its own, or nothing.
            two.sh(f"ip link set {two.device} address {one.mac}; ip addr flush dev {two.device};"
                   f"ip addr add 10.9.9.1/24 dev {two.device}; ip route add 169.254.169.254 dev {two.device}")
            assert name_of(two) in ("two", "")
            assert name_of(one) in ("one", "")
            # Nor an address of the service's own.
            for guest in (one, two):
                guest.sh(f"ip route add 240.0.0.0/4 dev {guest.device}")
                assert guest.hears_nothing(*(f"240.0.0.{number}" for number in range(1, 20)))

    in_own_network(act)


def test_taps_that_open_vswitch_has(host: Host) -> None:
    """Two guests with the same MAC and address, as two projects may have; the host's kernel has their taps on no
    bridge."""
    def act() -> None:
        guests = []
        try:
            for name in ("one", "two"):
                server = host.ensure("server", name, {"flavor": SMALL, "metadata": {"is": name}}).resource
                guests.append(Guest(name, "", server["id"], "10.9.9.1/24", "52:54:00:00:00:01"))
            one, two = guests
            host.restart()
            host.fake.plugged_taps = [guest.tap for guest in guests]
            host.agent.metadata._todo.put(("all", ""))
            eventually(lambda: one.get("/openstack") and two.get("/openstack"))
            assert [name_of(guest) for guest in guests] == ["one", "two"]
            assert host.agent.metadata.status() == {"bridges": ["br-int"], "reason": ""}
            for guest in guests:
                there = f"[fe80::a9fe:a9fe%25{guest.device}]"
                eventually(lambda guest=guest, there=there: guest.get("/openstack", host=there))
                assert name_of(guest, host=there) == guest.name
                assert guest.hears_nothing(*OTHER_PORTS)
            # By a gateway, and by an address more.
            one.sh(f"ip route del 169.254.169.254; ip route add default via 10.9.9.254; "
                   f"ip neigh replace 10.9.9.254 lladdr 02:00:00:00:00:fe dev {one.device}")
            two.sh(f"ip addr add 10.9.9.7/24 dev {two.device}")
            assert [name_of(guest) for guest in guests] == ["one", "two"]
            # One goes, and nobody has said so yet: the other is served again.
            ip(f"link delete {one.tap.device}")
            host.fake.plugged_taps = [two.tap]
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            host.agent.metadata._todo.put(("taps", two.tap.server))
            eventually(lambda: two.get("/openstack"))
            host.agent.close()
            assert host.agent.metadata._steering.device not in ip("link")
            assert "magnetar" not in subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True,
                                                    text=True).stdout
        finally:
            host.agent.close()
            for guest in guests:
                guest.end()

    in_own_network(act)


def test_a_neighbour_who_answers_arp_for_another_gets_nothing(host: Host) -> None:
    """The answer goes out at the tap that the request came from, or not at all."""
    def act() -> None:
        with two_guests(host) as (one, two, _three):
            two.sh(f"ip addr add 10.9.9.1/24 dev {two.device}; sysctl -qw net.ipv4.conf.all.arp_ignore=0")
            two.sh(f"nft 'add table netdev t; add chain netdev t c {{ type filter hook ingress device {two.device} "
                   "priority 0; }; add rule netdev t c ip saddr 169.254.169.254 counter'")
            ip(f"link set {one.tap.device} type bridge_slave learning off")
            for _time in range(5):
                assert name_of(one) in ("one", "")
            assert "packets 0" in two.sh("nft list table netdev t")

    in_own_network(act)


def test_through_a_router_too(host: Host) -> None:
    """A guest that knows no better asks its gateway for 169.254.169.254."""
    def act() -> None:
        with two_guests(host) as (one, _two, _three):
            ip("addr add 10.9.9.254/24 dev br0")
            one.sh("ip route del 169.254.169.254; ip route add default via 10.9.9.254")
            assert name_of(one) == "one"

    in_own_network(act)


def test_strangers_and_other_ports(host: Host) -> None:
    def act() -> None:
        with two_guests(host) as (one, two, _three):
            stranger = Guest("x", "br0", "nobody", "10.9.9.7/24", "52:54:00:00:00:07")
            try:
                assert stranger.get("/openstack") == "" and name_of(one) == "one"
                # Nobody has told it where that address is.
                assert "lladdr" not in stranger.sh("ping -c1 -W1 169.254.169.254; ip neigh show 169.254.169.254",
                                                   check=False)
                assert one.hears_nothing(*OTHER_PORTS)
                # The host itself has no address more.
                assert "169.254" not in ip("addr") and "a9fe:a9fe" not in ip("addr")
                # A guest that has gone is nobody, and whoever comes is served.
                host.fake.plugged_taps = [one.tap]
                host.agent.metadata._todo.put(("all", ""))
                eventually(lambda: two.get("/openstack") == "")
                assert name_of(one) == "one"
            finally:
                stranger.end()

    in_own_network(act)


def test_what_is_flushed_or_killed_comes_back_and_nothing_is_left(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar_agent.metadata.service.POLL_INTERVAL", 0.5)

    def act() -> None:
        with two_guests(host) as (one, two, _three):
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            eventually(lambda: one.get("/openstack"))
            assert name_of(one) == "one"
            process = host.agent.metadata._process
            assert process is not None
            os.kill(process.child.pid, signal.SIGKILL)
            eventually(lambda: one.get("/openstack"))
            assert name_of(two) == "two"
            assert host.agent.metadata.status() == {"bridges": ["br0", "br1"], "reason": ""}
            ip("link delete br1")
            host.fake.plugged_taps = [one.tap, two.tap]
            host.agent.metadata._todo.put(("all", ""))
            eventually(lambda: host.agent.metadata.status()["bridges"] == ["br0"])
            # Another agent over the same state, as after an end.
            host.agent.close()
            assert host.agent.metadata._steering.device not in ip("link")
            assert "magnetar" not in subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True,
                                                    text=True).stdout
            host.fake.plugged_taps = []
            host.restart()
            host.fake.plugged_taps = [one.tap, two.tap]
            host.agent.metadata._todo.put(("all", ""))
            eventually(lambda: one.get("/openstack"))
            assert name_of(one) == "one"
            assert index("br0")

    in_own_network(act)


def test_without_the_table_nobody_is_answered(host: Host) -> None:
    """A guest cannot reach another's address within the service when the host's firewall was flushed."""
    def act() -> None:
        with two_guests(host) as (one, two, _three):
            number = host.agent.metadata._numbers[two.tap.index]
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            one.sh(f"ip route add 240.0.0.0/4 dev {one.device}")
            assert one.get("/openstack", host=f"240.0.{number >> 8}.{number & 255}") == ""
            gate = host.agent.metadata._devices[one.tap.bridge_index]
            one.sh(f"ip neigh replace 240.0.{number >> 8}.{number & 255} lladdr {gate.mac} dev {one.device}")
            assert one.hears_nothing(f"240.0.{number >> 8}.{number & 255}", "169.254.169.254")

    in_own_network(act)


def test_the_process_is_nobody(host: Host) -> None:
    def act() -> None:
        with two_guests(host):
            process = host.agent.metadata._process
            assert process is not None
            about = Path(f"/proc/{process.child.pid}")
            said = dict(line.split(":", 1) for line in (about / "status").read_text().splitlines())
            assert said["Uid"].split() == ["65534"] * 4 and said["NoNewPrivs"].strip() == "1"
            assert (about / "ns/net").readlink() != Path("/proc/self/ns/net").readlink()

    in_own_network(act)


def test_the_process_as_a_unit(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd listens at a socket of root's, and starts the process, as another user, when the agent connects."""
    path = f"{tmp_path}/metadata.sock"
    monkeypatch.setenv("MAGNETAR_METADATA_SOCKET", path)
    words = ["systemd-socket-activate", f"--listen={path}", "setpriv", "--reuid=65533", "--regid=65533",
             "--clear-groups", sys.executable, "-m", "magnetar_agent.metadata.process"]

    def act() -> None:
        log = tmp_path / "log"
        with log.open("w") as stream, subprocess.Popen(words, stderr=stream, cwd="/") as process:
            try:
                eventually(Path(path).exists)
                with two_guests(host) as guests:
                    assert [name_of(guest) for guest in guests] == ["one", "two", "three"]
                    assert "Namespaces.run" in ask_report(process.pid, "metadata", log)["Threads"]
                    assert name_of(guests[0]) == "one"
                    about = Path(f"/proc/{process.pid}")
                    said = dict(line.split(":", 1) for line in (about / "status").read_text().splitlines())
                    assert said["Uid"].split() == ["65533"] * 4 and said["NoNewPrivs"].strip() == "1"
                    host.agent.close()
                    assert process.wait(120) == 0  # with its agent
            finally:
                process.kill()

    in_own_network(act)


def test_a_unit_that_does_not_start(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGNETAR_METADATA_SOCKET", f"{tmp_path}/none.sock")
    with pytest.raises(HypervisorError, match="magnetar-metadata.service cannot be reached at"):
        guest_process.start_guest_process()


def test_nobody_but_root_connects() -> None:
    path = f"/tmp/magnetar-test-{os.getpid()}.sock"
    with socket.create_server(path, family=socket.AF_UNIX) as listener:
        Path(path).chmod(0o777)
        asks = "import socket, sys; one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1])"
        subprocess.run(["setpriv", "--reuid=65533", "--clear-groups", sys.executable, "-c", asks, path], check=True)
        with socket.socket(socket.AF_UNIX) as ours:
            ours.connect(path)
            ours.sendall(b"root")
            with guest_side.accept_agent(listener) as found:
                assert found.recv(4) == b"root"
    Path(path).unlink()


def test_where_bridged_packets_pass_the_rules_of_the_host(host: Host) -> None:
    """libvirt has what leaves its networks masqueraded, and br_netfilter asks its rules for what stays on a bridge."""
    def act() -> None:
        with two_guests(host) as (one, two, _three):
            setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
            if not setting.exists():
                pytest.skip("br_netfilter is not here")
            setting.write_text("1")
            ip("addr add 10.9.9.254/24 dev br0")
            subprocess.run(["nft", "-f", "-"], check=True, text=True, input="table ip nat { chain post { type nat hook "
                           "postrouting priority srcnat; ip saddr 10.9.9.0/24 ip daddr != 10.9.9.0/24 masquerade; }; }")
            assert [name_of(guest) for guest in (one, two)] == ["one", "two"]

    in_own_network(act)
