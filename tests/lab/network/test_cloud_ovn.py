# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud on OVN: API, conductor and network service on the machine, agents on two hosts, real guests of two projects.

The tests are one story and run in its order. Projects use OpenStack's own client, each with a user of its own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.virt.network.switch_filter import COOKIE
from tests.support.lab.agent import eventually
from tests.support.lab.ovn_cloud import ADDRESSES, Cloud, answer, cloud_of, knocking

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="cloud on OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

HOSTS = ("bare1", "bare2")
#: Range of both projects' networks.
RANGE = "10.5.0.0/24"
#: Pings of each 0.2 s that may be lost while a server moves: those of a second. On a quiet machine four are (the guest
#: stands still for up to half a second of it, ``live_migration_downtime``). This one may have much else to do just
#: then, so one of some moves has to be so quick.
GAP, MOVES = 5, 5
#: What is sent to see a limit, in kbit, and the limit of a second.
KBIT, KBPS = 1000, 100


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    with cloud_of(tmp_path_factory.mktemp("cloud-ovn"), HOSTS, guest_image["disk"]) as found:
        yield found


def test_servers_of_two_projects(cloud: Cloud) -> None:
    """Their networks have equal ranges, and each other's servers are not there."""
    for project, servers in ADDRESSES.items():
        cloud.project(project)
        ask = cloud.of[project].ask
        ask("network create lan")
        ask(f"subnet create --network lan --subnet-range {RANGE} lan-v4")
        apart = cloud.of[project].json("server group create --policy anti-affinity apart")["id"]
        for name, address in servers.items():
            ask(f"port create --network lan --fixed-ip ip-address={address} {name}")
            ask(f"server create {name} --image tiny --flavor tiny --port {name} --hint group={apart}")
    for project, servers in ADDRESSES.items():
        for name, address in servers.items():
            eventually(lambda project=project, name=name: cloud.of[project].json(
                f"server show {name}")["status"] in ("ACTIVE", "ERROR"), f"{name} is built")
            mac = cloud.of[project].json(f"port show {name}")["mac_address"]
            at = cloud.server(name)
            cloud.guests.leased(at.host, at.id, mac, address)
            cloud.sh(name, f"(while true; do echo {name} | nc -l -p 77; done) >/dev/null 2>&1 & true")
    assert cloud.server("a1").host != cloud.server("a2").host
    assert cloud.reaches("a1", "10.5.0.12") and cloud.reaches("a2", "10.5.0.11")
    assert cloud.says("a1", "10.5.0.12") == "a2"  # and not b1, which has that address too
    assert not cloud.reaches("b1", "10.5.0.11")
    assert cloud.says("b1", "10.5.0.11") == ""
    for host in cloud.site.hosts.values():  # what is a project's is nobody's way
        assert "10.5.0." not in host.run(["ip", "route", "show", "table", "all"]).stdout


def test_who_claims_an_address_of_another_is_not_heard(cloud: Cloud) -> None:
    """By ARP: neither of one that nobody has, nor of another guest."""
    asked = "arping -c 2 -w 3 -I eth0"
    assert "Received 0" not in cloud.sh("a1", f"{asked} 10.5.0.12")
    for claimed in ("10.5.0.99", "10.5.0.1"):
        said = cloud.sh("a1", f"ip addr add {claimed}/32 dev eth0; {asked} -s {claimed} 10.5.0.12; "
                        f"ip addr del {claimed}/32 dev eth0")  # fmt: skip
        assert "Received 0" in said, said
    assert "10.5.0.99" not in cloud.sh("a2", "cat /proc/net/arp")


def test_who_claims_an_address_of_another_by_neighbour_discovery_is_not_heard(cloud: Cloud) -> None:
    alpha = cloud.of["alpha"]
    alpha.ask("subnet create --network lan --ip-version 6 --ipv6-address-mode slaac --ipv6-ra-mode slaac "
              "--subnet-range 2001:db8:5::/64 lan-v6")
    own = {name: next(one["ip_address"] for one in alpha.json(f"port show {port_id(cloud, name)}")["fixed_ips"]
                      if ":" in one["ip_address"]) for name in ("a1", "a2")}
    for name, address in own.items():
        cloud.sh(name, f"ip -6 addr add {address}/64 dev eth0")
    asked = f"ping6 -c 2 -w 4 -I {{}} {own['a2']}"
    eventually(lambda: ", 0 packets received" not in cloud.sh("a1", asked.format(own["a1"]) + " || true"), "they meet")
    said = cloud.sh("a1", "ip -6 addr add 2001:db8:5::99/64 dev eth0; sleep 3; "
                    f"{asked.format('2001:db8:5::99')} || true; ip -6 addr del 2001:db8:5::99/64 dev eth0")  # fmt: skip
    assert " 0 packets received" in said, said
    assert "2001:db8:5::99" not in (known := cloud.sh("a2", "ip -6 neigh")) and own["a1"] in known
    for name, address in own.items():
        cloud.sh(name, f"ip -6 addr del {address}/64 dev eth0")
    alpha.ask("subnet delete lan-v6")


