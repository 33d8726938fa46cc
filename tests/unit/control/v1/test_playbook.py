# SPDX-License-Identifier: GPL-3.0-or-later
"""One playbook for a single host and for a cloud: the same is changed, by the same steps, in check mode, for real, and
again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.control.cloud import Cloud

from .play import play, prepared

pytestmark = pytest.mark.slow

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"
WEB = {"name": "web1", "flavor": "small", "image": "disk", "network": "lan", "key_name": "me",
       "metadata": {"role": "web"}, "tags": ["shop"]}
MADE: list[dict[str, Any]] = [
    {"flavor": {"name": "small", "vcpus": 1, "ram": 128}},
    {"flavor": {"name": "large", "vcpus": 2, "ram": 256, "disk": 1, "description": "more"}},
    {"keypair": {"name": "me", "public_key": KEY}},
    {"network": {"name": "lan", "cidr": "192.168.99.0/24"}},
    {"network": {"name": "more", "cidr": "192.168.98.0/24"}},
    {"image": {"name": "disk", "filename": "{{ folder }}/disk.raw", "disk_format": "raw"}},
    {"volume": {"name": "data", "size": 1, "description": "kept"}},
    {"server": WEB},
    {"volume_attachment": {"server": "web1", "volume": "data", "tag": "data"}},
]
CHANGED: list[dict[str, Any]] = [
    {"server": {"name": "web1", "state": "stopped"}},
    {"server": {"name": "web1", "flavor": "large", "allow_reboot": True}},
    {"server": {"name": "web1", "state": "running", "purge_metadata": False, "metadata": {"tier": "1"}}},
    {"server": {"name": "web1", "state": "paused"}},
    {"server": {"name": "web1", "state": "running"}},
    {"server_action": {"server": "web1", "action": "reboot"}},
    {"volume": {"name": "data", "size": 2}},
    {"volume_snapshot": {"name": "yesterday", "volume": "data"}},
    {"interface_attachment": {"server": "web1", "network": "more", "tag": "more"}},
    {"volume_attachment_info": {"server": "web1", "fields": ["volume", "status", "tag"]}},
    {"interface_attachment_info": {"server": "web1", "fields": ["network", "tag"]}},
    {"server_info": {"name": "web1", "fields": ["name", "power", "status", "metadata", "tags", "key_name", "flavor"]}},
    {"server": {"name": "web1", "key_name": "other"}, "ignore_errors": True},
]
GONE: list[dict[str, Any]] = [
    {"volume_attachment": {"server": "web1", "volume": "data", "state": "absent"}},
    {"server": {"name": "web1", "state": "absent"}},
    {"volume_snapshot": {"name": "yesterday", "state": "absent"}},
    {"volume": {"name": "data", "state": "absent"}},
    {"network": {"name": "lan", "state": "absent"}},
    {"network": {"name": "more", "state": "absent"}},
    {"image": {"name": "disk", "state": "absent"}},
    {"keypair": {"name": "me", "state": "absent"}},
    {"flavor": {"name": "small", "state": "absent"}},
]
#: What is compared of a task's result.
TOLD = ("changed", "actions", "failed", "changes")


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture(scope="module")
def folder(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = prepared(tmp_path_factory.mktemp("play"), cloud)
    with (path / "disk.raw").open("wb") as stream:
        stream.truncate(1 << 20)
    return path


def told(tasks: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is compared: not what is told of things that go, which has names and addresses that were drawn."""
    return [{name: result.get(name) for name in TOLD
             if name in result and not (name == "changes" and "absent" in str(task))}
            for task, result in zip(tasks, results, strict=True)]


def test_same_results(cloud: Cloud, folder: Path) -> None:
    alone = cloud.folder / "alone"
    cloud.hosts["alone"] = f"unix:{alone}/agent.sock"
    cloud.start_agent("alone")
    cloud.wait_agent("alone")
    ways = ({"endpoint": f"unix://{alone}/agent.sock"}, {"cloud": "magnetar"})
    for tasks, words in ((MADE, ("--check",)), (MADE + MADE, ()), (CHANGED, ("--check",)), (CHANGED + GONE + GONE, ())):
        one, other = (told(tasks, play(folder, tasks, way, "--diff", *words)) for way in ways)
        differ = [(task, words, result, expected)
                  for task, result, expected in zip(tasks, other, one, strict=True) if result != expected]
        assert differ == [], "\n".join(map(str, differ))
