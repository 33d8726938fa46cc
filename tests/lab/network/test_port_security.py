# SPDX-License-Identifier: GPL-3.0-or-later
"""Real guests send what is not theirs: nothing of it gets anywhere, and each kind is counted."""

from __future__ import annotations

import json
import socket
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar_agent.host.networks import tap_prefix
from magnetar_agent.virt.network.port_filter import table_name
from tests.support.lab import guest
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """Guest one has a fixed address, guest two what DHCP gives it."""
    with LabAgent() as made:
        made.import_image("ramdisk", guest_image["ramdisk"], disk_format="ari")
        made.import_image("kernel", guest_image["kernel"], disk_format="aki", ramdisk="ramdisk",
                          cmdline=guest.KERNEL_ARGS)  # fmt: skip
        made.ensure("network", f"net-{made.mark}", {"mode": "nat", "cidr": made.cidr})
        for name, more in (("one", {"address": f"{made.subnet}7"}), ("two", {})):
            made.ensure("server", name, {
                "flavor": {"vcpus": 1, "ram": 128, "disk": 0}, "image": "kernel",
                "networks": [{"network": f"net-{made.mark}", **more}]})  # fmt: skip
        for name in ("one", "two"):
            made.up(name)
            eventually(lambda name=name: any(line.startswith("nic ") for line in made.markers(name)), "a lease")
        yield made


def drops(lab: LabAgent) -> dict[str, int]:
    """Packets by counter, of both tables of this agent."""
    name = table_name(tap_prefix(lab.state))
    done = subprocess.run(["nft", "-j", "list", "counters"], check=True, capture_output=True, text=True)
    found = [one["counter"] for one in json.loads(done.stdout)["nftables"] if "counter" in one]
    return {one["name"]: one["packets"] for one in found if one["table"] == name}


def reaches(lab: LabAgent, name: str, address: str) -> bool:
    """Whether it has an answer to a ping."""
    said = str(lab.ask(name, f"sh ping -c 2 -W 1 {address}")["output"])
    return "2 packets received" in said or "1 packets received" in said


def test_guests_that_do_as_they_should(lab: LabAgent) -> None:
    assert lab.show("host")["port_security"] == {"ports": 2, "reason": ""}
    for name in ("one", "two"):
        assert reaches(lab, name, f"{lab.subnet}1")
    assert reaches(lab, "two", f"{lab.subnet}7")
    # What is not fixed is learned anew where somebody flushes the rules, as those of the host's firewall.
    name = table_name(tap_prefix(lab.state))
    subprocess.run(["nft", f"delete table bridge {name}"], check=True)
    eventually(lambda: drops(lab).keys() > {"closed_port"}, "the filter is back")
    assert reaches(lab, "two", f"{lab.subnet}1")


def test_ports_of_the_host(lab: LabAgent) -> None:
    """A guest has no connection to what the host listens on, at none of its addresses, but to its DNS."""
    with socket.create_server(("0.0.0.0", 0)) as heard:
        port = heard.getsockname()[1]
        before = drops(lab)["closed_port"]
        assert lab.ask("two", f"sh nc -w 2 {lab.subnet}1 {port} </dev/null")["code"] != 0
        assert drops(lab)["closed_port"] > before
        heard.settimeout(0.1)
        with pytest.raises(TimeoutError):
            heard.accept()
    assert lab.ask("two", f"sh nc -w 2 {lab.subnet}1 53 </dev/null")["code"] == 0
    said = str(lab.ask("two", "sh printf 'GET /openstack HTTP/1.0\\r\\n\\r\\n' | nc -w 5 169.254.169.254 80")["output"])
    assert said.startswith(("HTTP/1.0 200", "HTTP/1.1 200"))


def test_a_fixed_address_that_changes(lab: LabAgent) -> None:
    """The filter follows at once; the guest hears of it when it renews its lease."""
    network = f"net-{lab.mark}"
    lab.ensure("server", "one", {"networks": [{"network": network, "address": f"{lab.subnet}9"}]})
    eventually(lambda: not reaches(lab, "one", f"{lab.subnet}1"), "the former address is false")
    lab.sh("one", f"killall udhcpc; ip addr flush dev eth0; ip addr add {lab.subnet}9/24 dev eth0")
    assert reaches(lab, "one", f"{lab.subnet}1")