def test_who_plays_the_router_is_not_heard(cloud: Cloud) -> None:
    """By router advertisements, between two hosts: also when ovn-controller has begun anew, and until the port has no
    port security."""
    alpha, (prefix, marked) = cloud.of["alpha"], ("2001:db8:66::", "20010db80066")
    alpha.ask("subnet create --network lan --ip-version 6 --ipv6-address-mode slaac --subnet-range 2001:db8:5::/64 "
              "lan-v6")
    again = "cd /proc/sys/net/ipv6/conf/eth0; echo 1 >disable_ipv6; echo 0 >disable_ipv6"
    for name in ("a1", "a2"):  # with the link-local address that the DHCP client's script has taken away
        cloud.sh(name, again)
    cloud.sh("a1", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; echo 'interface eth0 { AdvSendAdvert on; "
             f"MinRtrAdvInterval 3; MaxRtrAdvInterval 4; prefix {prefix}/64 {{ }}; }};' >/run/radvd.conf; "
             "radvd -C /run/radvd.conf -p /run/radvd.pid -m logfile -l /run/radvd.log")

    def heard() -> bool:
        return marked in cloud.sh("a2", "cat /proc/net/if_inet6")

    def dropped() -> bool:
        flow = cloud.site.hosts[host].run(["ovs-ofctl", "dump-flows", "br-int", f"cookie={COOKIE:#x}/-1"]).stdout
        return re.search(r"n_packets=[1-9]", flow) is not None

    host = cloud.server("a2").host
    for _time in range(2):
        eventually(dropped, f"{host} drops one")
        assert not heard()
        cloud.ovn.kill_controller(host)
        cloud.ovn.start_controller(host)
    port = port_id(cloud, "a1")
    alpha.ask(f"port set --no-security-group --disable-port-security {port}")
    eventually(heard, "a2 hears a router")
    cloud.sh("a1", "kill $(cat /run/radvd.pid); echo 0 >/proc/sys/net/ipv6/conf/all/forwarding")
    cloud.sh("a2", again)
    alpha.ask(f"port set --enable-port-security --security-group default {port}")
    alpha.ask("subnet delete lan-v6")


def test_who_plays_the_dhcp_server_is_not_heard(cloud: Cloud) -> None:
    """Anything else passes between the two, which are in the same group."""
    udp = 'package.cpath = "/usr/lib/lua/?.so"; s = require("socket.core").udp4(); s:setsockname("*", {port}); {rest}'
    hear = udp.format(port=68, rest='io.open("/run/bound", "w"):close(); '
                      'f = io.open("/run/heard", "w"); f:write(s:receive()); f:close()')  # fmt: skip
    cloud.sh("a2", f"lua5.4 -e '{hear}' >/dev/null 2>&1 & until [ -e /run/bound ]; do sleep 0.1; done")
    for port in (67, 66):
        send = udp.format(port=port, rest=f's:sendto("by {port}", "10.5.0.12", 68)')
        cloud.sh("a1", f"lua5.4 -e '{send}'; sleep 1")
    assert eventually(lambda: cloud.sh("a2", "cat /run/heard").strip(), "a2 hears something") == "by 66"


def test_the_metadata_service(cloud: Cloud) -> None:
    """Each guest is told of itself, also those with equal addresses; its route there came by DHCP."""
    for name in ("a1", "a2", "b1"):
        assert "169.254.169.254 dev eth0" in cloud.sh(name, "ip route")
        said = cloud.sh(name, "printf 'GET /openstack/latest/meta_data.json HTTP/1.0\\r\\n\\r\\n' | "
                        "nc -w 5 169.254.169.254 80")  # fmt: skip
        assert json.loads(said.replace("\r", "").partition("\n\n")[2])["uuid"] == cloud.server(name).id


