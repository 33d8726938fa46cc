# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers of a dead host are evacuated by the module, and all of them by the playbook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import disabled, flavors
from tests.unit.control.moves.inside import Inside

from .play import ROOT, play, prepared

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        made.parts.working.settling = lambda: False  # type: ignore[method-assign]
        yield made


def evacuate(folder: Path, *words: str) -> tuple[int, str]:
    """Run the playbook; its status and what it says."""
    env = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(folder / "clouds.yaml"), "ANSIBLE_COLLECTIONS_PATH": str(folder),
           "ANSIBLE_LOCAL_TEMP": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "MAGNETAR_DIRECT": "always",
           "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0"}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), str(ROOT / "playbooks/evacuate.yml"),
                           *words], env=env, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout + done.stderr


def test_by_module_and_by_playbook(cloud: Inside, tmp_path: Path) -> None:
    admin, folder = Evacuating(cloud), prepared(tmp_path, cloud)
    bob = Evacuating(cloud, cloud.caller("bob", "blue"))
    one = admin.server(name="one", flavorRef="small")["id"]
    host = admin.host_of(one)
    other = admin.other(host)
    zone = {"availability_zone": f"nova:{host}", "flavorRef": "small"}
    two = admin.server(name="two", **zone)["id"]
    with disabled(cloud, other):  # so that it gets the same host
        three = bob.server(name="three", flavorRef="small")["id"]
    action = {"server_action": {"name": "one", "action": "evacuate"}}
    status, said = evacuate(folder, "-e", f"evacuate_host={host}")
    assert status and "is up" in said, said
    admin.down(host)
    [would] = play(folder, [action], {"cloud": "magnetar"}, "--check")
    assert would["changed"] and admin.host_of(one) == host
    [done] = play(folder, [action], {"cloud": "magnetar"})
    assert done["changed"] and done["server"]["host"] == other and done["server"]["status"] == "ACTIVE"
    status, said = evacuate(folder, "-e", f"evacuate_host={host}", "--check")
    assert not status and admin.host_of(two) == host, said
    status, said = evacuate(folder, "-e", f"evacuate_host={host}")
    assert not status and "were evacuated" in said, said
    assert {admin.host_of(id) for id in (one, two, three)} == {other}
    status, said = evacuate(folder, "-e", f"evacuate_host={host}")
    assert not status and "changed=0" in said, said
    admin.up(host)
    admin.clean(one, other)
