# SPDX-License-Identifier: GPL-3.0-or-later
"""OVN's central becomes a cluster of three by the role, and members of it are lost: one, and then two.

The tests are one story and run in its order. All three hosts are centrals, two of them compute hosts of a cloud whose
control plane is on the machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.lab import bare
from tests.support.lab.agent import CACHE, eventually
from tests.support.lab.clients import Clients
from tests.support.lab.hosts import LabError
from tests.support.lab.ovn import KEYS, SOUTHBOUND
from tests.support.lab.ovn_cloud import Beside
from tests.support.lab.plane import SERVE, LabControl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lab, pytest.mark.deep(shard="a cluster of OVN"),
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]  # fmt: skip

CENTRALS, COMPUTE = ("net1", "net2", "net3"), ("net2", "net3")
NETWORK = """
- {hosts: magnetar_network, become: true, gather_facts: false, roles: [magnetar.compute.network]}
"""
SOCKETS = {"OVN_Northbound": "/run/ovn/ovnnb_db.ctl", "OVN_Southbound": "/run/ovn/ovnsb_db.ctl"}
OWN = [f"/etc/magnetar-network/northbound/{name}" for name in ("service.key", "service.pem", "ca.pem")]
UNITS = "ovn-northd ovn-ovsdb-server-nb ovn-ovsdb-server-sb magnetar-southbound"
#: A central that ends at once, and stays so.
KILL = f"systemctl mask --runtime {UNITS}; systemctl kill --signal KILL {UNITS}"
START = f"systemctl unmask --runtime {UNITS}; systemctl reset-failed; systemctl start {UNITS}"
WIPE = f"systemctl stop ovn-central {UNITS}; rm -f /var/lib/ovn/ovn??_db.db"
#: Comes to a cluster's port as a member would, for a while, with a key, certificate and CA; says what it became.
JOIN = """
rm -f /run/join.*
ovsdb-tool join-cluster /run/join.db OVN_Southbound ssl:$1:7644 ssl:$2:6644 2>/dev/null
ovsdb-server /run/join.db --remote=punix:/run/join.sock --unixctl=/run/join.ctl --pidfile=/run/join.pid --detach \
    --no-chdir --log-file=/run/join.log -vconsole:off -p $3 -c $4 -C $5
for one in 1 2 3 4 5 6; do
    sleep 1
    ovs-appctl -t /run/join.ctl cluster/status OVN_Southbound | grep -q 'Status: cluster member' && echo joined && break
