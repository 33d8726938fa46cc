# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook for real, with the modules of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.control.cloud import Cloud

ROOT = Path(__file__).parents[4]
Tasks = list[dict[str, Any]]


def prepared(folder: Path, cloud: Cloud, name: str = "magnetar") -> Path:
    """*folder* with the collection, and a clouds.yaml in which *cloud* is called *name*."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True)
    (links / "compute").symlink_to(ROOT)
    text = (Path(cloud.parts.settings.state_dir) / "clouds.yaml").read_text()
    (folder / "clouds.yaml").write_text(text.replace("127.0.0.1:8774", f"127.0.0.1:{cloud.port}").replace(
        "  magnetar:", f"  {name}:", 1))
    return folder


def play(folder: Path, tasks: Tasks, options: Mapping[str, Any], *words: str, direct: str = "always",
         **environment: str) -> list[dict[str, Any]]:
    """Results of the tasks."""
    listed = [{"name": f"task {at}", **{
        f"magnetar.compute.{name}" if isinstance(value, dict) and "." not in name else name: value
        for name, value in task.items() if name != "name"}} for at, task in enumerate(tasks)]
    book = folder / "book.json"
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": {"folder": str(folder)},
                                 "module_defaults": {"group/magnetar.compute.all": dict(options)}, "tasks": listed}]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "MAGNETAR_"))}
    env = {**kept, "OS_CLIENT_CONFIG_FILE": str(folder / "clouds.yaml"), "ANSIBLE_COLLECTIONS_PATH": str(folder),
           "ANSIBLE_LOCAL_TEMP": str(folder), "MAGNETAR_DIRECT": direct, "PYTHONDONTWRITEBYTECODE": "1",
           "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_LOCALHOST_WARNING": "0",
           "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", **environment}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), "-vvv", *words, str(book)], env=env,
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found, decoder = [], json.JSONDecoder()
    for part in done.stdout.split("\nTASK [")[1:]:
        at = part.find("=> {")
        assert at >= 0, part
        found.append(decoder.raw_decode(part[at + 3:])[0])
    return found


def thrice(folder: Path, tasks: Tasks, options: Mapping[str, Any]) -> None:
    """Each task in check mode, in truth and again, in one play: it says before what it changes, and changes it once."""
    each = [one for task in tasks for one in ({**task, "check_mode": True}, task, task)]
    found = play(folder, each, options, "--diff")
    assert len(found) == 3 * len(tasks)
    for task, checked, once, twice in zip(tasks, found[::3], found[1::3], found[2::3], strict=True):
        assert checked["changed"] and once["changed"] and not twice["changed"], (task, checked, once, twice)
        assert checked["changes"] == once["changes"] and checked["diff"] == once["diff"], task
        assert not twice["changes"], task
