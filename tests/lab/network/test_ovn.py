# SPDX-License-Identifier: GPL-3.0-or-later
"""Two hosts with a real OVN, whose northbound database is written by hand: guests' ports are served, filtered, moved
and removed with them."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_core.errors import Conflict
from magnetar_core.flows.migrate import Migrate, Side
from magnetar_core.http.client import Client
from tests.support.lab import bare, guest
from tests.support.lab.agent import eventually
from tests.support.lab.ovn import Guests, Ovn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

HOSTS = ("bare1", "bare2")
MTU = 1442
#: Server to its port, MAC and address.
PORTS = {"one": ("3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a001", "52:54:00:00:00:01", "10.9.0.11"),
         "two": ("3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a002", "52:54:00:00:00:02", "10.9.0.12")}
GATEWAY = "0a:00:00:00:00:fe"


class Cloudless:
    """The hosts, their agents, OVN, and a server on each host."""

    def __init__(self, site: bare.Site, ovn: Ovn) -> None:
        self.site, self.ovn, self.guests = site, ovn, Guests(site)

    def client(self, host: str) -> Client:
        pki = self.site.folder / "magnetar-pki"
        return Client(f"https://{self.site.hosts[host].address}", ca_cert=str(pki / "ca.pem"), timeout=300,
                      client_cert=str(pki / "clients/admin.pem"), client_key=str(pki / "clients/admin.key"))

    def network(self) -> None:
        """One logical switch with DHCP, and a port for each server."""
        options = self.ovn.nb("ls-add", "net", "--", "--id=@dhcp", "create", "dhcp_options", "cidr=10.9.0.0/24",
                              f'options={{server_id="10.9.0.1",server_mac="{GATEWAY}",lease_time="3600",'
                              f'mtu="{MTU}"}}').splitlines()[-1]  # fmt: skip
        for port, mac, address in PORTS.values():
            self.ovn.nb("lsp-add", "net", port, "--", "lsp-set-addresses", port, f"{mac} {address}", "--",
                        "lsp-set-port-security", port, f"{mac} {address}", "--", "lsp-set-dhcpv4-options", port,
                        options)  # fmt: skip

    def make(self, host: str, name: str) -> dict[str, Any]:
        port, mac, _address = PORTS[name]
        answer: dict[str, Any] = self.client(host).ensure("server", name, {
            "flavor": {"vcpus": 1, "ram": 128, "disk": 0}, "image": "kernel",
            "networks": [{"port": port, "mac": mac, "told": {"mtu": MTU}}]})  # fmt: skip
        return answer

    # Guests
    def sh(self, host: str, name: str, script: str) -> str:
        return self.guests.sh(host, self.client(host).get("server", name)["id"], script)

    def reaches(self, host: str, name: str, address: str, options: str = "") -> bool:
        return "bytes from" in self.sh(host, name, f"ping -c 3 -W 1 {options} {address}")

    def taps(self, host: str) -> set[str]:
        """Guests' taps that Open vSwitch has."""
        found = self.site.hosts[host].run(["ovs-vsctl", "list-ports", "br-int"]).stdout.split()
        return {one for one in found if one.startswith("mt")}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloudless]:
    folder = tmp_path_factory.mktemp("ovn")
    with bare.Site(folder, HOSTS, packed=HOSTS, ovn=True) as site:
        site.play("magnetar.compute.agents")
        lacking = Cloudless(site, None)  # type: ignore[arg-type]
        # Before: what the host lacks has its name, and nothing is left of the attempt.
        assert "Open vSwitch does not run" in lacking.client("bare1").get("host")["ovn"]["reason"]
        with Ovn(site) as ovn:
            made = Cloudless(site, ovn)
            made.network()
            for name in HOSTS:
                client = made.client(name)
                boots = {"ramdisk": "ramdisk", "cmdline": guest.KERNEL_ARGS}
                for what, disk_format, more in (("ramdisk", "ari", {}), ("kernel", "aki", boots)):
                    client.ensure("image", what, {"source": {"upload": True}, "disk_format": disk_format, **more})
                    client.upload("image", what, guest_image[what])
            yield made