def test_a_floating_ip(cloud: Cloud) -> None:
    """What comes in by it is what the group lets in; what goes out has the router's address."""
    cloud.outside()
    machine = cloud.site.machine_address
    alpha = cloud.of["alpha"]
    alpha.ask("router create gate --external-gateway ext")
    alpha.ask("router add subnet gate lan-v4")
    cloud.floating = alpha.json("floating ip create ext")["floating_ip_address"]
    alpha.ask(f"server add floating ip a1 {cloud.floating}")
    assert cloud.floating in str(alpha.json("server show a1")["addresses"])
    eventually(lambda: cloud.reaches("a2", machine), "a2 reaches the machine by the router")
    assert not cloud.pings()  # the default group lets in members only
    rule = alpha.json("security group rule create --protocol icmp default")["id"]
    eventually(cloud.pings, "the floating IP answers")
    alpha.ask(f"security group rule delete {rule}")
    eventually(lambda: not cloud.pings(), "it answers no more")
    alpha.ask("security group rule create --protocol icmp default")
    eventually(cloud.pings, "it answers again")
    assert not cloud.reaches("b1", machine)  # beta has no router


def test_a_group_is_taken_from_a_running_server(cloud: Cloud) -> None:
    """Also a connection that is open ends at once, which its own rules would let go on."""
    alpha = cloud.of["alpha"]
    alpha.ask("security group create other")
    alpha.ask("server add security group a2 other")
    cloud.sh("a1", "(sleep 9999 | nc -l -p 76) >/run/open 2>&1 & true")
    cloud.sh("a2", "(while true; do echo x; sleep 0.2; done) | nc 10.5.0.11 76 >/dev/null 2>&1 & true")
    count = "wc -l </run/open"
    eventually(lambda: int(cloud.sh("a1", count)) > 1, "lines come")
    alpha.ask("server remove security group a2 default")  # a1 lets in members of it
    eventually(lambda: len(set(cloud.sh("a1", f"{count}; sleep 2; {count}").split())) == 1, "no more lines come")
    alpha.ask("server add security group a2 default")
    alpha.ask("server remove security group a2 other")
    for name in ("a1", "a2"):
        cloud.sh(name, "kill $(pidof nc)")
    assert cloud.says("a1", "10.5.0.12") == "a2"
    alpha.ask("server remove security group a2 default")
    eventually(lambda: not cloud.reaches("a1", "10.5.0.12"), "a2 answers no more")
    alpha.ask("server add security group a2 default")
    eventually(lambda: cloud.says("a1", "10.5.0.12") == "a2", "a2 answers again")


def test_a_port_is_forwarded(cloud: Cloud) -> None:
    """Single ports of another floating IP lead to a server that has none."""
    alpha = cloud.of["alpha"]
    alpha.ask("security group rule create --protocol tcp --dst-port 77 default")
    floating = alpha.json("floating ip create ext")["floating_ip_address"]
    alpha.ask("floating ip port forwarding create --port a2 --internal-ip-address 10.5.0.12 --internal-protocol-port "
              f"77 --external-protocol-port 2277 --protocol tcp {floating}")
    eventually(lambda: cloud.dials(floating, 2277) == "a2", "a2 answers at the forwarded port")
    assert cloud.dials(floating, 77) == "" and answer(floating) is None
    assert cloud.dials(cloud.floating, 77) == "a1"


def test_a_trunk(cloud: Cloud) -> None:
    """Guests that run get VLAN devices on another network, each with a tag of its own, and send as their subports."""
    alpha = cloud.of["alpha"]
    alpha.ask("network create side")
    alpha.ask("subnet create --network side --subnet-range 10.6.0.0/24 side-v4")
    for name, address, tag in (("a1", "10.6.0.11", 101), ("a2", "10.6.0.12", 202)):
        alpha.ask(f"port create --network side --fixed-ip ip-address={address} side-{name}")
        alpha.ask(f"network trunk create --parent-port {name} {name}")
        vlan(cloud, name, address, tag)
    assert not cloud.reaches("a1", "10.6.0.12")
    for name, tag in (("a1", 101), ("a2", 202)):
        alpha.ask(f"network trunk set --subport port=side-{name},segmentation-type=vlan,segmentation-id={tag} {name}")
    eventually(lambda: cloud.reaches("a1", "10.6.0.12"), "a1 reaches a2 by its VLAN")
    assert cloud.reaches("a2", "10.6.0.11") and cloud.reaches("a1", "10.5.0.12")
    assert cloud.ovn.chassis(port_id(cloud, "side-a1")) == cloud.server("a1").host
    assert alpha.json("port show side-a1")["status"] == "ACTIVE"
    cloud.sh("a1", "ip addr add 10.6.0.9/24 dev side")
    assert "bytes from" not in cloud.sh("a1", "ping -c 2 -W 1 -I 10.6.0.9 10.6.0.12")
    alpha.ask("port set --no-security-group side-a1")
    eventually(lambda: not cloud.reaches("a1", "10.6.0.12"), "without a group nothing passes")
    alpha.ask("port set --security-group default side-a1")
    eventually(lambda: cloud.reaches("a1", "10.6.0.12"), "with it again")


