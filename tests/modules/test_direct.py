# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook for real: direct execution and the module process give the same results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TASKS = [
    {"magnetar.compute.flavor": {"name": "{{ who }}", "vcpus": "{{ 1 }}", "ram": 128}, "diff": True},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "vcpus": 1, "ram": 128}},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "ram": 9}, "ignore_errors": True},
    {"magnetar.compute.flavor": {"nam": "{{ who }}"}, "ignore_errors": True},
    {"magnetar.compute.flavor": {"name": "x", "ram": "many"}, "ignore_errors": True},
    {"magnetar.compute.server": {"name": "s", "flavor": "{{ who }}", "userdata": {"password": "geheim"},
                                 "metadata": {"n": 1}}, "check_mode": True, "diff": True},
    {"magnetar.compute.server_info": {"token": "geheim"}},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "state": "absent"}},
]


def play(agent, folder, mode):
    """Results of the tasks, without what is drawn."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    book = folder / "book.json"
    defaults = {"group/magnetar.compute.all": {"endpoint": agent.endpoint}}
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": {"who": "small"},
                                 "module_defaults": defaults, "tasks": TASKS}]))
    env = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=str(folder), MAGNETAR_DIRECT=mode, ANSIBLE_LOCAL_TEMP=str(folder),
               ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default", ANSIBLE_CALLBACK_RESULT_FORMAT="json",
               ANSIBLE_LOCALHOST_WARNING="0", ANSIBLE_INVENTORY_UNPARSED_WARNING="0", PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), "-vvv", str(book)], env=env,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "geheim" not in done.stdout
    text = re.sub(r"req-[0-9a-f-]{36}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|20\d\d-[\dT:-]+Z", "DRAWN", done.stdout)
    return re.findall(r"(?m)^(?:ok|changed|fatal): \[localhost\].*?=> (\{.*?^\})", text, re.DOTALL)


def test_same_results(agent, tmp_path):
    direct, process = (play(agent, tmp_path, mode) for mode in ("always", "never"))
    assert len(direct) == len(TASKS)
    assert [json.loads(one) for one in direct] == [json.loads(one) for one in process]