def leased(lab: Cloudless, host: str, name: str) -> None:
    """Wait until the guest has its address from OVN's DHCP."""
    _port, mac, address = PORTS[name]
    lab.guests.leased(host, lab.client(host).get("server", name)["id"], mac, address)


def test_guests_of_two_hosts(lab: Cloudless) -> None:
    """DHCP answers, the guests reach one another through the tunnel, and what is false is dropped."""
    for host in HOSTS:
        said = lab.client(host).get("host")["ovn"]
        assert said == {"bridge": "br-int", "datapath": "netdev", "chassis": host, "reason": ""}
        assert "ovn: ok" in lab.site.hosts[host].run(["magnetar", "host", "check", "--need", "ovn"]).stdout
    for host, name in zip(HOSTS, PORTS, strict=True):
        lab.make(host, name)
    for host, name in zip(HOSTS, PORTS, strict=True):
        leased(lab, host, name)
        assert len(lab.taps(host)) == 1 and lab.ovn.chassis(PORTS[name][0]) == host
    assert lab.sh("bare1", "one", "cat /sys/class/net/eth0/mtu").strip() == str(MTU)
    assert lab.reaches("bare1", "one", PORTS["two"][2])
    # The whole MTU fits through the tunnel, and TCP has its checksums.
    assert lab.reaches("bare1", "one", PORTS["two"][2], f"-s {MTU - 28}")
    lab.sh("bare2", "two", "(echo over-tcp | nc -l -p 77) >/dev/null 2>&1 & true")
    assert "over-tcp" in lab.sh("bare1", "one", f"sleep 3 | nc -w 10 {PORTS['two'][2]} 77")
    # False senders.
    lab.sh("bare1", "one", "ip addr add 10.9.0.77/24 dev eth0")
    assert not lab.reaches("bare1", "one", PORTS["two"][2], "-I 10.9.0.77")
    lab.sh("bare1", "one", "ip addr del 10.9.0.77/24 dev eth0; ip link set eth0 address 52:54:00:99:99:99")
    assert not lab.reaches("bare1", "one", PORTS["two"][2])
    lab.sh("bare1", "one", f"ip link set eth0 address {PORTS['one'][1]}")
    assert lab.reaches("bare1", "one", PORTS["two"][2])


def closed(lab: Cloudless, host: str) -> int:
    """Packets for the host itself that were dropped."""
    said = lab.site.hosts[host].run(["nft", "-j", "list", "counters"]).stdout
    return sum(one["counter"]["packets"] for one in json.loads(said)["nftables"]
               if one.get("counter", {}).get("name") == "closed_port")  # fmt: skip


def test_the_host_takes_nothing_from_a_guest(lab: Cloudless) -> None:
    """The host's end of the NIC has a MAC address of its own, and the kernel would listen there."""
    host = lab.site.hosts["bare1"]
    (tap,) = lab.taps("bare1")
    card, before = host.run(["cat", f"/sys/class/net/{tap}/address"]).stdout.strip(), closed(lab, "bare1")
    lab.sh("bare1", "one", f"ip route add {host.address} dev eth0; arp -s {host.address} {card}")
    assert not lab.reaches("bare1", "one", host.address)
    assert closed(lab, "bare1") > before