def vlan(cloud: Cloud, name: str, address: str, tag: int) -> None:
    """A VLAN device of the server's subport in its guest."""
    mac = cloud.admin.json(f"port show side-{name}")["mac_address"]
    said = cloud.sh(name, f"ip link add link eth0 name side address {mac} type vlan id {tag}; "
                    f"ip addr add {address}/24 dev side; ip link set side up; ip addr show side")  # fmt: skip
    assert f"{address}/24" in said and mac in said


def test_qos(cloud: Cloud) -> None:
    """What the server sends is marked and limited, from now on, and is not when the policy goes."""
    cloud.admin.ask("network qos policy create --share slow")
    cloud.admin.ask("network qos rule create --type dscp-marking --dscp-mark 26 slow")
    limit = f"--max-kbps {KBPS} --max-burst-kbits {KBPS} --egress"
    cloud.admin.ask(f"network qos rule create --type bandwidth-limit {limit} slow")
    alpha, free = cloud.of["alpha"], sent(cloud)
    assert answer(cloud.floating) == 0
    alpha.ask("port set --qos-policy slow a1")
    eventually(lambda: answer(cloud.floating) == 26, "answers are marked")
    limited = sent(cloud)
    print(f"\novn: {KBIT} kbit in {free} s, with at most {KBPS} kbit/s in {limited} s")
    assert limited > free and limited >= KBIT / KBPS - 3  # the first second's at once, and clocks that count seconds
    alpha.ask("port unset --qos-policy a1")
    eventually(lambda: answer(cloud.floating) == 0, "answers are not marked")


def sent(cloud: Cloud) -> int:
    """Seconds in which a1 sends `KBIT` to a2."""
    cloud.sh("a1", f"head -c {KBIT * 125} /dev/zero | nc -l -p 79 >/dev/null 2>&1 & true")
    # Its end of what it reads stays open: nc ends with it.
    cloud.sh("a2", "(date +%s >/run/sent; "
             "sleep 900 | (nc 10.5.0.11 79 | wc -c; date +%s) >>/run/sent) >/dev/null 2>&1 & true")
    said = eventually(lambda: len(found := cloud.sh("a2", "cat /run/sent").split()) == 3 and found, "all has come")
    began, count, ended = map(int, said)
    assert count == KBIT * 125
    return ended - began


def test_live_migration(cloud: Cloud) -> None:
    """The connection is kept, and the floating IP goes along. What the group does not let in never comes in."""
    cloud.sh("a1", "(while true; do echo met | nc -l -p 80; done) >/dev/null 2>&1 & true")
    assert "met" in cloud.sh("a2", "sleep 2 | nc -w 5 10.5.0.11 80")  # a member
    cloud.of["alpha"].ask("server group delete apart")  # both are on one host soon
    cloud.sh("a1", "(sleep 9999 | nc -l -p 78) >/run/came 2>&1 & true")  # what it reads has no end
    cloud.sh("a2", "(while true; do date +%s; sleep 1; done) | nc 10.5.0.11 78 >/dev/null 2>&1 & true")
    cloud.pinging("a2", "10.5.0.11")
    count = "wc -l </run/came"
    eventually(lambda: int(cloud.sh("a1", count)) > 1, "lines come")
    with knocking(cloud.floating, 80) as met:
        to = moved(cloud)
        lines = int(cloud.sh("a1", count))
        eventually(lambda: int(cloud.sh("a1", count)) > lines + 1, "lines come on the same connection")
        eventually(cloud.pings, "the floating IP answers at its new host")
    assert not met and cloud.dials(cloud.floating, 77) == "a1"
    assert cloud.ovn.chassis(port_id(cloud, "a1")) == to
    eventually(lambda: cloud.ovn.chassis(port_id(cloud, "side-a1")) == to, "its subport came along")
    gaps = [cloud.unanswered("a2")]
    while min(gaps)[0] > GAP and len(gaps) < MOVES:
        cloud.pinging("a2", "10.5.0.11")
        moved(cloud)
        gaps.append(cloud.unanswered("a2"))
    print("".join(f"\novn: live migration: {missing} pings of each 0.2 s in a row without an answer, {came} with one"
                  for missing, came in gaps))
    assert min(gaps)[0] <= GAP
    cloud.sh("a1", "ip link del side")  # QEMU 7.2 forgets which tags a guest takes (docs/howto/use-trunks.md)
    vlan(cloud, "a1", "10.6.0.11", 101)
    eventually(lambda: cloud.reaches("a1", "10.6.0.12"), "its VLAN is there again")


