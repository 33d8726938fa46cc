# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks written for openstack.cloud run with this collection after the one-line change, and change nothing when
they run again."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.modules import examples
from tests.support.control.servers import ensure
from tests.support.modules.playbook import BIN, ansible_environment
from tests.support.northbound import LabCentral, external, missing

from .play import ROOT, Tasks, play, prepared, thrice

pytestmark = pytest.mark.slow
#: Playbooks as they are written for openstack.cloud.
CASES = ROOT / "tests/cases/openstack_cloud"
BOOKS = sorted(path.stem for path in CASES.glob("*.yml"))
OPTIONS = {"cloud": "mycloud", "api_timeout": 60}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ deploy\n"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if missing():
        pytest.skip(missing())
    central = LabCentral(tmp_path_factory.mktemp("ovn")).start()
    try:
        with Cloud(hosts=2, links=True, ovn_northbound=central.url, ovn_hosts_wait=0.0) as made:
            external(made.admin)
            made.admin.image()
            ensure(made.admin, "flavor/small", {"vcpus": 1, "ram": 64, "disk": 1})
            yield made
    finally:
        central.stop()


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection, clouds.yaml, and the files of the playbooks."""
    made = prepared(tmp_path_factory.mktemp("play"), cloud, "mycloud")
    (made / "id_ed25519.pub").write_text(KEY)
    (made / "disk.img").write_bytes(bytes(2**20))
    (made / "disk.img.md5").write_text(hashlib.md5(bytes(2**20)).hexdigest())
    return made


def run(folder: Path, *words: str) -> dict[str, list[str]]:
    """Run all playbooks with the one-line change; return by playbook the names of the tasks that changed something."""
    for book in BOOKS:
        text = (CASES / f"{book}.yml").read_text().replace("openstack.cloud.", "magnetar.compute.")
        (folder / f"{book}.yml").write_text(text.replace("cloud: mycloud", "cloud: mycloud, api_timeout: 60"))
    done = subprocess.run(
        [BIN / "ansible-playbook", "-i", "localhost,", "-c", "local", "-e", f"folder={folder}", *words,
         *(f"{book}.yml" for book in BOOKS)],
        env=ansible_environment(folder, OS_CLIENT_CONFIG_FILE=str(folder / "clouds.yaml"), MAGNETAR_DIRECT="always"),
        cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-3000:]
    return dict(zip(BOOKS, map(changed_tasks, done.stdout.split("\nPLAY [")[1:]), strict=True))


def changed_tasks(output: str) -> list[str]:
    """Return the names of the tasks in the *output* of a play that changed something."""
    changed, task = [], ""
    for line in output.splitlines():
        if line.startswith("TASK ["):
            task = line[6:line.rindex("]")]
        elif line.startswith("changed:") and task not in changed:
            changed.append(task)
    return changed


def test_the_second_run_changes_nothing(folder: Path) -> None:
    """All playbooks in check mode from nothing, then in truth, and again."""
    planned, first = run(folder, "--check", "--diff"), run(folder, "--diff")
    for book in BOOKS:
        assert planned[book] and planned[book] == [task for task in first[book] if task in planned[book]]
        skipped = {"Give the group a role", "Set the quota"}  # they need the project of an earlier task
        assert {*first[book]} - {*planned[book]} <= skipped
    assert run(folder) == {book: [] for book in BOOKS}


def test_examples_of_the_twins(cloud: Cloud, folder: Path) -> None:
    """Each example of the modules for a single rule, key or user: in check mode, in truth and again."""
    cloud.admin.boot("web1", networks="none")
    rule, metadata, member = map(examples, ("security_group_rule", "server_metadata", "group_assignment"))
    password = "bread-and-milk"
    play(folder, [{"security_group": {"name": "web", "rules": []}}, {"user": {"name": "ann", "password": password}},
                  {"user": {"name": "bob", "password": password}},
                  {"group": {"name": "operators", "users": ["bob"]}}], OPTIONS)
    thrice(folder, rule[:2] + metadata + member, OPTIONS)
    listed, chosen, server, group = play(folder, [*examples("security_group_rule_info"), {"server_info": {
        "name": "web1"}}, {"group_info": {"name": "operators"}}], OPTIONS)
    assert [one["protocol"] for one in listed["security_group_rules"]] == ["icmp", "tcp"]
    assert [one["remote_ip_prefix"] for one in chosen["security_group_rules"]] == ["192.0.2.0/24"]
    assert server["servers"][0]["metadata"] == {"role": "web"} and group["groups"][0]["users"] == ["ann"]
    thrice(folder, rule[2:], OPTIONS)


def test_floating_ips_without_names(cloud: Cloud, folder: Path) -> None:
    """The server or the address finds a floating IP; absent takes it from the server, and removes it with purge."""
    network: Tasks = [
        {"network": {"name": "fip"}}, {"subnet": {"name": "fip4", "network": "fip", "cidr": "10.77.0.0/24"}},
        {"router": {"name": "fip", "network": "ext", "interfaces": ["fip4"]}},
        {"server": {"name": "fip1", "image": "cirros", "flavor": "small", "network": "fip"}}]
    play(folder, network, OPTIONS)
    given: Tasks = [{"floating_ip": {"server": "fip1", "nat_destination": "fip"}}]
    (made,) = play(folder, given, OPTIONS)
    address = made["floating_ip"]["floating_ip_address"]
    by_address: dict[str, object] = {"floating_ip_address": address, "network": "ext"}
    again, same, detached, once, attached, gone, none, unknown = play(folder, [
        *given, {"floating_ip": {**by_address, "server": "fip1"}},
        {"floating_ip": {"server": "fip1", "network": "ext", "state": "absent"}},
        {"floating_ip": {**by_address, "server": "fip1", "state": "absent"}},
        {"floating_ip": {"server": "fip1", "reuse": True}},
        {"floating_ip": {**by_address, "state": "absent", "purge": True}},
        {"floating_ip": {"server": "nobody", "state": "absent"}},
        {"floating_ip": {"server": "nobody"}, "ignore_errors": True}], OPTIONS)
    assert [one["changed"] for one in (made, again, same, detached, once, attached, gone, none)] == [
        True, False, False, True, False, True, True, False]
    assert attached["floating_ip"]["floating_ip_address"] == address and "there is no server nobody" in unknown["msg"]
    named, refused = play(folder, [
        {"server": {"name": "fip1", "auto_ip": True}},
        {"floating_ip": {"name": "x", "network": "ext", "reuse": True}, "ignore_errors": True}], OPTIONS)
    assert len(named["floating_ips"]) == 1 and "reuse: is for a floating IP without name" in refused["msg"]
    removed, left = play(folder, [{"server": {"name": "fip1", "state": "absent", "delete_ips": True}},
                                  {"floating_ip_info": {"floating_ip_address": named["floating_ips"][0]}}], OPTIONS)
    assert removed["changed"] and left["floating_ips"] == []
