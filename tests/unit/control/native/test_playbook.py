# SPDX-License-Identifier: GPL-3.0-or-later
"""One playbook for a single host and for a cloud: the same is changed, by the same steps, in check mode, for real, and
again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.control.cloud import Cloud

ROOT = Path(__file__).parents[4]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"
WEB = {"name": "web1", "flavor": "small", "image": "disk", "network": "lan", "key_name": "me",
       "metadata": {"role": "web"}, "tags": ["shop"]}
BOOK: list[dict[str, Any]] = [
    {"flavor": {"name": "small", "vcpus": 1, "ram": 128}},
    {"flavor": {"name": "large", "vcpus": 2, "ram": 256, "disk": 1, "description": "more"}},
    {"keypair": {"name": "me", "public_key": KEY}},
    {"network": {"name": "lan", "cidr": "192.168.99.0/24"}},
    {"image": {"name": "disk", "filename": "{{ folder }}/disk.raw", "disk_format": "raw"}},
    {"server": WEB},
    {"server": {"name": "web1", "state": "stopped"}},
    {"server": {"name": "web1", "flavor": "large", "allow_reboot": True}},
    {"server": {"name": "web1", "state": "running", "purge_metadata": False, "metadata": {"tier": "1"}}},
    {"server": {"name": "web1", "state": "paused"}},
    {"server_info": {"name": "web1", "fields": ["name", "power", "status", "metadata", "tags", "key_name", "flavor"]}},
    {"server": {"name": "web1", "key_name": "other"}, "ignore_errors": True},
    {"server": {"name": "web1", "state": "absent"}},
    {"network": {"name": "lan", "state": "absent"}},
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play")
    links = path / "ansible_collections" / "magnetar"
    links.mkdir(parents=True)
    (links / "compute").symlink_to(ROOT)
    with (path / "disk.raw").open("wb") as stream:
        stream.truncate(1 << 20)
    return path


def play(folder: Path, tasks: list[dict[str, Any]], options: Mapping[str, Any], *words: str) -> list[dict[str, Any]]:
    """Results of the tasks."""
    listed = [{"name": f"task {at}", **{f"magnetar.compute.{name}" if isinstance(value, dict) else name: value
                                       for name, value in task.items()}} for at, task in enumerate(tasks)]
    book = folder / "book.json"
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": {"folder": str(folder)},
                                 "module_defaults": {"group/magnetar.compute.all": dict(options)}, "tasks": listed}]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
    env = dict(kept, OS_CLIENT_CONFIG_FILE=str(folder / "clouds.yaml"), ANSIBLE_COLLECTIONS_PATH=str(folder),
               ANSIBLE_LOCAL_TEMP=str(folder), MAGNETAR_DIRECT="always",
               ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default", ANSIBLE_LOCALHOST_WARNING="0",
               ANSIBLE_CALLBACK_RESULT_FORMAT="json", ANSIBLE_INVENTORY_UNPARSED_WARNING="0",
               PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), "-vvv", *words, str(book)], env=env,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found, decoder = [], json.JSONDecoder()
    for part in done.stdout.split("\nTASK [")[1:]:
        at = part.find("=> {")
        assert at >= 0, part
        found.append(decoder.raw_decode(part[at + 3:])[0])
    return found


def told(tasks: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is compared: not what is told of things that go, which has names and addresses that were drawn."""
    return [{name: result.get(name) for name in TOLD
             if name in result and not (name == "changes" and "absent" in str(task))}
            for task, result in zip(tasks, results, strict=True)]


def test_same_results(cloud: Cloud, folder: Path) -> None:
    (folder / "clouds.yaml").write_text((Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text().replace(
        "127.0.0.1:8774", f"127.0.0.1:{cloud.port}"))
    alone = cloud.folder / "alone"
    cloud.hosts["alone"] = f"unix:{alone}/agent.sock"
    cloud.start_agent("alone")
    cloud.wait_agent("alone")
    ways = ({"endpoint": f"unix://{alone}/agent.sock"}, {"cloud": "magnetar"})
    made, changed, gone = BOOK[:6], BOOK[6:12], BOOK[12:]
    for tasks, words in ((made, ("--check",)), (made + made, ()), (changed, ("--check",)), (changed + gone + gone, ())):
        one, other = (told(tasks, play(folder, tasks, way, "--diff", *words)) for way in ways)
        differ = [(task, words, result, expected)
                  for task, result, expected in zip(tasks, other, one, strict=True) if result != expected]
        assert differ == []