def moved(cloud: Cloud) -> str:
    """Have a1 go to the other host, which is told."""
    before = cloud.server("a1")
    (to,) = set(HOSTS) - {before.host}
    cloud.admin.ask(f"server migrate --live-migration {before.id}")
    eventually(lambda: cloud.json_of("a1")["OS-EXT-SRV-ATTR:host"] == to
               and cloud.json_of("a1")["status"] == "ACTIVE", "a1 is at the other host")
    return to


def test_groups_hold_while_what_filters_begins_anew(cloud: Cloud) -> None:
    """The agent, ovn-controller and ovs-vswitchd of a1's host: what the group does not let in never comes in."""
    host = cloud.server("a1").host
    with knocking(cloud.floating, 80) as met:
        for begin_anew in ((lambda: cloud.site.hosts[host].run(["systemctl", "restart", "magnetar-agent"]),),
                           (lambda: cloud.ovn.kill_controller(host), lambda: cloud.ovn.start_controller(host)),
                           (lambda: cloud.ovn.kill_switch(host), lambda: cloud.ovn.start_switch(host))):
            for act in begin_anew:
                act()
            eventually(lambda: cloud.dials(cloud.floating, 77) == "a1", "what it lets in comes in again")
    assert not met and "met" in cloud.sh("a2", "sleep 2 | nc -w 5 10.5.0.11 80")


def port_id(cloud: Cloud, name: str) -> str:
    return str(cloud.admin.json(f"port show {name}")["id"])


def test_the_central_is_killed(cloud: Cloud) -> None:
    """Guests go on; a server that needs a port is not started without one. New databases get all that there was."""
    cloud.ovn.kill()
    assert cloud.reaches("a1", "10.5.0.12") and cloud.says("a2", "10.5.0.11") == "a1" and cloud.pings()
    assert not cloud.reaches("b1", "10.5.0.11")
    alpha = cloud.of["alpha"]
    alpha.ask("server create late --image tiny --flavor tiny --network lan")
    late: dict[str, Any] = eventually(lambda: (found := alpha.json("server show late"))["status"] == "ERROR" and found,
                                      "it is not built")
    # Hosts say that they cannot plug in ports now (OvnFilter).
    assert "No valid host was found" in str(late["fault"])
    alpha.ask("server delete late --wait")
    cloud.ovn.central.run(["sh", "-ec", "rm /var/lib/ovn/nb.db /var/lib/ovn/sb.db"])
    began = time.monotonic()
    cloud.ovn.start()
    cloud.ovn.central.run(["ovn-nbctl", "set-connection", "ptcp:6641"])
    eventually(lambda: cloud.ovn.chassis(port_id(cloud, "b1")), "ports are bound again")
    print(f"\novn: all ports written and bound {time.monotonic() - began:.1f} s after new databases")
    try:
        eventually(cloud.pings, "the floating IP answers")
    except AssertionError:  # it was silent once, and nothing told why
        new = answer(cloud.floating, secrets.randbits(16))
        print(f"a new connection: {new}; a1 reaches a2: {cloud.reaches('a1', '10.5.0.12')}\n{cloud.ovn.told()}")
        raise
    assert cloud.reaches("a1", "10.5.0.12") and cloud.says("a2", "10.5.0.11") == "a1"
    assert not cloud.reaches("b1", "10.5.0.11")
