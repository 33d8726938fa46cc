# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks for openstack.cloud, unchanged, with a cloud: the second run changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import openstack_cloud
from tests.support.clients import CASES
from tests.support.control.cloud import Cloud

pytestmark = [pytest.mark.slow, pytest.mark.deep(shard="playbooks of others")]


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    try:
        openstack_cloud.collections()
    except RuntimeError as error:
        pytest.skip(str(error))
    with Cloud(hosts=1) as made:
        made.admin.image()
        yield made


def changed(said: str) -> list[str]:
    """Names of the tasks that changed something."""
    found, task = [], ""
    for line in said.splitlines():
        if line.startswith("TASK ["):
            task = line[6:line.rindex("]")]
        elif line.startswith("changed:"):
            found.append(task)
    (count,) = re.findall(r"changed=(\d+)", said)
    assert int(count) == len(found)
    return found


def test_the_second_run_changes_nothing(cloud: Cloud, tmp_path: Path) -> None:
    clouds, playbook = tmp_path / "clouds.yaml", CASES / "openstack_cloud.yml"
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    clouds.write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))

    def run(state: str) -> list[str]:
        return changed(openstack_cloud.play(playbook, clouds, tmp_path, state=state))

    assert run("present") == ["A network", "Its subnet", "A security group", "Its rule", "A key", "A flavor",
                              "A group of servers", "The server"]
    assert run("present") == []
    assert run("absent") == ["The server"]
    assert run("absent") == []
