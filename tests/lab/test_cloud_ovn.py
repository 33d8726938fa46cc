# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud on OVN: API, conductor and network service on the machine, agents on two hosts, real guests of two projects.

The tests are one story and run in its order. Projects use OpenStack's own client, each with a user of its own.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import bare
import pytest
import yaml
from clients import Clients
from ovn import Guests, Ovn
from plane import LabControl

from agent import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="cloud on OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

HOSTS = ("bare1", "bare2")
#: Range of both projects' networks. Servers by project: their addresses; one is in both.
RANGE = "10.5.0.0/24"
ADDRESSES = {"alpha": {"a1": "10.5.0.11", "a2": "10.5.0.12"}, "beta": {"b1": "10.5.0.12"}}


class Beside(NamedTuple):
    """What a control plane is beside: its folder, an agent, the range of the first network."""

    folder: Path
    endpoint: str
    cidr: str


class Server(NamedTuple):
    """Where a server is, and its address."""

    host: str
    id: str
    address: str


class Cloud:
    """The hosts, their agents, OVN, the control plane, and a client for each project and for the administrator."""

    def __init__(self, site: bare.Site, ovn: Ovn, control: LabControl) -> None:
        self.site, self.ovn, self.control, self.guests = site, ovn, control, Guests(site)
        self.admin = Clients(control.folder / "clouds.yaml", site.folder)
        self.of: dict[str, Clients] = {}
        #: The floating IP of a1.
        self.floating = ""

    def project(self, name: str) -> None:
        """A project with a user of the same name, who is a member of it."""
        self.admin.ask(f"project create {name}")
        self.admin.ask(f"user create --project {name} --password {name}-secret {name}")
        self.admin.ask(f"role add --project {name} --user {name} member")
        path = self.site.folder / f"{name}.yaml"
        known = yaml.safe_load(self.admin.clouds.read_text())
        known["clouds"]["magnetar"]["auth"].update(username=name, project_name=name, password=f"{name}-secret")
        path.write_text(yaml.safe_dump(known))
        self.of[name] = Clients(path, self.site.folder)

    def server(self, name: str) -> Server:
        """The server of that name, whose project's name begins with the same letter."""
        (project,) = (one for one in self.of if one[0] == name[0])
        (row,) = (one for one in self.admin.json("server list --all-projects --long") if one["Name"] == name)
        assert row["Status"] == "ACTIVE", self.admin.json(f"server show {row['ID']}").get("fault")
        return Server(row["Host"], row["ID"], ADDRESSES[project][name])

    def sh(self, name: str, script: str) -> str:
        """What a script in the server's guest prints."""
        at = self.server(name)
        return self.guests.sh(at.host, at.id, script)

    def reaches(self, name: str, address: str) -> bool:
        """Whether the guest has answers to pings."""
        return "bytes from" in self.sh(name, f"ping -c 2 -W 1 {address}")

    def says(self, name: str, address: str) -> str:
        """Who answers the guest by TCP, at port 77."""
        return self.sh(name, f"sleep 2 | nc -w 5 {address} 77 2>/dev/null").strip()

    def pings(self) -> bool:
        """Whether the machine has an answer from the floating IP."""
        return answers(self.floating)


def answers(address: str) -> bool:
    """Whether an echo request (RFC 792) of this machine is answered within a second: it need not have ``ping``."""
    head = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, 1)
    total = sum(struct.unpack("!4H", head))
    request = head[:2] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + head[4:]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
        line.sendto(request, (address, 0))
        end = time.monotonic() + 1
        while (left := end - time.monotonic()) > 0:
            line.settimeout(left)
            try:
                answer, (sender, _port) = line.recvfrom(1500)
            except TimeoutError:
                return False
            body = answer[(answer[0] & 15) * 4:]
            if sender == address and body[0] == 0 and body[4:8] == head[4:8]:
                return True
    return False


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("cloud-ovn")
    with ExitStack() as stack:
        site = stack.enter_context(bare.Site(folder, HOSTS, packed=HOSTS, ovn=True))
        site.play("magnetar.compute.agents")
        ovn = stack.enter_context(Ovn(site, physical="public"))
        ovn.central.run(["ovn-nbctl", "set-connection", "ptcp:6641"])
        pki = folder / "magnetar-pki"
        control = stack.enter_context(LabControl(
            Beside(folder, "", "10.20.0.0/16"),
            hosts={name: f"https://{host.address}:6553" for name, host in site.hosts.items()},
            agent_ca_cert=str(pki / "ca.pem"), agent_client_cert=str(pki / "clients/admin.pem"),
            agent_client_key=str(pki / "clients/admin.key"), ovn_northbound=f"tcp:{ovn.central.address}:6641",
            ovn_wait=5.0))
        found = Cloud(site, ovn, control)
        admin, disk = found.admin, guest_image["disk"]
        admin.ask(f"image create tiny --public --disk-format qcow2 --container-format bare --file {disk}")
        admin.ask("flavor create tiny --vcpus 1 --ram 128 --disk 1")
        yield found
        print("".join(one for one in control.log.read_text().splitlines(keepends=True) if '"info"' not in one)[-6000:])


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


