# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two cells on Debian hosts, made by nothing but playbooks/site.yml over SSH, and used by OpenStack's own
clients from the controller.

The tests of this file are one story and run in its order, in six minutes on two cores. There are four containers, and
each is a compute host: two in each cell, so that servers can change hosts. Two of them have the control plane as well.
A fifth, for the API alone, would take a minute more and show nothing more. All begin with libvirt and QEMU, but nothing
of ours and no PostgreSQL: that the role installs those two on bare hosts is shown in test_roles.py.
"""

from __future__ import annotations

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.lab.bare import Site, documented
from tests.support.lab.clients import both
from tests.support.lab.hosts import CHECKOUT
from tests.support.lab.site_cloud import AGENTS, SETTINGS, Cloud, changes

sys.path.insert(0, str(CHECKOUT / "tools"))
import control_plane

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::Warning:openstack"),  # the SDK warns of its own parts
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

#: a: API, and cell1's database and conductor. b: cell2's database and conductor. All of them: compute hosts.
GROUPS = {
    "magnetar_api": {"hosts": {"a": {}}},
    "magnetar_cells": {"children": {"cell1": {"hosts": {"a": {}}}, "cell2": {"hosts": {"b": {}}}}},
    "magnetar": {"hosts": {"a": {"magnetar_cell": "cell1"}, "b": {"magnetar_cell": "cell2"},
                           "c": {}, "d": {"magnetar_cell": "cell2"}}},
}
NAMES = ("a", "b", "c", "d")
#: A folder that hosts have, for policy files: empty at first.
POLICIES = "/mnt"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("cloud")
    given = {"disk": str(guest_image["disk"]), "api_settings": {**SETTINGS, "policy_dirs": [POLICIES]},
             "conductor_settings": SETTINGS, "agent_settings": AGENTS}
    with Site(folder, NAMES, groups=GROUPS, packed=NAMES, **given) as site:
        yield Cloud(site)


def test_check_mode_on_new_hosts(cloud: Cloud) -> None:
    said = cloud.site.play("magnetar.compute.site", "--check", "--diff", "--limit", "a")  # it has everything
    assert changes(said)["a"] > 20, said[-3000:]
    assert "+ExecStart=/opt/magnetar-control/bin/magnetar conductor" in said and "postgresql" in said
    assert not (cloud.site.folder / "magnetar-pki").exists()
    for host in cloud.hosts.values():
        assert host.run(["ls", "-d", "/etc/magnetar-control", "/opt/magnetar-control"], check=False).returncode
        assert host.run(["getent", "passwd", "magnetar"], check=False).returncode


def test_install_twice(cloud: Cloud) -> None:
    began = time.monotonic()
    said = cloud.site.play("magnetar.compute.site")
    print(f"\nsite: API, two cells and four compute hosts in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    again = cloud.site.job("Cloud", "--diff", "--limit", "a")
    print(f"site: second run {time.monotonic() - began:.1f} s")
    assert changes(again) == {"a": 0}, again[-4000:]
    password = cloud.hosts["a"].run(["cat", "/etc/magnetar-control/database.password"]).stdout.strip()
    assert len(password) == 48 and password not in said + again
    assert cloud.clouds.stat().st_mode & 0o777 == 0o600
    for name, file in (("a", "api.yml"), ("a", "conductor.yml"), ("b", "conductor.yml")):
        said = cloud.hosts[name].run(["stat", "-c", "%a %U", f"/etc/magnetar-control/{file}"]).stdout
        assert said == "600 magnetar\n"


def test_units_are_confined(cloud: Cloud) -> None:
    """As systemd-analyze has it, 0.0 to 10.0: those of the roles as they run, the quickstart's as it would."""
    host, figures = cloud.hosts["a"], {}
    host.run(["tee", f"/srv/{control_plane.UNIT.name}"], stdin=control_plane.control_plane_unit().encode())
    listed = host.run(["systemctl", "list-unit-files", "--no-legend", "--plain", "magnetar-*.service"]).stdout
    for name in (*(line.split()[0] for line in listed.splitlines()), f"/srv/{control_plane.UNIT.name}"):
        offline = ["--offline=true"] if name.startswith("/") else []
        said = host.run(["systemd-analyze", "security", "--no-pager", *offline, name]).stdout
        figures[Path(name).stem] = float(re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)[-1])
    print(f"\nsite: {', '.join(f'{name} {figure}' for name, figure in figures.items())} (systemd-analyze security)")
    units = ("agent", "api", "conductor", "firewall", "metadata", "serve")
    assert set(figures) == {f"magnetar-{name}" for name in units}
    assert all(figure <= 3.5 for figure in figures.values()), figures


