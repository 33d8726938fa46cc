# SPDX-License-Identifier: GPL-3.0-or-later
"""A host is drained by the module, and by the playbook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.inside import Inside

from .play import ROOT, play, prepared

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        yield made


def drain(folder: Path, host: str, *words: str) -> tuple[int, str]:
    """Run the playbook on a host; its status and its output."""
    env = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(folder / "clouds.yaml"), "ANSIBLE_COLLECTIONS_PATH": str(folder),
           "ANSIBLE_LOCAL_TEMP": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "MAGNETAR_DIRECT": "always"}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), str(ROOT / "playbooks/drain.yml"),
                           "-i", f"{host},", "-e", "magnetar_hosts=all", "-e", "drain_cloud=magnetar",
                           "-e", "drain_local=false", *words],
                          env=env, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout + done.stderr


def test_by_module_and_by_playbook(cloud: Inside, tmp_path: Path) -> None:
    admin, folder = Draining(cloud), prepared(tmp_path, cloud)
    moves, locked = admin.boot("kvm1", name="moves"), admin.boot("kvm1", name="locked")
    assert cloud.admin.act(locked, "lock").status == 202
    task = {"host_maintenance": {"name": "kvm1", "state": "maintenance", "reason": "new memory", "timeout": 600}}
    [would] = play(folder, [task], {"cloud": "magnetar"}, "--check", "--diff")
    assert would["changed"] and would["actions"] == ["record", "disable", "move"]
    assert (would["diff"]["before"]["state"], would["diff"]["after"]["state"]) == ("enabled", "maintenance")
    assert [server["to"] for server in would["host_maintenance"]["moved"]] == ["kvm2"]
    assert row(cloud, moves).host == "kvm1"
    status, said = drain(folder, "kvm1", "--check")
    assert status and "locked stays on kvm1: An administrator has locked it" in said, said
    done, again = play(folder, [task, task], {"cloud": "magnetar"})
    maintenance = done["host_maintenance"]
    assert done["changed"] and not again["changed"] and row(cloud, moves).host == "kvm2"
    assert [server["name"] for server in maintenance["moved"]] == ["moves"]
    assert [server["name"] for server in maintenance["stays"]] == ["locked"]
    status, said = drain(folder, "kvm1")
    assert status and "1 servers of the cloud stay on kvm1" in said, said
    assert cloud.admin.act(locked, "unlock").status == 202
    status, said = drain(folder, "kvm1")
    assert not status and "locked has left kvm1" in said, said
    assert row(cloud, locked).host == "kvm2"
    status, said = drain(folder, "kvm1")
    assert not status and "changed=0" in said, said
    [enabled] = play(folder, [{"host_maintenance": {"name": "kvm1", "state": "enabled"}}], {"cloud": "magnetar"})
    assert enabled["changed"] and enabled["host_maintenance"]["state"] == "enabled"
