# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that examines all hosts. Programs that this machine lacks, or that would look at it, are scripts."""

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

from tests.support.control.cloud import Cloud
from tests.support.ports import free_port

from .play import ROOT, prepared

pytestmark = pytest.mark.slow
SCRIPTS = {
    "runuser": "shift 3\nexec \"$@\"\n",
    "systemctl": "[ -e {folder}/stopped ] && grep -qx \"$2\" {folder}/stopped && echo failed && exit 3\necho active\n",
    "venv/bin/magnetar": "[ $1 = audit ] && [ -e {folder}/audit.json ] && cat {folder}/audit.json && exit 1\n"
                         "exec {python} -c 'import sys; from magnetar_control.cli import main; sys.exit(main("
                         "[\"{folder}/api.yml\" if word == \"/etc/magnetar-control/api.yml\" else word "
                         "for word in sys.argv[1:]]))' \"$@\"\n"}


class Site:
    """The hosts of *cloud*, which this machine plays, in an inventory in *folder*."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.folder = prepared(folder, cloud)
        for name, text in SCRIPTS.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("#!/bin/sh\n" + text.replace("{folder}", str(folder)).replace(
                "{python}", sys.executable))
            (folder / name).chmod(0o755)
        settings = {"state_dir": str(cloud.folder / "control"), "hosts": dict(cloud.hosts), **cloud.settings}
        (folder / "api.yml").write_text(yaml.safe_dump(settings))
        (folder / "api.yml").chmod(0o600)
        self.inventory: dict[str, Any] = {"all": {
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                     "ansible_become": False, "common_venv": str(folder / "venv"),
                     "common_doctor_disks": [], "common_doctor_certificates": [str(folder / "tls")]},
            "children": {
                "magnetar": {"hosts": {name: {"agent_settings": {
                    "socket": str(cloud.folder / name / "agent.sock"), "state_dir": str(cloud.folder / name)}}
                    for name in cloud.hosts}},
                "magnetar_api": {"hosts": {"ctl": {}}}}}}

    def certificate(self, name: str, days: int) -> None:
        """Create a certificate that expires in this number of days."""
        (self.folder / "tls").mkdir(exist_ok=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/dev/null", "-subj",
                        f"/CN={name}", "-days", str(days), "-out", str(self.folder / "tls" / f"{name}.pem")],
                       check=True, capture_output=True)

    def run(self, *words: str) -> tuple[int, str]:
        """Run the playbook; its status and its output without line breaks."""
        (self.folder / "hosts.json").write_text(json.dumps(self.inventory))
        env = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCAL_TEMP": str(self.folder),
               "ANSIBLE_REMOTE_TEMP": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1",
               "PATH": f"{self.folder}:{os.environ['PATH']}"}
        program = str(Path(sys.executable).parent / "ansible-playbook")
        done = subprocess.run([program, str(ROOT / "playbooks/doctor.yml"), "-i", str(self.folder / "hosts.json"),
                               *words], env=env, capture_output=True, text=True, timeout=900, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=2, host_down_after=600.0) as made:
        yield made


def test_a_healthy_site(cloud: Cloud, tmp_path: Path) -> None:
    site = Site(tmp_path, cloud)
    site.certificate("agent", 90)
    for words in ((), ("--check",), ("--limit", "kvm1")):
        status, said = site.run(*words)
        assert not status and "Nothing is wrong." in said and "WRONG" not in said, said
        assert "kvm1: agent " in said and ", libvirt " in said and "certificates until " in said, said
        assert "clock within 0" in said and "changed=0" in said and " free" in said, said
        assert ("kvm2: agent" in said) == ("--limit" not in words), said


def test_all_problems_are_in_one_summary(cloud: Cloud, tmp_path: Path) -> None:
    site = Site(tmp_path, cloud)
    site.certificate("agent", 3)
    (tmp_path / "tls/broken.pem").write_text("nothing")
    (tmp_path / "stopped").write_text("libvirtd\n")
    hosts = site.inventory["all"]["children"]["magnetar"]["hosts"]
    hosts["kvm2"]["agent_settings"]["socket"] = str(tmp_path / "none.sock")
    hosts["gone"] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": free_port()}
    status, said = site.run("-e", "doctor_disk_percent=101")
    assert status and "problems were found. The summary above says which." in said, said
    for problem in ("WRONG: gone: unreachable: ", "WRONG: kvm1: libvirtd is failed: look at `journalctl -u libvirtd`",
                    f"WRONG: kvm1: the certificate {tmp_path}/tls/agent.pem expires in 3 days",
                    f"WRONG: kvm1: the certificate {tmp_path}/tls/broken.pem is not readable",
                    f"WRONG: kvm1: {cloud.folder}/kvm1 has ", "WRONG: kvm2: the agent does not answer: ",
                    "WRONG: ctl: the certificate"):
        assert problem in said, (problem, said)
    assert "kvm1: agent " in said and "WRONG: kvm1: the agent" not in said, said


def test_what_the_cloud_finds(cloud: Cloud, tmp_path: Path) -> None:
    """A finding of the audit, and settings that no command takes."""
    site = Site(tmp_path, cloud)
    finding = {"kind": "leftover", "id": "1", "place": "kvm1", "text": "kvm1 has a guest of no server."}
    (tmp_path / "audit.json").write_text(json.dumps([finding]))
    status, said = site.run()
    assert status and "WRONG: audit: kvm1 has a guest of no server." in said and "1 problems were found" in said, said
    (tmp_path / "audit.json").unlink()
    with (tmp_path / "api.yml").open("a") as file:
        file.write("no_such_setting: 1\n")
    status, said = site.run()
    assert status and "WRONG: audit: " in said and "no_such_setting" in said, said
    assert "WRONG: upgrade check: Settings: " in said, said
