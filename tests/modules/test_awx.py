# SPDX-License-Identifier: GPL-3.0-or-later
"""The job templates of docs/howto/awx: ansible-runner, which is what AWX runs jobs with, runs the one for servers."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import ansible_runner
import pytest
import yaml

from magnetar_core.http.client import Client

ROOT = Path(__file__).parents[2]
TEMPLATES = yaml.safe_load((ROOT / "docs/howto/awx/job_templates.yml").read_text())["job_templates"]


#: What a survey may ask: options of the roles' entry points. Play variables are read off the playbooks.
OPTIONS = {name: option for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
           for point in yaml.safe_load(path.read_text())["argument_specs"].values()
           for name, option in point.get("options", {}).items()}


@pytest.mark.parametrize("template", TEMPLATES, ids=[one["name"] for one in TEMPLATES])
def test_templates_fit_their_playbooks(template):
    """A survey asks only what playbook or role knows, with its choices and defaults."""
    text = (ROOT / template["playbook"]).read_text()
    questions = template.get("survey_spec", {}).get("spec", ())
    assert template["survey_enabled"] == bool(questions)
    for question in questions:
        option = OPTIONS.get(question["variable"])
        if option is None:
            assert f"    {question['variable']}: " in text or f"{question['variable']} | default(" in text
            continue
        assert question["default"] == option.get("default", "") and question.get("choices") == option.get("choices")
        assert (question["type"] == "integer") == (option["type"] == "int")


def test_every_shipped_playbook_has_a_template():
    """But for those of ./quickstart, which set a machine up for a look."""
    books = {path.name for path in ROOT.glob("playbooks/*.yml")}
    shipped = {f"playbooks/{name}" for name in books if not name.startswith("quickstart")}
    assert {one["playbook"] for one in TEMPLATES} == shipped


def test_the_execution_environment_has_what_the_collection_needs(tmp_path):
    """ansible-builder reads it; to build the image needs a network and a container engine."""
    words = ["ansible-builder", "create", "-f", ROOT / "docs/howto/awx/execution-environment.yml", "-c", tmp_path,
             "--output-filename", "Containerfile"]
    subprocess.run(words, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    made = tmp_path / "_build"
    (source,) = yaml.safe_load((made / "requirements.yml").read_text())["collections"]
    assert source["type"] == "git" and source["name"].endswith(".git")  # it is not on Galaxy yet
    lock = ROOT / "requirements/ssh.txt"
    assert (made / "requirements/ssh.txt").read_text() == lock.read_text() and "\nparamiko==" in lock.read_text()
    steps = (tmp_path / "Containerfile").read_text()
    assert "--require-hashes --only-binary :all: -r /usr/share/magnetar/ssh.txt" in steps


def test_the_collection_says_what_an_execution_environment_needs(tmp_path):
    """ansible-builder finds Paramiko and the SSH client in the collection's own metadata, and nothing of a host."""
    links = tmp_path / "ansible_collections" / "magnetar"
    links.mkdir(parents=True)
    (links / "compute").symlink_to(ROOT)
    done = subprocess.run(["ansible-builder", "introspect", tmp_path], check=True, capture_output=True, text=True)
    found = yaml.safe_load(done.stdout)
    names = {kind: {line.split("#")[0].strip() for line in found[kind]} for kind in ("python", "system")}
    assert names == {"python": {"paramiko>=3.4"},
                     "system": {"openssh-client [platform:dpkg]", "openssh-clients [platform:rpm]"}}, done.stdout
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["ssh"]
    assert {*asked} == names["python"]


def run(agent, folder, **answers):
    """The job of the template for servers, with a survey's answers; (status, changed tasks)."""
    links = folder / "ansible_collections" / "magnetar"
    links.mkdir(parents=True, exist_ok=True)
    if not (links / "compute").exists():
        (links / "compute").symlink_to(ROOT)
    (folder / "job").mkdir(exist_ok=True)
    given = {"server_names": "awx1\n awx2 \n\n", "server_flavor": "small", "server_image": "none",
             "magnetar_endpoint": agent.endpoint}
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


class Loader(yaml.SafeLoader):
    """A loader for files of Ansible, with the tag that keeps templates as they are."""


Loader.add_constructor("!unsafe", lambda loader, node: f"unsafe {node.value}")


def test_settings_of_the_import_are_used_and_known():
    """Each variable of controller.yml is a setting, or is defined there; no setting is without effect."""
    folder = ROOT / "docs/howto/awx"
    settings = yaml.safe_load((folder / "settings.yml").read_text())
    text = (folder / "controller.yml").read_text()
    made = yaml.load(text, Loader)
    used = {*re.findall(r"magnetar_awx_\w+", text)}
    assert used == {*settings} | {name for name in made if name.startswith("magnetar_awx_")}
    imported = (folder / "import.yml").read_text()
    lists = {name for name in made if name.startswith("controller_")}
    assert {*re.findall(r"controller_\w+", imported)} == lists
