# SPDX-License-Identifier: GPL-3.0-or-later
"""All hosts of a cloud are upgraded and rebooted by the playbook. What would change this machine is replaced by
commands on files of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.inside import Inside

from .play import ROOT, prepared

pytestmark = pytest.mark.slow
OLD, NEW = "6.1.0-1-amd64", "6.1.0-2-amd64"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        yield made


class Hosts:
    """Hosts whose kernels and packages are files in *folder*."""

    def __init__(self, folder: Path, cloud: Inside) -> None:
        self.folder = prepared(folder, cloud)
        (book,) = yaml.safe_load((ROOT / "playbooks/reboot.yml").read_text())
        self.log = folder / "log"
        self.log.touch()
        for name in cloud.hosts:
            self.set(name)
        (block,) = [task for task in book["tasks"] if "block" in task]
        for task in [*book["tasks"], *block["block"]]:
            self._replace(task)
        self.book = folder / "reboot.json"
        self.book.write_text(json.dumps([{**book, "become": False}]))

    def _replace(self, task: dict[str, Any]) -> None:
        facts = f"{self.folder}/{{{{ reboot_host }}}}.json"
        done = f"echo {{{{ reboot_host }}}} %s >> {self.log}"
        if "ansible.builtin.shell" in task:
            task["ansible.builtin.shell"] = {"cmd": f"cat {facts}"}
        elif task["name"] == "Upgrade its packages":
            del task["ansible.builtin.apt"]
            task["ansible.builtin.shell"] = {
                "cmd": f"sed -i 's/\"packages\": 3/\"packages\": 0/; s/\"newest\": \"{OLD}\"/\"newest\": \"{NEW}\"/' "
                       f"{facts}; {done % 'upgraded'}"}
        elif "ansible.builtin.apt" in task:
            task["ansible.builtin.debug"] = {"msg": task.pop("ansible.builtin.apt")}
        elif "ansible.builtin.reboot" in task:
            assert set(task.pop("ansible.builtin.reboot")) == {"msg", "reboot_timeout"}
            task["ansible.builtin.shell"] = {
                "cmd": f"[ ! -e {self.folder}/broken ] || exit 1; sed -i 's/{OLD}/{NEW}/; s/true/false/; "
                       f"s/\"booted\": 1000/\"booted\": 2000/' {facts}; {done % 'rebooted'}"}

    def set(self, name: str, **values: Any) -> None:
        """Set what the host *name* runs: by default the old kernel, three packages are waiting."""
        (self.folder / f"{name}.json").write_text(json.dumps({
            "kernel": OLD, "newest": OLD, "required": False, "packages": 3, "booted": 1000, **values}))

    def run(self, *words: str) -> tuple[int, str]:
        """Run the playbook on both hosts; its status and its output without line breaks."""
        env = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"), "MAGNETAR_DIRECT": "always",
               "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCAL_TEMP": str(self.folder),
               "ANSIBLE_REMOTE_TEMP": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.log.write_text("")
        done = subprocess.run([
            str(Path(sys.executable).parent / "ansible-playbook"), str(self.book), "-i", "kvm1,kvm2,", "-c", "local",
            "-e", "magnetar_hosts=all", "-e", "reboot_cloud=magnetar", "-e", "reboot_poll=1",
            "-e", f"ansible_python_interpreter={sys.executable}", *words],
            env=env, capture_output=True, text=True, timeout=900, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def done(self) -> list[str]:
        """What the last run did to the hosts, in order."""
        return self.log.read_text().splitlines()


def test_all_hosts_of_a_cloud(cloud: Inside, tmp_path: Path) -> None:
    admin, hosts = Draining(cloud), Hosts(tmp_path, cloud)
    server, locked = admin.boot("kvm1", name="web"), admin.boot("kvm2", name="locked")
    status, said = hosts.run("-e", "reboot_cloud=")
    assert status and "Name the cloud in clouds.yaml" in said, said
    status, said = hosts.run("--check")
    assert not status and hosts.done() == [] and row(cloud, server).host == "kvm1", said
    assert f"kvm1 would be drained and rebooted: 3 packages to upgrade, kernel {OLD}" in said, said
    assert admin.shown("kvm1")["state"] == admin.shown("kvm2")["state"] == "enabled"

    (tmp_path / "broken").touch()
    status, said = hosts.run()
    assert status and hosts.done() == ["kvm1 upgraded"], said
    assert row(cloud, server).host == "kvm2" and admin.shown("kvm1")["state"] == "maintenance"
    assert admin.shown("kvm2")["state"] == "enabled"

    (tmp_path / "broken").unlink()
    assert cloud.admin.act(locked, "lock").status == 202
    status, said = hosts.run()
    assert status and hosts.done() == ["kvm1 rebooted"], said
    assert "1 servers stay on kvm2: locked: An administrator has locked it" in said, said
    assert admin.shown("kvm1")["state"] == "enabled" and admin.shown("kvm2")["reason"] == "rolling reboot"
    assert row(cloud, server).host == "kvm1"

    assert cloud.admin.act(locked, "unlock").status == 202
    status, said = hosts.run("-e", "reboot_move_back=true")
    assert not status and hosts.done() == ["kvm2 upgraded", "kvm2 rebooted"], said
    assert f"kvm1 needs nothing: it runs {NEW}" in said and admin.shown("kvm2")["state"] == "enabled"
    assert row(cloud, locked).host == "kvm2" and row(cloud, server).host == "kvm2"
    status, said = hosts.run()
    assert not status and hosts.done() == [] and said.count("changed=0") == 2, said


def test_hosts_of_others_and_hosts_that_are_done(cloud: Inside, tmp_path: Path) -> None:
    admin, hosts = Draining(cloud), Hosts(tmp_path, cloud)
    assert admin.put("kvm1", reason="broken fan").status == 200
    hosts.set("kvm2", newest=NEW, packages=0)
    try:
        status, said = hosts.run("-e", "reboot_upgrade=false", "-e", "reboot_stop_servers=true")
        assert not status and hosts.done() == ["kvm2 rebooted"], said
        assert "kvm1 is left alone: it is disabled (broken fan)." in said
        assert admin.shown("kvm1")["reason"] == "broken fan"
    finally:
        admin.enabled("kvm1")
    for name, booted in (("kvm1", 1796000000), ("kvm2", 1790000000)):
        hosts.set(name, packages=0, booted=booted)
    status, said = hosts.run("-e", "reboot_always=true", "-e", "reboot_since=2026-11-01T00:00:00Z")
    assert not status and hosts.done() == ["kvm2 rebooted"], said
    hosts.set("kvm1", packages=0, required=True)
    status, said = hosts.run("-e", "reboot_name={{ {'kvm1': 'kvm9'}.get(inventory_hostname, inventory_hostname) }}")
    assert status and "kvm9 is no host of the cloud magnetar" in said and hosts.done() == [], said
