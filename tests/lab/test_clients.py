# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack's own client, unmodified, drives real guests: tests/cases/clients/openstack.yml, in order."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plane import LabControl

from agent import LabAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab
STEPS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).resolve().parents[1] / "cases/clients/openstack.yml").read_text())
#: Seconds for what comes about after a command has ended.
LATER = 45.0


@pytest.fixture
def control() -> Iterator[LabControl]:
    # The guest is often asked to power off before it has booted, when it cannot hear that yet.
    with LabAgent(shutdown_timeout=5) as agent, LabControl(agent) as made:
        yield made


def test_a_life_by_the_client(control: LabControl, guest_image: dict[str, Path], tmp_path: Path) -> None:
    assert len(STEPS) >= 50
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7oqVvb3n1vCw1s6p1mYQ0m2Hk1mQm1QyW0c0bX0a1b me@lab\n")
    wrong = []
    for step in STEPS:
        command = step["run"].format(disk=guest_image["disk"], key=key)
        deadline = time.monotonic() + LATER
        while True:
            done = control.openstack(command)
            if "waits" not in step or re.search(step["waits"], done.stdout) or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        wanted = step.get("says") or step.get("waits") or step.get("refused") or ""
        if bool(done.returncode) != ("refused" in step) or not re.search(wanted, done.stdout):
            wrong.append(f"openstack {command}\n{done.stdout[-800:]}")
    assert not wrong, "\n\n".join(wrong)
