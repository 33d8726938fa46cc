# SPDX-License-Identifier: GPL-3.0-or-later
"""ansible-playbook for real: direct execution and the module process give the same results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TASKS = [
    {"magnetar.compute.flavor": {"name": "{{ who }}", "vcpus": "{{ 1 }}", "ram": 128}, "diff": True},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "vcpus": 1, "ram": 128}},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "ram": 9}, "ignore_errors": True},
    {"magnetar.compute.flavor": {"nam": "{{ who }}"}, "ignore_errors": True},
    {"magnetar.compute.flavor": {"name": "x", "ram": "many"}, "ignore_errors": True},
    {"magnetar.compute.server": {"servers": ["web1"], "token": "geheim"}, "ignore_errors": True},
    {"magnetar.compute.server": {"name": "s", "flavor": "{{ who }}", "image": "none", "metadata": {"n": 1},
                                 "userdata": {"password": "geheim"}}, "check_mode": True, "diff": True},
    {"magnetar.compute.server_info": {"token": "geheim"}},
    {"magnetar.compute.flavor": {"name": "{{ who }}", "state": "absent"}},
]


#: Each way to name a module. All run the action plugin, with the defaults of their group and of their own module only.
NAMED = [
    {"flavor": {"name": "a", "vcpus": 1, "ram": 64}, "register": "short"},
    {"compute_flavor": {"name": "b", "vcpus": 1, "ram": 64}, "register": "redirected"},
    {"compute_flavor_info": {}, "register": "info"},
    {"action": "{{ 'magnetar.compute.' ~ 'keypair_info' }}", "register": "templated"},
    {"local_action": "magnetar.compute.host_info", "register": "local"},
    {"magnetar.compute.flavor_info": {"name": "{{ item }}"}, "loop": ["a", "b"], "register": "looped"},
    {"network": {"name": "n", "cidr": "192.168.99.0/24"}, "check_mode": True, "register": "predicted"},
    {"flavor": {"name": "c", "vcpus": 1, "ram": 64, "direct": "auto"}, "async": 60, "poll": 1, "register": "later"},
    {"ansible.builtin.assert": {"that": [
        "short.flavor.description == redirected.flavor.description == 'of flavor'", "info.flavors | length == 2",
        "templated.keypairs == []", "local.hosts | length == 1",
        "looped.results | map(attribute='flavors') | flatten | map(attribute='name') == ['a', 'b']",
        "predicted.changed and predicted.network.description == ''", "later.changed"]}}]
#: Reads a task, as Ansible does in the process that it forks later, and prints what is imported then.
READ = """
import sys
from ansible.plugins.loader import init_plugin_loader
init_plugin_loader()
from ansible.parsing.mod_args import ModuleArgsParser

ModuleArgsParser({"magnetar.compute.server": {"name": "s"}}).parse()
print([name for name in sys.modules if name.startswith(("ansible_collections.magnetar", "ansible.plugins"))])
"""


def environment(folder, **more):
    """Environment variables for Ansible, with the collection in *folder*."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    return dict(os.environ, ANSIBLE_COLLECTIONS_PATH=str(folder), ANSIBLE_LOCAL_TEMP=str(folder),
                ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default", ANSIBLE_CALLBACK_RESULT_FORMAT="json",
                ANSIBLE_LOCALHOST_WARNING="0", ANSIBLE_INVENTORY_UNPARSED_WARNING="0", LC_ALL="C.UTF-8",
                **{"PYTHONDONTWRITEBYTECODE": "1", **more})


def ansible(command, folder, *words, **more):
    """What *command* prints; it must succeed."""
    done = subprocess.run([str(Path(sys.executable).parent / command), *map(str, words)], text=True, timeout=600,
                          env=environment(folder, **more), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def play(agent, folder, mode):
    """Results of the tasks, without what is drawn."""
    book = folder / "book.json"
    defaults = {"group/magnetar.compute.all": {"endpoint": agent.endpoint}}
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": {"who": "small"},
                                 "module_defaults": defaults, "tasks": TASKS}]))
    said = ansible("ansible-playbook", folder, "-vvv", book, MAGNETAR_DIRECT=mode)
    assert "geheim" not in said
    text = re.sub(r"req-[0-9a-f-]{36}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|20\d\d-[\dT:-]+Z", "DRAWN", said)
    return re.findall(r"(?m)^(?:ok|changed|fatal): \[localhost\].*?=> (\{.*?^\})", text, re.DOTALL)


def test_same_results(agent, tmp_path):
    direct, process = (play(agent, tmp_path, mode) for mode in ("always", "never"))
    assert len(direct) == len(TASKS)
    assert [json.loads(one) for one in direct] == [json.loads(one) for one in process]


def test_all_names_lead_to_the_action_plugin(agent, tmp_path):
    book = tmp_path / "book.json"
    defaults = {"group/magnetar.compute.all": {"endpoint": agent.endpoint, "direct": "always"},
                "magnetar.compute.flavor": {"description": "of flavor"},
                "magnetar.compute.keypair": {"description": "of keypair"}}
    book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "collections": ["magnetar.compute"],
                                 "module_defaults": defaults, "tasks": NAMED}]))
    ansible("ansible-playbook", tmp_path, book)
    options = f"endpoint={agent.endpoint} direct=always"
    assert '"hosts": [' in ansible("ansible", tmp_path, "localhost", "-m", "magnetar.compute.host_info", "-a", options)


def test_all_is_imported_before_ansible_forks(tmp_path):
    """In each worker it would take longer than most tasks."""
    found = ansible("python", tmp_path, "-c", READ)
    for name in ("action.direct", "modules.server", "module_utils.core.http.transport"):
        assert f"'ansible_collections.magnetar.compute.plugins.{name}'" in found
    assert "'ansible.plugins.action.normal'" in found
