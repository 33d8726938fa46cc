# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud on OVN: API, conductor and network service on the machine, agents on two hosts, real guests of two projects.

The tests are one story and run in its order. Projects use OpenStack's own client, each with a user of its own.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

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
