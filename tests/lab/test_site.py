# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of two cells on bare Debian hosts, made by nothing but playbooks/site.yml over SSH, and used by OpenStack's
own client from the controller.

The tests of this file are one story and run in its order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bare import TOOLS, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="lab hosts need root (systemd-nspawn, overlay mounts, a bridge)"),
]

#: a: API and cell1's database and conductor. b: cell2's database and conductor, and a compute host. c: a compute host.
GROUPS = {
    "magnetar_api": {"hosts": {"a": {}}},
    "magnetar_cells": {"children": {"cell1": {"hosts": {"a": {}}}, "cell2": {"hosts": {"b": {}}}}},
    "magnetar": {"hosts": {"b": {"magnetar_cell": "cell2"}, "c": {"magnetar_cell": "cell1"}}},
}
SETTINGS = {"quota_instances": 50, "heartbeat": 1.0, "host_down_after": 10.0, "cell_timeout": 8.0}


class Cloud:
    """The site, and OpenStack's client on the controller."""

    def __init__(self, site: Site) -> None:
        self.site, self.hosts = site, site.hosts
        self.clouds = site.folder / "magnetar-pki/clouds.yaml"

    def ask(self, words: str, check: bool = True) -> str:
        """What ``openstack`` says."""
        done = subprocess.run(
            [TOOLS / "openstack", *shlex.split(words)], check=False, text=True, capture_output=True,
            timeout=180, env={
                "PATH": os.environ["PATH"], "HOME": str(self.site.folder), "LC_ALL": "C.UTF-8",
                "OS_CLIENT_CONFIG_FILE": str(self.clouds), "OS_CLOUD": "magnetar"})
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout if done.returncode == 0 else done.stderr

    def json(self, words: str) -> Any:
        """Its answer as a document."""
        return json.loads(self.ask(f"{words} -f json"))

    def until(self, ready: Callable[[], object], what: str, limit: float = 90.0) -> None:
        """Wait."""
        end = time.monotonic() + limit
        while not ready():
            assert time.monotonic() < end, f"{what}: {self.said()}"
            time.sleep(0.5)

    def said(self) -> str:
        """The last lines of the services."""
        return "\n".join(host.run(["journalctl", "-n", "30", "-o", "cat", "-u", "magnetar-*"], check=False).stdout
                         for host in self.hosts.values())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, guest_image: dict[str, Path]) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("cloud")
    given = {"disk": str(guest_image["disk"]), "api_settings": SETTINGS, "conductor_settings": SETTINGS}
    with Site(folder, ["a", "b", "c"], groups=GROUPS, **given) as site:
        yield Cloud(site)


def changes(said: str) -> dict[str, int]:
    """Changed tasks by host, out of the recap."""
    return {name: int(count) for name, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", said, re.MULTILINE)}


def test_check_mode_on_bare_hosts(cloud: Cloud) -> None:
    said = cloud.site.play("magnetar.compute.site", "--check", "--diff")
    assert all(count > 8 for count in changes(said).values()), said[-3000:]
    assert "+ExecStart=/opt/magnetar-control/bin/magnetar conductor" in said and "postgresql" in said
    assert not (cloud.site.folder / "magnetar-pki").exists()
    for host in cloud.hosts.values():
        assert host.run(["ls", "-d", "/etc/magnetar-control", "/opt/magnetar-control"], check=False).returncode
        assert host.run(["getent", "passwd", "magnetar"], check=False).returncode


def test_install_twice(cloud: Cloud) -> None:
    began = time.monotonic()
    said = cloud.site.play("magnetar.compute.site")
    print(f"\nsite: API, two cells and two compute hosts in {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    again = cloud.site.play("magnetar.compute.site", "--diff")
    print(f"site: second run {time.monotonic() - began:.1f} s")
    assert set(changes(again).values()) == {0}, again[-4000:]
    password = cloud.hosts["a"].run(["cat", "/etc/magnetar-control/database.password"]).stdout.strip()
    assert len(password) == 48 and password not in said + again
    assert cloud.clouds.stat().st_mode & 0o777 == 0o600
    for name, file in (("a", "api.yml"), ("a", "conductor.yml"), ("b", "conductor.yml")):
        said = cloud.hosts[name].run(["stat", "-c", "%a %U", f"/etc/magnetar-control/{file}"]).stdout
        assert said == "600 magnetar\n"


def test_a_guest_boots_in_each_cell(cloud: Cloud) -> None:
    disk = cloud.site.variables["disk"]
    cloud.ask(f"image create tiny --disk-format qcow2 --container-format bare --public --file {disk}")
    cloud.ask("flavor create tiny --id 1 --vcpus 1 --ram 128 --disk 1")
    for host in ("b", "c"):
        cloud.ask(f"server create on-{host} --image tiny --flavor tiny --nic none --wait "
                  f"--availability-zone nova:{host}")
    found = {row["Name"]: (row["Status"], row["Host"]) for row in cloud.json("server list --long")}
    assert found == {"on-b": ("ACTIVE", "b"), "on-c": ("ACTIVE", "c")}
    for host in ("b", "c"):
        cloud.until(lambda host=host: "GUEST" in cloud.ask(f"console log show on-{host}"), f"the guest of {host} boots")
    services = {(row["Binary"], row["Host"]): row["State"] for row in cloud.json("compute service list")}
    assert services == {("nova-compute", "b"): "up", ("nova-compute", "c"): "up", ("nova-conductor", "a"): "up",
                        ("nova-conductor", "b"): "up"}


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
        cloud.ask("server create taken --image tiny --flavor tiny --nic none --availability-zone nova:c")
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


def test_nothing_is_left(cloud: Cloud) -> None:
    cloud.ask("server delete --wait on-b on-c taken")
    for name in ("b", "c"):
        assert not cloud.hosts[name].run(["virsh", "-q", "list", "--all", "--name"]).stdout.strip()
