# SPDX-License-Identifier: GPL-3.0-or-later
"""A router's gateway host fails, and another one has what its servers send out and what comes in to them.

The guest is on a third host: OVN takes one over only where a host is left that both of the others could reach.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.agent import eventually
from tests.support.lab.ovn_cloud import Cloud, cloud_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="gateways of OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

HOSTS = ("bare1", "bare2", "bare3")
#: The first one has the guest, and OVN's central.
GATEWAYS = ("bare2", "bare3")
#: Pings that may be lost, five a second, on a machine that has much else to do.
MOST = 300


def gateway(cloud: Cloud) -> str:
    """The host through which the only router goes out; "" for none."""
    name = cloud.ovn.sb("--bare", "--columns=logical_port", "find", "port_binding", "type=chassisredirect")
    return cloud.ovn.chassis(name) if name else ""


def answered(cloud: Cloud) -> bool:
    """Whether pings of the guest are answered now."""
    last = "grep seq= /run/pings | tail -n 1"
    return len(set(re.findall(r"seq=(\d+)", cloud.sh("a1", f"{last}; sleep 1; {last}")))) == 2


def test_a_gateway_fails(tmp_path: Path, guest_image: dict[str, Path]) -> None:
    with cloud_of(tmp_path, HOSTS, guest_image["disk"], ovn_gateway_hosts=list(GATEWAYS)) as cloud:
        ask, machine = cloud.admin.ask, cloud.site.machine_address
        cloud.of["alpha"] = cloud.admin  # who may say on which host a server is to be
        cloud.outside()
        ask("network create lan")
        ask("subnet create --network lan --subnet-range 10.5.0.0/24 lan-v4")
        ask("router create gate --external-gateway ext")
        ask("router add subnet gate lan-v4")
        ask("port create --network lan --fixed-ip ip-address=10.5.0.11 a1")
        ask("security group rule create --protocol tcp --dst-port 77 "
            f"{cloud.admin.json('port show a1')['security_group_ids'][0]}")
        ask(f"server create a1 --image tiny --flavor tiny --port a1 --availability-zone nova:{HOSTS[0]}")
        eventually(lambda: cloud.json_of("a1")["status"] in ("ACTIVE", "ERROR"), "a1 is built")
        guest = cloud.server("a1")
        cloud.guests.leased(guest.host, guest.id, cloud.admin.json("port show a1")["mac_address"], "10.5.0.11")
        cloud.sh("a1", "(while true; do echo a1 | nc -l -p 77; done) >/dev/null 2>&1 & true")
        floating = cloud.admin.json("floating ip create ext")["floating_ip_address"]
        ask("floating ip port forwarding create --port a1 --internal-ip-address 10.5.0.11 --internal-protocol-port "
            f"77 --external-protocol-port 2277 --protocol tcp {floating}")
        eventually(lambda: cloud.reaches("a1", machine), "a1 reaches the machine by the router")
        eventually(lambda: cloud.dials(floating, 2277) == "a1", "a1 answers at the forwarded port")
        first = gateway(cloud)
        assert guest.host == HOSTS[0] and first in GATEWAYS
        cloud.pinging("a1", machine)
        # Flows stay without who writes them, and so do the gateway and its tunnels (BFD is Open vSwitch's).
        cloud.ovn.kill_controller(first)
        assert cloud.dials(floating, 2277) == "a1"
        missing, came = cloud.unanswered("a1")
        print(f"\novn: the gateway's controller ends: {missing} pings in a row without an answer, {came} with one")
        assert gateway(cloud) == first
        # And now the host, for all that others see of it.
        cloud.pinging("a1", machine)
        cloud.ovn.kill_switch(first)
        (second,) = set(GATEWAYS) - {first}
        eventually(lambda: gateway(cloud) == second, "the other host is the gateway")
        eventually(lambda: cloud.dials(floating, 2277) == "a1", "the forwarded port is there again")
        eventually(lambda: answered(cloud), "pings are answered again")
        missing, came = cloud.unanswered("a1")
        print(f"\novn: the gateway fails: {missing} pings of each 0.2 s in a row without an answer, {came} with one")
        assert missing < MOST
        cloud.ovn.start_switch(first)
        cloud.ovn.start_controller(first)
        eventually(lambda: gateway(cloud) == first, "the first host is the gateway again")
        eventually(lambda: cloud.reaches("a1", machine), "a1 reaches the machine by it")
        eventually(lambda: cloud.dials(floating, 2277) == "a1", "the forwarded port is there")