def test_a_guest_boots_in_each_cell(cloud: Cloud) -> None:
    disk = cloud.site.variables["disk"]
    cloud.ask(f"image create tiny --disk-format qcow2 --container-format bare --public --file {disk}")
    cloud.ask("flavor create tiny --id 1 --vcpus 1 --ram 128 --disk 1")
    for host in ("b", "c"):
        cloud.ask(f"server create on-{host} --image tiny --flavor tiny --network default "
                  f"--availability-zone nova:{host}")
    wanted = {"on-b": ("ACTIVE", "b"), "on-c": ("ACTIVE", "c")}
    cloud.until(lambda: wanted == {row["Name"]: (row["Status"], row["Host"]) for row in cloud.json(
        "server list --long")}, "both are active")
    for host in ("b", "c"):
        cloud.until(lambda host=host: "GUEST" in cloud.ask(f"console log show on-{host}"), f"the guest of {host} boots")
    services = {(row["Binary"], row["Host"]): row["State"] for row in cloud.json("compute service list")}
    assert services == dict.fromkeys([*(("nova-compute", host) for host in cloud.hosts), ("nova-conductor", "a"),
                                      ("nova-conductor", "b")], "up")


def test_one_request_id_from_api_to_agent(cloud: Cloud) -> None:
    event = cloud.json("server event list on-b")[-1]
    for host, unit in (("a", "magnetar-api"), ("b", "magnetar-conductor"), ("b", "magnetar-agent")):
        said = cloud.hosts[host].run(["journalctl", "-o", "cat", "-u", unit]).stdout
        assert event["Request ID"] in said, (host, unit)


#: Ends the conductor the moment it begins a build on host c.
KILL = """
grep -q -m1 '"message": *"create begins".*"host": *"c"' < <(exec journalctl -n 0 -f -o cat -u magnetar-conductor)
systemctl kill -s KILL magnetar-conductor.service
"""


def test_a_dead_conductors_work_is_taken_over(cloud: Cloud) -> None:
    """It dies in the middle of a build; systemd starts another process, which waits for the lease and goes on."""
    host = cloud.hosts["a"]
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(host.run, ["bash", "-c", KILL], timeout=120)
        cloud.ask("server create taken --image tiny --flavor tiny --network default --availability-zone nova:c")
        ended.result()
        began = time.monotonic()
    cloud.until(lambda: cloud.json("server show taken")["status"] == "ACTIVE", "the build ends")
    print(f"\nsite: ACTIVE {time.monotonic() - began:.1f} s after the conductor's end")
    domains = cloud.hosts["c"].run(["virsh", "-q", "list", "--name"]).stdout.split()
    assert len(domains) == 2


