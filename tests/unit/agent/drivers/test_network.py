# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks and images: their plans (tests/cases/plans). Networks: addresses, bridges, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_agent.drivers.image import ImageDriver
from magnetar_agent.drivers.network import NetworkDriver
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host.networks import NetworkSpec
from magnetar_core.errors import Conflict, Immutable, InUse, InvalidField
from tests.unit.agent.conftest import SMALL, Host

PLANS = Path(__file__).parents[3] / "cases/plans"
CASES = [pytest.param(driver, case, id=f"{driver.kind.noun}: {case['name']}")
         for driver in (ImageDriver(), NetworkDriver())
         for case in yaml.safe_load((PLANS / f"{driver.kind.noun}.yml").read_text())]
#: Routes of a host in a namespace of its own: direct, behind a gateway, of another table, a blackhole, two defaults.
ROUTES = """set -e
ip link add br7 type bridge
ip link set br7 up
ip address add 10.0.0.1/16 dev br7
ip address add 192.168.9.9/32 dev br7
ip route add 172.30.0.0/16 via 10.0.0.7
ip route add 8.8.8.0/24 via 10.0.0.7 table 77
ip route add blackhole 10.244.1.0/26
ip route add default via 10.0.0.7
ip route add 0.0.0.0/1 via 10.0.0.7
exec "$@"
"""
NAT = {"mode": "nat", "cidr": "192.168.100.0/24"}


