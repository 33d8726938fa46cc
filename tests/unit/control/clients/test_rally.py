# SPDX-License-Identifier: GPL-3.0-or-later
"""Rally's scenarios of Nova, unmodified, with a cloud."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import CASES
from tests.support.control.cloud import Cloud
from tests.support.environments import python_of

pytestmark = pytest.mark.slow
#: Looks at servers and volumes come soon after each other: guests of the fake hypervisor are quick.
CONFIG = """\
[DEFAULT]
log_file = {folder}/rally.log
[database]
connection = sqlite:///{folder}/rally.db
[openstack]
"""
INTERVALS = ("nova_server_boot", "nova_server_delete", "nova_server_start", "nova_server_stop", "nova_server_reboot",
             "nova_server_rescue", "nova_server_unrescue", "nova_server_suspend", "nova_server_resume",
             "nova_server_pause", "nova_server_unpause", "nova_server_shelve", "nova_server_unshelve",
             "nova_server_image_create", "nova_server_image_delete", "nova_server_resize", "nova_server_resize_confirm",
             "nova_server_rebuild", "cinder_volume_create", "cinder_volume_delete")
DELAYS = ("boot", "start", "stop", "reboot", "rescue", "unrescue", "suspend", "resume", "pause", "unpause", "shelve",
          "unshelve", "image_create", "resize", "resize_confirm", "rebuild")


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        made.admin.image(visibility="public")
        made.admin.flavor("larger", ram=128)
        yield made


class Rally:
    """The program ``rally`` with its files in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.program, self.folder = python_of("rally").with_name("rally"), folder
        lines = [*(f"{name}_poll_interval = 0.2" for name in INTERVALS),
                 *(f"nova_server_{name}_prepoll_delay = 0" for name in DELAYS)]
        (folder / "rally.conf").write_text(CONFIG.format(folder=folder) + "\n".join(lines) + "\n")

    def run(self, *words: object, fine: bool = True) -> str:
        """Return what a command says; it must succeed where it is to be *fine*."""
        done = subprocess.run(
            [self.program, "--config-file", self.folder / "rally.conf", *map(str, words)], check=False, text=True,
            capture_output=True, cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"})
        assert done.returncode == 0 or not fine, (done.stdout + done.stderr)[-6000:]
        return done.stdout


def failures(report: Any) -> list[str]:
    """Return the scenarios of a report that failed, with the reason."""
    found = []
    for subtask in report["tasks"][0]["subtasks"]:
        for workload in subtask["workloads"]:
            errors = [error for data in workload["data"] for error in data["error"][:2]]
            if errors or not workload["data"]:
                found.append(f"{subtask['title']}: {errors or workload['contexts_results']}")
    return found


def test_rally_has_nothing_to_say(cloud: Cloud, tmp_path: Path) -> None:
    rally = Rally(tmp_path)
    rally.run("db", "create")
    (tmp_path / "cloud.json").write_text(json.dumps({"openstack": {
        "auth_url": f"http://127.0.0.1:{cloud.port}/identity/v3", "region_name": "RegionOne", "admin": {
            "username": "admin", "password": cloud.password, "project_name": "admin", "user_domain_name": "Default",
            "project_domain_name": "Default"}}}))
    rally.run("env", "create", "--name", "cloud", "--spec", tmp_path / "cloud.json")
    rally.run("env", "check")
    rally.run("task", "start", CASES / "rally.yml", fine=False)
    rally.run("task", "report", "--json", "--out", tmp_path / "report.json")
    assert failures(json.loads((tmp_path / "report.json").read_text())) == []