def test_a_cell_without_its_database(cloud: Cloud) -> None:
    """Its servers are UNKNOWN, those of the other cell answer; afterwards all is as before."""
    unit = "postgresql@15-main.service"
    cloud.hosts["b"].run(["systemctl", "stop", unit])
    try:
        listed = {row["ID"]: (row["Name"], row["Status"]) for row in cloud.json(
            "--os-compute-api-version 2.69 server list")}
        assert ("taken", "ACTIVE") in listed.values(), listed
        assert [status for _name, status in listed.values()].count("UNKNOWN") == 1, listed
        assert [status for _name, status in listed.values()].count("ACTIVE") == 2, listed
    finally:
        cloud.hosts["b"].run(["systemctl", "start", unit])
    cloud.until(lambda: [row["Status"] for row in cloud.json("server list")].count("ACTIVE") == 3, "all are back")
    cloud.until(lambda: {row["State"] for row in cloud.json("compute service list")} == {"up"}, "services are up")


def test_lives_by_both_clients(cloud: Cloud) -> None:
    """Each in a cell of its own."""
    both(cloud, Path(str(cloud.site.variables["disk"])), {"host": "d", "other": "b", "abroad": "c"},
         {"host": "c", "other": "a"})


def test_into_another_cell_and_back(cloud: Cloud) -> None:
    """As soon as a policy file lets administrators do that."""
    policy = documented("howto/move-servers-between-cells", "resize:cross_cell")
    cloud.hosts["a"].run(["tee", f"{POLICIES}/cells.yaml"], stdin=policy.encode())

    def is_(status: str, host: str) -> bool:
        found = cloud.json("server show taken")
        return (found["status"], found["OS-EXT-SRV-ATTR:host"]) == (status, host)

    asked = "--os-compute-api-version 2.56 server migrate taken --host d"
    cloud.until(lambda: cloud.openstack(asked).returncode == 0, "the rule is read", 60)
    began = time.monotonic()
    cloud.until(lambda: is_("VERIFY_RESIZE", "d"), "it is in the other cell")
    cloud.ask("server migration revert taken")
    cloud.until(lambda: is_("ACTIVE", "c"), "it is back")
    print(f"\nsite: into another cell and back in {time.monotonic() - began:.1f} s")
    cloud.hosts["a"].run(["rm", f"{POLICIES}/cells.yaml"])


def test_a_lost_cloud_is_restored(cloud: Cloud) -> None:
    """The databases of both cells are emptied; the backup, which the controller has too, brings the servers back."""
    play, before = cloud.site.play, cloud.json("server list")
    fetched = cloud.site.folder / "backups"
    said = play("magnetar.compute.backup", "-e", f"backup_fetch={fetched}")
    (path,) = re.findall(r"/var/backups/magnetar/[0-9TZ-]+", said)[:1]
    assert (fetched / Path(path).name / "backup.json").exists() and (fetched / "documents/c.tar.gz").exists()
    cloud.ask("flavor create later --vcpus 1 --ram 128 --disk 1")
    refused = play("magnetar.compute.restore", "-e", f"restore_folder={path}", good=False)
    assert "has tables already" in refused
    for host, name in (("a", "cell1"), ("b", "cell2")):
        unit = ["systemctl", "stop", "magnetar-conductor.service"]
        cloud.hosts[host].run(unit)
        cloud.hosts[host].run(["runuser", "-u", "postgres", "--", "psql", "-qX", "-d", f"magnetar_{name}", "-c",
                               "DROP TABLE servers, actions CASCADE"])
    play("magnetar.compute.restore", "-e", f"restore_folder={path}", "-e", "restore_replace=true")
    cloud.until(lambda: {row["State"] for row in cloud.json("compute service list")} == {"up"}, "services are up")
    assert cloud.json("server list") == before and "later" not in cloud.ask("flavor list")
    cloud.ask("server stop on-c")
    cloud.until(lambda: cloud.json("server show on-c")["status"] == "SHUTOFF", "the guest obeys")


def test_nothing_is_left(cloud: Cloud) -> None:
    cloud.ask("server delete --wait on-b on-c taken")
    for name in cloud.hosts:
        assert not cloud.hosts[name].run(["virsh", "-q", "list", "--all", "--name"]).stdout.strip()