def test_the_controller_of_a_host_is_killed(lab: Cloudless) -> None:
    """The host forwards and drops as before, and plugs in nothing until it is back."""
    address = PORTS["two"][2]

    def reached() -> bool:
        return lab.reaches("bare1", "one", address)

    def false() -> bool:
        return lab.reaches("bare1", "one", address, "-I 10.9.0.77")

    lab.sh("bare1", "one", "ip addr add 10.9.0.77/24 dev eth0")
    lab.ovn.kill_controller("bare1")
    assert reached() and not false()
    with pytest.raises(Conflict, match="cannot plug in ports of OVN: ovn-controller does not run"):
        lab.client("bare1").ensure("server", "late", {
            "flavor": {"vcpus": 1, "ram": 128, "disk": 0}, "image": "kernel",
            "networks": [{"port": "3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a003", "mac": "52:54:00:00:00:03"}]})
    assert [one["name"] for one in lab.client("bare1").list("server")] == ["one"]
    lab.ovn.start_controller("bare1")
    eventually(lambda: not lab.client("bare1").get("host")["ovn"]["reason"], "the controller is back")
    assert reached() and not false()
    lab.sh("bare1", "one", "ip addr del 10.9.0.77/24 dev eth0")


def test_open_vswitch_of_a_host_is_killed(lab: Cloudless) -> None:
    """Nothing passes until it is back; then what may pass does, and what may not has not for a moment."""
    port, _mac, address = PORTS["two"]
    lab.ovn.nb("pg-add", "shut", port)
    lab.ovn.nb("--type=port-group", "acl-add", "shut", "to-lport", "1002", "outport == @shut && tcp.dst == 88", "drop")
    lab.sh("bare2", "two", "touch /run/go; (while [ -e /run/go ]; do echo open | nc -l -p 77; done) >/dev/null 2>&1 & "
           "(while [ -e /run/go ]; do nc -l -p 88 </dev/null; echo met; sleep 0.2; done) >/run/met 2>&1 & true")
    lab.sh("bare1", "one", f"touch /run/go; ip addr add 10.9.0.77/24 dev eth0; ping -i 0.2 -I 10.9.0.77 {address} "
           f">/run/false 2>&1 & (while [ -e /run/go ]; do echo x | nc -w 1 {address} 88; done) >/dev/null 2>&1 & true")
    says: Callable[[], bool] = lambda: "open" in lab.sh("bare1", "one", f"sleep 2 | nc -w 5 {address} 77")  # noqa: E731
    assert lab.reaches("bare1", "one", address) and says()
    lab.ovn.kill_switch("bare2")
    assert not lab.reaches("bare1", "one", address)
    reason: Callable[[], str] = lambda: lab.client("bare2").get("host")["ovn"]["reason"]  # noqa: E731
    eventually(lambda: "ovs-vswitchd does not run" in reason(), "it is heard of")
    lab.ovn.start_switch("bare2")
    began = time.monotonic()
    eventually(lambda: lab.reaches("bare1", "one", address), "traffic comes back")
    print(f"\novn: {time.monotonic() - began:.1f} s until a ping after the start of ovs-vswitchd")
    eventually(lambda: not reason(), "it is heard of")
    assert says()
    assert lab.taps("bare2") and lab.ovn.chassis(port) == "bare2"
    lab.sh("bare1", "one", "rm /run/go; kill -INT $(pidof ping); ip addr del 10.9.0.77/24 dev eth0")
    assert "bytes from" not in lab.sh("bare1", "one", "cat /run/false")
    assert lab.sh("bare2", "two", "rm /run/go; cat /run/met").strip() == ""
    lab.ovn.nb("pg-del", "shut")


