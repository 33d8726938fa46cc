# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks that add hosts to a cloud and remove them. Roles, which would change this machine, are commands that
write a log; the conductors know all hosts already."""

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

from tests.support.roles.agent import play as play_role
from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.inside import Inside

from .play import ROOT, prepared

pytestmark = pytest.mark.slow
#: The hosts of the inventory. kvm9 is a host that the cloud does not know.
GROUPS = {"magnetar": ("kvm1", "kvm2", "kvm9"), "magnetar_cells": ("ctl",)}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        yield made


class Books:
    """The playbook *name* for the hosts of *cloud*, with commands in place of roles."""

    def __init__(self, folder: Path, cloud: Inside, name: str) -> None:
        self.folder, self.log = prepared(folder, cloud), folder / "log"
        plays = yaml.safe_load((ROOT / f"playbooks/{name}.yml").read_text())
        for book in plays:
            for task in book["tasks"]:
                self._replace(task)
        self.book = folder / f"{name}.json"
        self.book.write_text(json.dumps(plays))
        (folder / "hosts.json").write_text(json.dumps({"all": {
            "vars": {"ansible_connection": "local", "ansible_become": False,
                     "ansible_python_interpreter": sys.executable},
            "children": {name: {"hosts": {host: {} for host in hosts}} for name, hosts in GROUPS.items()}}}))

    def _replace(self, task: dict[str, Any]) -> None:
        """Replace a role by a command that logs the host, the role and its entry point. A busy machine takes long to
        accept a connection."""
        for word in [word for word in task if word.startswith("magnetar.compute.")]:
            task[word]["api_timeout"] = 120
        for nested in task.get("block", ()):
            self._replace(nested)
        for word in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
            if word in task:
                role = task.pop(word)
                said = f"{role['name'].rpartition('.')[2]} {role.get('tasks_from', 'main')}"
                task["ansible.builtin.shell"] = {"cmd": f"echo {{{{ inventory_hostname }}}} {said} >> {self.log}"}
                task["changed_when"] = False

    def run(self, *words: str) -> tuple[int, str]:
        """Run the playbook; its status and its output without line breaks."""
        env = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"), "MAGNETAR_DIRECT": "always",
               "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCAL_TEMP": str(self.folder),
               "ANSIBLE_REMOTE_TEMP": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.log.write_text("")
        program = str(Path(sys.executable).parent / "ansible-playbook")
        done = subprocess.run([program, str(self.book), "-i", str(self.folder / "hosts.json"), *words], env=env,
                              capture_output=True, text=True, timeout=900, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def done(self) -> list[str]:
        """The roles that the last run used, in order."""
        return self.log.read_text().splitlines()


def services(cloud: Inside) -> dict[str, tuple[str, str]]:
    """Status and reason of the compute services, by host."""
    found = cloud.admin.get("/v2.1/os-services?binary=nova-compute").json["services"]
    return {service["host"]: (service["status"], service["disabled_reason"] or "") for service in found}


def test_add_a_host(cloud: Inside, tmp_path: Path) -> None:
    books = Books(tmp_path, cloud, "add_host")
    for words, message in (
            ((), "Name the new hosts"), (("--limit", "kvm2"), "--limit 'kvm2,magnetar_cells'"),
            (("-e", "magnetar_hosts=kvm2"), "Name it in clouds.yaml")):
        status, said = books.run(*words)
        assert status and message in said and books.done() == [], said
    told = ["kvm2 agent main", "ctl conductor configure"]
    status, said = books.run("-e", "magnetar_hosts=kvm2", "-e", "add_cloud=magnetar", "--check")
    assert not status and services(cloud)["kvm2"][0] == "enabled", said
    status, said = books.run("--limit", "kvm2,magnetar_cells", "-e", "add_cloud=magnetar", "-e", "add_disabled=true")
    assert not status and books.done() == told and "kvm2 is up and disabled, with " in said, said
    assert services(cloud) == {"kvm1": ("enabled", ""), "kvm2": ("disabled", "new host")}
    status, said = books.run("-e", "magnetar_hosts=kvm2", "-e", "add_cloud=magnetar")
    assert not status and said.count("changed=0") == 2 and "kvm2 is up and disabled" in said, said
    status, said = books.run("-e", "magnetar_hosts=kvm9", "-e", "add_cloud=magnetar", "-e", "add_timeout=2",
                             "-e", "add_poll=1")
    assert status and "The cloud magnetar does not know kvm9 after 2 s" in said, said
    Draining(cloud).enabled("kvm2")


def test_remove_a_host(cloud: Inside, tmp_path: Path) -> None:
    admin, books = Draining(cloud), Books(tmp_path, cloud, "remove_host")
    server = admin.boot("kvm2", name="web")
    for words, message in (
            ((), "Name the hosts that you remove"), (("--limit", "kvm2"), "--limit 'kvm2,magnetar_cells'"),
            (("-e", "magnetar_hosts=kvm2", "-e", "remove_cloud=magnetar"), "kvm2 has 1 servers: web.")):
        status, said = books.run(*words)
        assert status and message in said and books.done() == [], said
    assert services(cloud)["kvm2"] == ("enabled", "")
    words = ("-e", "magnetar_hosts=kvm2", "-e", "remove_cloud=magnetar", "-e", "remove_drain=true")
    assert cloud.admin.act(server, "lock").status == 202
    status, said = books.run(*words)
    assert status and "1 servers stay on kvm2: web: An administrator has locked it" in said, said
    assert cloud.admin.act(server, "unlock").status == 202
    admin.enabled("kvm2")
    status, said = books.run(*words, "--check")
    assert not status and row(cloud, server).host == "kvm2" and "kvm2 would be removed" in said, said
    assert services(cloud)["kvm2"] == ("enabled", "")
    status, said = books.run(*words)
    assert not status and row(cloud, server).host == "kvm1", said
    assert books.done() == ["kvm2 agent drain", "kvm2 agent uninstall", "ctl conductor configure"]
    assert list(services(cloud)) == ["kvm1"] and "kvm2 is removed" in said
    status, said = books.run(*words, "-e", "remove_agent=false")
    assert not status and said.count("changed=0") == 2 and books.done() == ["ctl conductor configure"], said


def test_conductors_get_no_host_that_is_removed(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": {
        "magnetar": {"hosts": {"kvm1": {"ansible_host": "192.0.2.1"}, "kvm2": {"magnetar_removed": True}}}}}}))
    good, told = play_role(tmp_path, [
        {"ansible.builtin.include_vars": {"file": str(ROOT / "roles/conductor/vars/main.yml")}},
        {"ansible.builtin.debug": {"msg": "{{ conductor_hosts }}"}}],
        "-i", str(tmp_path / "hosts.json"), common_cells={"cell1": ["ctl"]}, conductor_cell="cell1")
    assert good and '"kvm1": "https://192.0.2.1:6553"' in told and "kvm2" not in told, told
