# SPDX-License-Identifier: GPL-3.0-or-later
"""The job templates of docs/awx: ansible-runner, which is what AWX runs jobs with, runs the one for servers."""

from __future__ import annotations

import os
from pathlib import Path

import ansible_runner
import pytest
import yaml

from magnetar_core.client import Client

ROOT = Path(__file__).parents[2]
TEMPLATES = yaml.safe_load((ROOT / "docs/awx/job_templates.yml").read_text())["job_templates"]


@pytest.mark.parametrize("template", TEMPLATES, ids=[one["name"] for one in TEMPLATES])
def test_templates_fit_their_playbooks(template):
    text = (ROOT / "playbooks" / template["playbook"]).read_text()
    for question in template.get("survey_spec", {}).get("spec", ()):
        assert f"    {question['variable']}: " in text


def run(agent, folder, **answers):
    """The job of the template for servers, with a survey's answers; (status, changed tasks)."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    (folder / "job").mkdir(exist_ok=True)
    given = {"server_names": "awx1\n awx2 \n\n", "server_flavor": "small", "magnetar_endpoint": agent.endpoint}
    done = ansible_runner.run(
        private_data_dir=str(folder / "job"), playbook=str(ROOT / "playbooks/servers.yml"), quiet=True,
        extravars={**given, **answers}, envvars={
            "ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_LOCALHOST_WARNING": "0", "PATH": os.environ["PATH"],
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"})
    assert done.status == "successful", done.stdout.read()
    return sum(done.stats["changed"].values())


def test_servers_for_the_asking(agent, tmp_path):
    with Client(agent.endpoint) as client:
        client.ensure("flavor", "small", {"vcpus": 1, "ram": 64})
        assert run(agent, tmp_path) == 1
        assert sorted(one["name"] for one in client.list("server")) == ["awx1", "awx2"]
        assert run(agent, tmp_path) == 0
        assert run(agent, tmp_path, server_state="absent") == 1
        assert client.list("server") == []