def test_the_controller_is_killed_in_the_midst_of_an_attachment(lab: Cloudless) -> None:
    """The host looked at it a moment before. The NIC is there and carries nothing; with the controller it does."""
    port, mac, address = "3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a004", "52:54:00:00:00:04", "10.9.0.14"
    lab.ovn.nb("lsp-add", "net", port, "--", "lsp-set-addresses", port, f"{mac} {address}", "--",
               "lsp-set-port-security", port, f"{mac} {address}")  # fmt: skip
    want = {"server": "one", "port": port, "mac": mac, "told": {"mtu": MTU}}
    client = lab.client("bare1")
    with lab.ovn.killed_while_plugging("bare1"):
        assert client.ensure("interface_attachment", f"one:{mac}", want)["changed"]
    assert "does not run" in client.get("host")["ovn"]["reason"] and not lab.ovn.bound(port)
    assert [one["port"] for one in client.get("server", "one")["networks"]] == [PORTS["one"][0], port]
    lab.ovn.start_controller("bare1")
    eventually(lambda: lab.ovn.chassis(port) == "bare1", "the port is bound")
    assert not client.ensure("interface_attachment", f"one:{mac}", want)["changed"]
    eventually(lambda: "eth1" in lab.sh("bare1", "one", "ls /sys/class/net"), "the guest has it")
    lab.sh("bare1", "one", f"ip addr add {address}/24 dev eth1; ip link set eth1 up")
    eventually(lambda: lab.reaches("bare1", "one", PORTS["two"][2], "-I eth1"), "it carries packets")
    assert client.delete("interface_attachment", f"one:{mac}")["changed"]
    eventually(lambda: len(lab.taps("bare1")) == 1, "its tap goes")
    lab.ovn.nb("lsp-del", port)


def test_live_migration(lab: Cloudless) -> None:
    """The port goes along; meanwhile somebody who pings the guest misses a few answers at most."""
    port, _mac, address = PORTS["two"]
    lab.sh("bare1", "one", f"ping -i 0.2 {address} >/run/pings 2>&1 & true")
    lab.ovn.nb("lsp-set-options", port, "requested-chassis=bare2,bare1", "activation-strategy=rarp")
    flow = Migrate(Side(lab.client("bare2")), Side(lab.client("bare1")), "two", {"type": "live"})
    began = time.monotonic()
    steps = [step.verb for step in flow.steps()]
    assert "move" in steps
    lab.ovn.nb("lsp-set-options", port, "requested-chassis=bare1")
    print(f"\novn: live migration in {time.monotonic() - began:.1f} s")
    assert lab.ovn.chassis(port) == "bare1"
    assert len(lab.taps("bare1")) == 2 and lab.taps("bare2") == set()
    assert lab.reaches("bare1", "two", PORTS["one"][2])
    lab.sh("bare1", "one", "kill -INT $(pidof ping); sleep 1")
    said = lab.sh("bare1", "one", "tail -n 3 /run/pings")
    sent, received = (int(said.partition(f" packets {word}")[0].split()[-1].rpartition(",")[2])
                      for word in ("transmitted", "received"))  # fmt: skip
    print(f"ovn: {sent - received} of {sent} pings without answer")
    assert received and (sent - received) * 0.2 < 60
    assert lab.sh("bare1", "two", "cat /proc/uptime")


def test_the_tap_goes_with_its_guest(lab: Cloudless) -> None:
    for name in PORTS:
        lab.client("bare1").delete("server", name)
    for host in HOSTS:
        assert lab.taps(host) == set()
        assert "mt" not in [one[:2] for one in lab.site.hosts[host].run(["ls", "/sys/class/net"]).stdout.split()]
    assert not lab.ovn.bound(PORTS["one"][0])


def test_without_a_southbound_database(lab: Cloudless) -> None:
    """What cannot be plugged in is refused by name, and nothing is left of it."""
    lab.ovn.sb("del-connection")
    lab.site.hosts["bare2"].run(["ovs-vsctl", "set", "open_vswitch", ".", "external-ids:ovn-remote=ssl:127.0.0.1:1"])
    reason: Callable[[], str] = lambda: lab.client("bare2").get("host")["ovn"]["reason"]  # noqa: E731
    eventually(lambda: "no connection to the southbound database" in reason(), "it is heard of")
    with pytest.raises(Conflict, match="cannot plug in ports of OVN: ovn-controller has no connection"):
        lab.make("bare2", "two")
    assert lab.client("bare2").list("server") == []