def test_the_metadata_service(cloud: Cloud) -> None:
    """Each guest is told of itself, also those with equal addresses; its route there came by DHCP."""
    for name in ("a1", "a2", "b1"):
        assert "169.254.169.254 dev eth0" in cloud.sh(name, "ip route")
        said = cloud.sh(name, "printf 'GET /openstack/latest/meta_data.json HTTP/1.0\\r\\n\\r\\n' | "
                        "nc -w 5 169.254.169.254 80")  # fmt: skip
        assert json.loads(said.replace("\r", "").partition("\n\n")[2])["uuid"] == cloud.server(name).id


def test_a_floating_ip(cloud: Cloud) -> None:
    """What comes in by it is what the group lets in; what goes out has the router's address."""
    machine = cloud.site.machine_address
    outside = f"{machine.rpartition('.')[0]}.0/24"
    pool = outside.replace(".0/24", ".{}")
    cloud.admin.ask("network create ext --external --provider-network-type flat --provider-physical-network public")
    cloud.admin.ask(f"subnet create --network ext --subnet-range {outside} --gateway {machine} --no-dhcp "
                    f"--allocation-pool start={pool.format(200)},end={pool.format(250)} ext-v4")
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
    alpha = cloud.of["alpha"]
    assert cloud.says("a1", "10.5.0.12") == "a2"
    alpha.ask("server remove security group a2 default")
    eventually(lambda: not cloud.reaches("a1", "10.5.0.12"), "a2 answers no more")
    alpha.ask("server add security group a2 default")
    eventually(lambda: cloud.says("a1", "10.5.0.12") == "a2", "a2 answers again")


def test_live_migration(cloud: Cloud) -> None:
    """The connection is kept, and the floating IP goes along."""
    cloud.sh("a1", "nc -l -p 78 >/run/came 2>&1 & true")
    cloud.sh("a2", "(while true; do date +%s; sleep 1; done) | nc 10.5.0.11 78 >/dev/null 2>&1 & true")
    came = "wc -l </run/came"
    eventually(lambda: int(cloud.sh("a1", came)) > 1, "lines come")
    before = cloud.server("a1")
    (to,) = set(HOSTS) - {before.host}
    cloud.admin.ask(f"server migrate --live-migration {before.id} --wait")
    assert cloud.server("a1").host == to
    lines = int(cloud.sh("a1", came))
    eventually(lambda: int(cloud.sh("a1", came)) > lines + 1, "lines come on the same connection")
    eventually(cloud.pings, "the floating IP answers at its new host")
    assert cloud.ovn.chassis(port_id(cloud, "a1")) == to


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
    assert "OVN" in str(late["fault"])
    alpha.ask("server delete late --wait")
    cloud.ovn.central.run(["sh", "-ec", "rm /var/lib/ovn/nb.db /var/lib/ovn/sb.db"])
    began = time.monotonic()
    cloud.ovn.start()
    cloud.ovn.central.run(["ovn-nbctl", "set-connection", "ptcp:6641"])
    eventually(lambda: cloud.ovn.chassis(port_id(cloud, "b1")), "ports are bound again")
    print(f"\novn: all ports written and bound {time.monotonic() - began:.1f} s after new databases")
    eventually(cloud.pings, "the floating IP answers")
    assert cloud.reaches("a1", "10.5.0.12") and cloud.says("a2", "10.5.0.11") == "a1"
    assert not cloud.reaches("b1", "10.5.0.11")
