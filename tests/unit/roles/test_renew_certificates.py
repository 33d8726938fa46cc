# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that renews certificates. Of each role it runs the tasks that make certificates, in a test's folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
#: The file of each role with the task Certificate.
FILES = {"cell": "postgresql", "network": "configure", "api": "configure", "conductor": "configure"}


def tasks_of_role(role: str, folder: Path) -> list[dict[str, Any]]:
    """Return the tasks of a role that make its certificate. The files belong to the user of the test."""
    if role == "agent":
        return [{"name": "Folder", "ansible.builtin.file": {"path": str(folder / "agent/tls"), "state": "directory"}},
                {"name": "Certificates", "ansible.builtin.include_tasks": str(ROOT / "roles/agent/tasks/ca.yml")}]
    tasks = yaml.safe_load((ROOT / f"roles/{role}/tasks/{FILES[role]}.yml").read_text())
    (task,) = [task for task in tasks if task["name"] == "Certificate"]
    task["vars"].update(common_cert_owner="root", common_cert_dir=str(folder / role),
                        common_ca_file=str(folder / "ca/ca.pem"))
    return [task]


class Renewal:
    """The playbook in *folder*, for a host of each group."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ansible_collections/magnetar").mkdir(parents=True)
        (folder / "ansible_collections/magnetar/compute").symlink_to(ROOT)
        plays = yaml.safe_load((ROOT / "playbooks/renew_certificates.yml").read_text())
        for play in plays:
            roles = [task["ansible.builtin.import_role"] for task in play["tasks"]]
            (role,) = {role["name"].rpartition(".")[2] for role in roles}
            assert [entry["tasks_from"] for entry in roles] in (["configure"], ["configure", "verify"])
            play["tasks"] = tasks_of_role(role, folder)
            play["vars_files"] = [str(ROOT / f"roles/{role}/vars/main.yml")]
            play["handlers"] = [{"name": "Restart the agent", "ansible.builtin.debug": {"msg": "restarted"}}]
        (folder / "book.json").write_text(json.dumps(plays))
        # Variables of the play win over the roles' defaults, and so over the inventory's.
        defaults = {name: value for role in ("agent", *FILES) for name, value in yaml.safe_load(
            (ROOT / f"roles/{role}/defaults/main.yml").read_text()).items()}
        groups = ("magnetar", "magnetar_api", "magnetar_cells", "magnetar_network")
        (folder / "hosts.json").write_text(json.dumps({"all": {
            "vars": {**defaults, "ansible_connection": "local", "ansible_become": False,
                     "agent_pki_dir": str(folder / "pki"), "ansible_python_interpreter": sys.executable},
            "children": {group: {"hosts": {"here": {}}} for group in groups}}}))

    def run(self, *words: str) -> int:
        """Run the playbook; the number of changed tasks."""
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCAL_TEMP": str(self.folder),
               "ANSIBLE_REMOTE_TEMP": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible-playbook"), str(self.folder / "book.json"), "-i",
             str(self.folder / "hosts.json"), "-e", f"agent_tls_dir={self.folder}/agent/tls", *words],
            env=env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return int(done.stdout.rpartition("changed=")[2].split()[0])

    def certificates(self) -> dict[str, str]:
        """The certificates of the host, by role."""
        paths = [*self.folder.glob("*/service.pem"), self.folder / "agent/tls/agent.pem"]
        return {path.relative_to(self.folder).parts[0]: path.read_text() for path in paths}


def test_certificates_that_expire_soon_or_all(tmp_path: Path) -> None:
    renewal = Renewal(tmp_path)
    assert renewal.run() > 0
    first = renewal.certificates()
    assert set(first) == {"agent", *FILES}
    assert renewal.run() == 0 and renewal.run("-e", "agent_cert_renew_days=364") == 0
    assert renewal.run("--check", "-e", "renew_now=true") >= len(first) and renewal.certificates() == first
    renewal.run("-e", "renew_now=true")
    second = renewal.certificates()
    assert all(second[role] != first[role] for role in first)
    assert renewal.run() == 0
    renewal.run("-e", "agent_cert_renew_days=365")
    assert all(renewal.certificates()[role] != second[role] for role in first)