done
ovs-appctl -t /run/join.ctl exit
"""


class Cluster:
    """The hosts, and what they say."""

    def __init__(self, site: bare.Site) -> None:
        self.site, self.hosts = site, site.hosts
        self.book = site.folder / "network.yml"
        self.book.write_text(NETWORK)

    def centrals(self, *names: str) -> None:
        """Have these in the group of centrals."""
        path = self.site.folder / "inventory.yml"
        known = yaml.safe_load(path.read_text())
        known["all"]["children"]["magnetar_network"] = {"hosts": {name: {} for name in names}}
        path.write_text(yaml.safe_dump(known))

    def status(self, name: str, database: str = "OVN_Northbound") -> str:
        """What a central says of a cluster; "" where it does not run."""
        words = ["ovs-appctl", "-t", SOCKETS[database], "cluster/status", database]
        return self.hosts[name].run(words, check=False).stdout

    def leader(self, database: str = "OVN_Northbound") -> str:
        """Who leads; "" for nobody."""
        return next((name for name in CENTRALS if "Leader: self" in self.status(name, database)), "")

    def members(self, database: str = "OVN_Northbound") -> list[str]:
        """Addresses that the leader knows."""
        return sorted(re.findall(r" at ssl:([0-9.]+):", self.status(self.leader(database), database)))

    def complete(self) -> bool:
        """Whether both clusters have all three, and each of these is a member with a leader."""
        return all(self.leader(one) and self.members(one) == sorted(host.address for host in self.hosts.values())
                   and all("Status: cluster member" in self.status(name, one) for name in CENTRALS) for one in SOCKETS)

    def nb(self, name: str, *words: str) -> str:
        """What ovn-nbctl says on a central."""
        return self.hosts[name].run(["ovn-nbctl", "--no-leader-only", "--timeout=30", *words]).stdout.strip()

    def sh(self, name: str, script: str, *words: str, check: bool = True) -> str:
        """What a script says on a host."""
        return self.hosts[name].run(["sh", "-c", script, "sh", *words], check=check).stdout.strip()

    def changed(self) -> dict[str, int]:
        """Run the role, and say how many tasks of each host changed anything."""
        said = self.site.play(self.book)
        return {name: int(count) for name, count in re.findall(
            r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    groups = {"magnetar": {"hosts": {name: {} for name in COMPUTE}}, "magnetar_network": {"hosts": {"net1": {}}}}
    with bare.Site(tmp_path_factory.mktemp("ovn-cluster"), CENTRALS, groups, packed=COMPUTE, ovn=True, agent_ovn=True,
                   agent_ovn_datapath="netdev", network_northbound=True) as site:  # fmt: skip
        found = Cluster(site)
        try:
            yield found
        except BaseException:
            for name in CENTRALS:
                print(name, *(found.status(name, one) for one in SOCKETS), sep="\n")
            raise


def test_one_becomes_three(cluster: Cluster) -> None:
    """All that there was stays, and a second run changes nothing."""
    cluster.site.play(cluster.book)
    cluster.nb("net1", "ls-add", "kept")
    cluster.centrals(*CENTRALS)
    assert min(cluster.changed().values()) > 0
    assert cluster.complete()
    assert all("(kept)" in cluster.nb(name, "ls-list") for name in CENTRALS)
    assert cluster.changed() == dict.fromkeys(CENTRALS, 0)
    cluster.site.play("magnetar.compute.agents")
    eventually(lambda: set(re.findall(r"^Chassis (\S+)", cluster.sh("net1", "ovn-sbctl --no-leader-only show"),
                                      re.MULTILINE)) == {*COMPUTE}, "hosts come in")
    remotes = cluster.sh("net2", "ovs-vsctl get open_vswitch . external_ids:ovn-remote")
    assert all(f"ssl:{host.address}:{SOUTHBOUND}" in remotes for host in cluster.hosts.values())


def test_what_a_certificate_of_a_host_may(cluster: Cluster) -> None:
    """It comes to the southbound database, as far as RBAC goes, and nowhere else; above all, it becomes no member."""
    first = cluster.hosts["net1"].address
    nb, sb, direct = (["ovn-nbctl", f"--db=ssl:{first}:6641"], ["ovn-sbctl", f"--db=ssl:{first}:{SOUTHBOUND}"],
                      ["ovn-sbctl", f"--db=ssl:{first}:6645"])

    def ask(base: list[str], keys: Any, *words: str, check: bool = True) -> Any:
        files = [word for pair in zip(("-p", "-c", "-C"), keys, strict=True) for word in pair]
        return cluster.hosts["net2"].run([*base, "--no-leader-only", "--timeout=5", *files, *words], check=check)

    theirs = (*KEYS[:2], OWN[2])  # so that it is the server who refuses
    assert "Chassis" in ask(sb, KEYS, "show").stdout
    with pytest.raises(LabError, match="permission"):
        ask(sb, KEYS, "chassis-del", "net3")
    for base in (nb, direct):
        assert ask(base, theirs, "show", check=False).returncode
        assert not ask(base, OWN, "show").returncode
    second, leader = cluster.hosts["net2"].address, cluster.hosts[cluster.leader("OVN_Southbound")].address
    assert "joined" not in cluster.sh("net2", JOIN, second, leader, *theirs)
    assert "7644" not in cluster.status("net1", "OVN_Southbound")
    # With a central's it would, so that it is the certificate which keeps it out.
    assert "joined" in cluster.sh("net2", JOIN, second, leader, *OWN)
    assert "7644" in cluster.status("net1", "OVN_Southbound")
    # And the role takes out who is no central.
    assert sum(cluster.changed().values()) == 1
    eventually(cluster.complete, "three members again")


class Cloud:
    """A control plane, and its administrator."""

    def __init__(self, control: LabControl, folder: Path) -> None:
        self.admin = Clients(control.folder / "clouds.yaml", folder)
        self.control = control

    def server(self, name: str) -> float:
        """Create a server with a port; seconds until it is active."""
        began = time.monotonic()
        self.admin.ask(f"port create --network lan {name}")
        self.admin.ask(f"server create {name} --image tiny --flavor tiny --port {name}")
        eventually(lambda: self.admin.json(f"server show {name}")["status"] in ("ACTIVE", "ERROR"), f"{name} is built")
        found = self.admin.json(f"server show {name}")
        assert found["status"] == "ACTIVE", found.get("fault")
        return time.monotonic() - began


@pytest.fixture(scope="module")
def cloud(cluster: Cluster, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    folder = cluster.site.folder
    keys = {}
    for name, path in zip(("ovn_key", "ovn_cert", "ovn_ca_cert"), OWN, strict=True):
        (folder / name).write_text(cluster.hosts["net1"].run(["cat", path]).stdout)
        keys[name] = str(folder / name)
    pki = folder / "magnetar-pki"
    with ExitStack() as stack:
        control = stack.enter_context(LabControl(
            Beside(folder, "", "10.20.0.0/16"),
            hosts={name: f"https://{cluster.hosts[name].address}:6553" for name in COMPUTE},
            agent_ca_cert=str(pki / "ca.pem"), agent_client_cert=str(pki / "clients/admin.pem"),
            agent_client_key=str(pki / "clients/admin.key"), **keys,
            ovn_northbound=",".join(f"ssl:{host.address}:6641" for host in cluster.hosts.values())))
        found = Cloud(control, folder)
        found.admin.ask("image create tiny --public --disk-format qcow2 --container-format bare "
                        f"--file {guest_image['disk']}")
        found.admin.ask("flavor create tiny --vcpus 1 --ram 128 --disk 1")
        found.admin.ask("network create lan")
        found.admin.ask("subnet create --network lan --subnet-range 10.5.0.0/24 lan-v4")
        yield found
        print("".join(one for one in control.log.read_text().splitlines(keepends=True) if '"info"' not in one)[-6000:])


def audit(cloud: Cloud) -> str:
    """What `magnetar audit` says."""
    words = [sys.executable, "-c", SERVE, "audit", "--config", cloud.control.config]
    done = subprocess.run(words, check=False, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(CACHE / "src")})  # fmt: skip
    return done.stdout + done.stderr


def bound(cluster: Cluster, name: str, port: str) -> bool:
    """Whether a host has the port, as a central says."""
    words = f"find port_binding logical_port={port}"
    return "true" in cluster.sh(name, f"ovn-sbctl --no-leader-only --bare --columns=up {words}")


def test_the_leader_is_killed(cluster: Cluster, cloud: Cloud) -> None:
    """Servers and their ports come within seconds all the same, and the member comes back."""
    usual = cloud.server("before")
    lost = cluster.leader()
    cluster.sh(lost, KILL, check=False)
    took = cloud.server("after")
    print(f"\novn: a server {usual:.1f} s after it is asked for, with the leader killed {took:.1f} s")
    assert took < 60
    other = next(name for name in CENTRALS if name != lost)
    for name in ("before", "after"):
        assert bound(cluster, other, str(cloud.admin.json(f"port show {name}")["id"]))
    said = audit(cloud)
    assert f"Members of the cluster of the northbound database do not answer: ssl:{cluster.hosts[lost].address}" in said
    cluster.sh(lost, START)
    eventually(cluster.complete, "the member is back")
    eventually(lambda: "northbound" not in audit(cloud), "the audit finds nothing")


def test_a_lost_member_is_replaced(cluster: Cluster) -> None:
    """Without its databases a central does not begin anew; the role has it join in place of what it was."""
    cluster.sh("net1", WIPE)
    assert "failed" in cluster.sh("net1", "systemctl start ovn-ovsdb-server-nb 2>&1 || echo failed")
    assert cluster.changed()["net1"] > 0
    assert cluster.complete()
    assert "(kept)" in cluster.nb("net1", "ls-list")
    assert cluster.changed() == dict.fromkeys(CENTRALS, 0)


def test_two_members_are_lost(cluster: Cluster, cloud: Cloud) -> None:
    """Nothing changes without more than half of them, and this is said; one goes on with what it has."""
    for name in ("net1", "net3"):
        cluster.sh(name, WIPE)
    assert "has no leader" in cluster.site.play(cluster.book, "--limit", "net2", good=False)
    assert "has no quorum" in audit(cloud)
    cluster.site.play("magnetar.compute.network_recover", "-e", "network_survivor=net2")
    assert cluster.complete()
    assert "(kept)" in cluster.nb("net1", "ls-list")
    assert "nothing is to be recovered" in cluster.site.play(
        "magnetar.compute.network_recover", "-e", "network_survivor=net2", good=False)
    assert cloud.server("again") < 60