@pytest.fixture(autouse=True)
def on_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host on two networks."""
    monkeypatch.setattr(FakeHypervisor, "on_networks", [
        ("eth0", IPv4Network("10.0.0.0/16")), ("eth1", IPv4Network("192.168.1.0/24"))])


@pytest.mark.parametrize(("driver", "case"), CASES)
def test_plan(driver: Any, case: dict[str, Any]) -> None:
    assert [step.verb for step in driver.plan(case["want"], case["have"])] == case["steps"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip")
def test_routes_and_addresses_of_a_host() -> None:
    """Whatever leads somewhere in particular, in every table; no default route, and none by another name."""
    code = ("from magnetar_agent.virt.network.network import LibvirtNetworks\n"
            "for route in LibvirtNetworks().routes(): print(*route)")
    done = subprocess.run(["unshare", "--net", "sh", "-c", ROUTES, "sh", sys.executable, "-c", code],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {
        "br7 10.0.0.1/32", "br7 10.0.0.0/16", "br7 192.168.9.9/32", "br7 172.30.0.0/16", "br7 8.8.8.0/24",
        " 10.244.1.0/26"}


def test_a_network_of_libvirt_keeps_its_addresses(host: Host) -> None:
    """Also while it does not run, when no route tells of it."""
    host.fake.network_outside("default", active=False, cidrs=("192.168.122.0/24",))
    with pytest.raises(InvalidField, match="overlaps with 192.168.122.0/24 of libvirt's network 'default'"):
        host.ensure("network", "lan", {"mode": "nat", "cidr": "192.168.0.0/16"})
    assert host.ensure("network", "lan", NAT).changed


def test_a_nat_network_is_made_and_goes(host: Host) -> None:
    predicted = host.ensure("network", "lan", NAT, dry_run=True)
    done = host.ensure("network", "lan", NAT)
    shown = done.resource
    assert [s.as_dict() for s in predicted.steps] == [s.as_dict() for s in done.steps]
    assert (shown["bridge"], shown["dhcp"], shown["dhcp_start"], shown["dhcp_end"], shown["active"],
            shown["managed"]) == ("magbr0", True, "192.168.100.2", "192.168.100.254", True, True)
    assert host.fake.networks()["lan"].uuid == shown["id"]
    assert not host.ensure("network", "lan", NAT).changed
    assert not host.ensure("network", "lan", {"cidr": "192.168.100.7/24"}).changed
    assert host.ensure("network", "lab", {"cidr": "192.168.101.0/30"}).resource["bridge"] == "magbr1"
    assert host.ensure("network", "lan", None).changed and "lan" not in host.fake.networks()
    assert not host.ensure("network", "lan", None).changed


def test_one_removed_outside_is_made_again(host: Host) -> None:
    host.ensure("network", "lan", NAT)
    host.fake.remove_network("lan")
    assert host.ensure("network", "lan", NAT, dry_run=True).changed
    assert host.ensure("network", "lan", NAT).changed
    assert not host.ensure("network", "lan", NAT).changed


def test_new_addresses_make_it_anew(host: Host) -> None:
    host.ensure("network", "lan", NAT)
    with pytest.raises(Immutable, match="cidr"):
        host.ensure("network", "lan", {"cidr": "192.168.102.0/24"})
    again = host.ensure("network", "lan", {"cidr": "192.168.102.0/24"}, on_immutable="recreate").resource
    assert again["dhcp_start"] == "192.168.102.2" and again["bridge"] == "magbr0"
    bridge = host.ensure("network", "lan", {"mode": "bridge", "bridge": "br0"}, on_immutable="recreate").resource
    assert bridge["cidr"] is None and not bridge["managed"] and "lan" not in host.fake.networks()


def test_a_bridge_of_the_host(host: Host) -> None:
    shown = host.ensure("network", "wan", {"mode": "bridge", "bridge": "br0"}).resource
    assert shown["active"] and not shown["managed"] and not shown["dhcp"]
    assert not host.ensure("network", "wan", {"mode": "bridge", "bridge": "br0"}).changed
    assert host.ensure("network", "wan", None).changed


@pytest.mark.parametrize(("want", "why"), [
    ({"mode": "bridge", "bridge": "br7"}, "bridge: must be an existing bridge of the host, which has br0"),
    ({"mode": "bridge"}, "bridge: is required"),
    ({"mode": "bridge", "bridge": "br0", "cidr": "192.168.100.0/24"}, "cidr: is for the modes"),
    ({"mode": "nat"}, "cidr: is required"),
    ({**NAT, "qos_policy": "slow"}, "qos_policy: is for networks of a cloud"),
    ({**NAT, "cidr": "192.168.300.0/24"}, "cidr: must be an IPv4 network"),
    ({**NAT, "cidr": "192.168.100.0/31"}, "cidr: must have a prefix from /8 to /30"),
    ({**NAT, "cidr": "127.1.0.0/16"}, "loopback"),
    ({**NAT, "cidr": "169.254.7.0/24"}, "link-local"),
    ({**NAT, "cidr": "224.0.0.0/8"}, "multicast"),
    ({**NAT, "cidr": "10.0.200.0/24"}, "overlaps with 10.0.0.0/16, which the host has on eth0"),
    ({**NAT, "cidr": "192.168.0.0/16"}, "overlaps with 192.168.1.0/24"),
    ({**NAT, "bridge": "br0"}, "bridge: must be a name that no bridge"),
    ({**NAT, "dhcp": False, "dhcp_start": "192.168.100.9"}, "dhcp_start: needs dhcp"),
    ({**NAT, "dhcp_start": "192.168.100.1"}, "dhcp_start: must lie in"),
    ({**NAT, "dhcp_end": "192.168.101.1"}, "dhcp_end: must lie in"),
    ({**NAT, "dhcp_start": "192.168.100.9", "dhcp_end": "192.168.100.8"}, "must not come after"),
    ({**NAT, "domain": "a_b"}, "domain: must be a DNS domain"),
    ({**NAT, "mtu": 100}, "mtu: must be"),
], ids=str)
def test_refused(host: Host, want: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        host.ensure("network", "lan", want)
    assert host.agent.host.documents.list("network") == [] and host.fake.networks() == {}


def test_networks_do_not_overlap(host: Host) -> None:
    host.ensure("network", "lan", NAT)
    with pytest.raises(InvalidField, match="overlaps with 192.168.100.0/24 of network 'lan'"):
        host.ensure("network", "two", {"cidr": "192.168.100.128/25"})


def test_a_network_of_somebody_else_is_not_adopted(host: Host) -> None:
    host.fake.make_network(NetworkSpec("8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "default", "nat", "virbr0",
                                       "192.168.122.1", 24))
    with pytest.raises(Conflict, match="not adopted"):
        host.ensure("network", "default", {"cidr": "192.168.123.0/24"})
    assert "default" in host.fake.networks()


def test_a_stopped_network_is_started_again(host: Host) -> None:
    host.ensure("network", "lan", NAT)
    kept = host.fake._networks["lan"]
    kept.seen = replace(kept.seen, active=False)
    assert [s.verb for s in host.ensure("network", "lan", NAT).steps] == ["make"]


def test_a_network_in_use_stays(host: Host) -> None:
    host.ensure("network", "lan", NAT)
    host.ensure("flavor", "small", SMALL)
    host.server(networks=[{"network": "lan"}])
    with pytest.raises(InUse, match="web1"):
        host.ensure("network", "lan", None)
    assert host.ensure("flavor", "small", None).changed
    host.ensure("server", "web1", None)
    assert host.ensure("network", "lan", None).changed
