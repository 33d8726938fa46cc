# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

ROLE = Path(__file__).resolve().parents[3] / "roles/agent"


def tasks(file, *names):
    """Return the tasks of the role's *file* with these *names*, or all. Other tasks would change this machine."""
    found = yaml.safe_load((ROLE / "tasks" / file).read_text())
    chosen = [task for task in found if task["name"] in names or not names]
    assert not names or [task["name"] for task in chosen] == [*names]
    return chosen


def play(folder, tasks, *words, **given):
    """Run *tasks* with the variables of the role and those *given*; return whether they succeeded, and the output."""
    book, variables = folder / "book.json", folder / "given.json"
    variables.write_text(json.dumps(given))
    book.write_text(json.dumps([{
        "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks,
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")],
        "handlers": [{"name": "Restart the agent", "ansible.builtin.debug": {"msg": "it is restarted"}}],
    }]))
    env = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(folder), "ANSIBLE_REMOTE_TEMP": str(folder / "tmp"),
           "ANSIBLE_LOCALHOST_WARNING": "0", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", "ANSIBLE_NOCOLOR": "1",
           "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run([str(Path(sys.executable).parent / "ansible-playbook"), *words, "-e", f"@{variables}", book],
                          env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode == 0, done.stdout + done.stderr