@pytest.mark.deep(shard="one host")
def test_security_groups(lab: LabAgent) -> None:
    """What groups of a cloud let pass, between guests of one bridge and from the host: at once, and no more."""
    network, ours, theirs = f"net-{lab.mark}", str(uuid.uuid4()), str(uuid.uuid4())
    out = [{"direction": "egress", "ethertype": one} for one in ("IPv4", "IPv6")]
    inward = {"direction": "ingress", "ethertype": "IPv4"}
    one, two = (lab.show("server", name)["addresses"][network][0]["addr"] for name in ("one", "two"))

    def rules(id: str, *more: dict[str, object], members: Sequence[str] = ()) -> None:
        revision = int(lab.show("group_filter", id)["revision"]) + 1 if id in known else 0
        known.add(id)
        lab.ensure("group_filter", id, {"name": id, "revision": revision, "rules": [*out, *more],
                                          "members": list(members)})

    def have(**groups: list[str] | None) -> None:
        for name, ids in groups.items():
            (nic,) = lab.show("server", name)["networks"]
            lab.ensure("interface_attachment", f"{name}:{nic['mac']}", {
                "server": name, "mac": nic["mac"], "security_groups": ids})

    def says() -> bool:
        return "over-tcp" in str(lab.ask("two", f"sh sleep 2 | nc -w 4 {one} 77")["output"])

    known = set[str]()
    rules(ours)
    rules(theirs, members=[two])  # which DHCP gave it: no document of this host says so
    lab.sh("one", "(while true; do echo over-tcp | nc -l -p 77; done) >/dev/null 2>&1 & true")
    assert reaches(lab, "two", one) and says()
    have(one=[ours], two=[theirs])
    eventually(lambda: not reaches(lab, "two", one), "nothing comes in")
    assert drops(lab)["group_ingress"] > 0
    assert not answers_ping(one)  # the host is no better, but what guests ask of it is answered
    assert reaches(lab, "one", f"{lab.subnet}1") and reaches(lab, "two", f"{lab.subnet}1")
    said = str(lab.ask("two", "sh printf 'GET /openstack HTTP/1.0\\r\\n\\r\\n' | nc -w 5 169.254.169.254 80")["output"])
    assert said.startswith(("HTTP/1.0 200", "HTTP/1.1 200"))
    rules(ours, {**inward, "protocol": 6, "port_range_min": 77, "port_range_max": 77, "remote_group": theirs})
    eventually(says, "what a rule lets pass")
    assert not reaches(lab, "two", one)
    rules(theirs)  # a member less
    eventually(lambda: not says(), "it is no member")
    rules(ours, {**inward, "protocol": 1, "port_range_min": 8, "remote_ip_prefix": f"{two}/32"})
    eventually(lambda: reaches(lab, "two", one), "another rule")
    have(one=None, two=None)
    eventually(says, "without groups all pass")


def answers_ping(address: str) -> bool:
    """Whether the host has an answer."""
    return subprocess.run(["busybox", "ping", "-c", "1", "-W", "1", address], check=False,
                          capture_output=True).returncode == 0


def test_false_addresses(lab: LabAgent) -> None:
    """The last test: guest two takes guest one's address, another MAC, and claims to be the gateway."""
    before = drops(lab)
    lab.sh("two", "killall udhcpc; true")
    lab.ask("two", f"sh arping -c 2 -A -I eth0 -s {lab.subnet}1 {lab.subnet}9")
    lab.sh("two", f"ip addr flush dev eth0; ip addr add {lab.subnet}9/24 dev eth0")
    assert not reaches(lab, "two", f"{lab.subnet}1")
    assert drops(lab)["false_arp"] >= before["false_arp"] + 2
    # With an entry of its own it needs no ARP.
    card = Path(f"/sys/class/net/{bridge_of(lab)}/address").read_text().strip()
    lab.ask("two", f"sh arp -s {lab.subnet}1 {card}")
    assert not reaches(lab, "two", f"{lab.subnet}1")
    assert drops(lab)["false_ipv4"] > before["false_ipv4"]
    lab.sh("two", "ip link set eth0 down; ip link set eth0 address 52:54:00:99:99:99; ip link set eth0 up")
    assert not reaches(lab, "two", f"{lab.subnet}1")
    assert drops(lab)["false_mac"] > before["false_mac"]
    # Without agent it is the same: the host asks for guest two's address, and hears no answer.
    lab.sh("two", f"ip addr add {lab.subnet}99/24 dev eth0")
    lab.kill()
    assert drops(lab)
    assert not answers(lab, f"{lab.subnet}99") and answers(lab, f"{lab.subnet}9")
    lab.start()
    assert reaches(lab, "one", f"{lab.subnet}1")


def answers(lab: LabAgent, address: str) -> bool:
    """Whether somebody answers the host's ARP."""
    return subprocess.run(["busybox", "arping", "-c", "3", "-w", "4", "-f", "-I", bridge_of(lab), address],
                          check=False, capture_output=True).returncode == 0  # fmt: skip


def bridge_of(lab: LabAgent) -> str:
    """The bridge of the network, as its document says."""
    (path,) = (lab.state / "documents/network").glob("*.json")
    return str(json.loads(path.read_text())["want"]["bridge"])
