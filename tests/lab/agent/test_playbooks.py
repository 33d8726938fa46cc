# SPDX-License-Identifier: GPL-3.0-or-later
"""Playbooks run by ansible-playbook against a real agent: check mode, the run, the second run, the end; and those of
`./quickstart`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.support.lab.agent import CACHE, CHECKOUT, LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILrlRCSuFpcADYwVwKoJ0D1HyELpD5LuSEplIEVRsbQ2 me@example.org"
USER_DATA = "#!/bin/sh\necho the script ran on $(hostname)\nexit 7\n"

# One line of JSON for each task: what the run says beyond what people are shown.
TELL = """
import json, os
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_NEEDS_ENABLED = 2.0, "tell", True

    def tell(self, task, failed):
        result = getattr(task, "result", None) or task._result
        line = {"task": task.task_name, "failed": failed, "result": result}
        with open(os.environ["TELL"], "a") as out:
            out.write(json.dumps(line, default=str) + chr(10))

    def v2_runner_on_ok(self, result):
        self.tell(result, False)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.tell(result, True)
"""

PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  module_defaults:
    group/magnetar.compute.all: {endpoint: "{{ endpoint }}"}
  tasks:
    - name: image
      magnetar.compute.image: {name: tiny, filename: "{{ disk }}", state: "{{ wanted }}"}
      when: wanted == 'present'
    - name: flavor
      magnetar.compute.flavor: {name: tiny, vcpus: 1, ram: 128, disk: 1}
      when: wanted == 'present'
    - name: keypair
      magnetar.compute.keypair: {name: me, public_key: "{{ key }}"}
      when: wanted == 'present'
    - name: network
      magnetar.compute.network: {name: "{{ network }}", cidr: "{{ cidr }}"}
      when: wanted == 'present'
    - name: servers
      magnetar.compute.server:
        state: "{{ 'running' if wanted == 'present' else 'absent' }}"
        image: "{{ 'tiny' if wanted == 'present' else omit }}"
        flavor: "{{ 'tiny' if wanted == 'present' else omit }}"
        networks: "{{ [network] if wanted == 'present' else omit }}"
        key_name: "{{ 'me' if wanted == 'present' else omit }}"
        userdata: "{{ user_data if wanted == 'present' else omit }}"
        servers:
          - name: play-1
            metadata: {role: web server, note: "quotes \\" and \\u00e9"}
          - name: play-2
            metadata: {role: db}
    - name: absent network
      magnetar.compute.network: {name: "{{ network }}", state: absent}
      when: wanted == 'absent'
    - name: absent image
      magnetar.compute.image: {name: tiny, state: absent}
      when: wanted == 'absent'
    - name: absent flavor
      magnetar.compute.flavor: {name: tiny, state: absent}
      when: wanted == 'absent'
    - name: absent keypair
      magnetar.compute.keypair: {name: me, state: absent}
      when: wanted == 'absent'
    - name: info
      magnetar.compute.server_info:
"""
MAKES = ["image", "flavor", "keypair", "network", "servers"]
REMOVES = ["servers", "absent network", "absent image", "absent flavor", "absent keypair"]


class Play:
    """The playbook with its variables; `run` gives the results of its tasks by name."""

    def __init__(self, lab: LabAgent, folder: Path, disk: Path, direct: str) -> None:
        self.lab, self.folder, self.direct = lab, folder, direct
        self.network = f"net-{lab.mark}"
        (folder / "tell.py").write_text(TELL)
        (folder / "playbook.yml").write_text(PLAYBOOK)
        (folder / "ansible.cfg").write_text("[defaults]\nlocalhost_warning = false\n")
        self.vars = {
            "endpoint": lab.endpoint, "disk": str(disk), "key": KEY, "network": self.network, "cidr": lab.cidr,
            "user_data": USER_DATA, "magnetar_direct": direct, "ansible_python_interpreter": sys.executable,
        }  # fmt: skip

    def run(self, *options: str, wanted: str = "present") -> dict[str, dict[str, Any]]:
        told, given = self.folder / "told", self.folder / "vars.yml"
        told.unlink(missing_ok=True)
        given.write_text(yaml.safe_dump({**self.vars, "wanted": wanted}))
        environment = {
            **os.environ, "ANSIBLE_COLLECTIONS_PATH": str(CACHE), "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_CALLBACK_PLUGINS": str(self.folder), "ANSIBLE_CALLBACKS_ENABLED": "tell", "TELL": str(told),
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"), "ANSIBLE_REMOTE_TMP": str(self.folder / "tmp"),
        }  # fmt: skip
        done = subprocess.run(
            [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", self.folder / "playbook.yml",
             "-e", f"@{given}", *options],
            check=False, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        return {line["task"]: line["result"] for line in lines}


def changed(results: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, result in results.items() if result["changed"]]


def diffs(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: result["diff"] for name, result in results.items() if "diff" in result}


@pytest.fixture(scope="module")
def lab() -> Iterator[LabAgent]:
    with LabAgent() as made:
        yield made


def left_on_host(play: Play) -> dict[str, Any]:
    """All that could be left of a play: there should be nothing."""
    lab = play.lab
    files = [
        str(path)
        for name in ("servers", "images", "documents")
        for path in (lab.state / name).rglob("*")
        if path.is_file()
    ]
    bridges = [line for line in subprocess.run(["ip", "-o", "address"], check=True, text=True, stdout=subprocess.PIPE)
               .stdout.splitlines() if lab.subnet in line]  # fmt: skip
    found = {
        "domains": [domain.name() for domain in lab.domains()], "files": files, "bridges": bridges,
        "networks": [one.name() for one in lab.libvirt.listAllNetworks() if lab.mark in one.name()],
        "processes": lab.processes(), **lab.orphans(),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def check_guest(play: Play, name: str, shown: dict[str, Any]) -> None:
    """The guest says on its console what the playbook gave it, and the address that the host knows."""
    said = play.lab.up(name)
    assert f"hostname={name}" in said
    assert f"key={KEY}" in said
    assert f"uuid={shown['id']}" in said
    for key, value in shown["metadata"].items():
        assert f"meta {key}={value}" in said
    assert "user_data exit=7" in said
    assert f"the script ran on {name}" in play.lab.console(name)
    mac = shown["networks"][0]["mac"]
    nic = eventually(lambda: [m for m in play.lab.markers(name) if m.startswith(f"nic eth0 mac={mac} ip=")], "a lease")
    address = nic[0].partition(" ip=")[2]
    addresses = eventually(lambda: play.lab.show("server", name)["addresses"].get(play.network), "the address is known")
    assert [(one["addr"], one["mac"]) for one in addresses] == [(address, mac)]


@pytest.mark.parametrize("direct", ["auto", pytest.param("never", marks=pytest.mark.deep(shard="one host"))])
def test_playbook(lab: LabAgent, guest_image: dict[str, Path], tmp_path: Path, direct: str) -> None:
    """In the Ansible process, and as module processes: the same results. What guests say is looked at once."""
    play = Play(lab, tmp_path, guest_image["disk"], direct)
    predicted = play.run("--check", "--diff")
    assert changed(predicted) == MAKES
    assert not left_on_host(play)

    made = play.run("--diff")
    assert changed(made) == MAKES
    assert diffs(predicted) == diffs(made)
    assert [one["name"] for one in made["servers"]["results"]] == ["play-1", "play-2"]
    shown = {one["server"]["name"]: one["server"] for one in made["servers"]["results"]}
    assert {one["power_state"] for one in shown.values()} == {"running"}
    assert USER_DATA not in json.dumps(made["servers"])

    for options in ((), ("--check", "--diff")):
        again = play.run(*options)
        assert changed(again) == []
        told = [one for diff in diffs(again).values() for one in (diff if isinstance(diff, list) else [diff])]
        assert not [one for one in told if one["before"] != one["after"]]
    seen = {one["name"]: one for one in again["info"]["servers"]}
    assert {name: one["networks"] for name, one in seen.items()} == {
        name: one["networks"] for name, one in shown.items()
    }
    if direct == "auto":
        for name, server in shown.items():
            check_guest(play, name, server)
        assert changed(play.run("--check", wanted="absent")) == REMOVES

    assert changed(play.run(wanted="absent")) == REMOVES
    assert changed(play.run(wanted="absent")) == []
    assert not left_on_host(play)


# The playbooks of ./quickstart


def quickstart(lab: LabAgent, name: str, folder: Path, **variables: object) -> str:
    """What a playbook of the checkout says with this agent, and its status at the end."""
    words = [Path(sys.executable).parent / "ansible-playbook", CHECKOUT / "playbooks" / name]
    for key, value in variables.items():
        words += ["-e", f"{key}={value}"]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(CACHE), "MAGNETAR_ENDPOINT": lab.endpoint,
                   "ANSIBLE_LOCAL_TEMP": str(folder)}  # fmt: skip
    done = subprocess.run(words, check=False, env=environment, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    return f"{done.stdout}\nstatus {done.returncode}"


def test_quickstart_again_whatever_was_tried_in_between(guest_image: dict[str, Path], tmp_path: Path) -> None:
    """A server that somebody stopped runs again; one that somebody made is not lost unless that is said."""
    (tmp_path / "key.pub").write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBwIIyAUw3AJlDWG3n5qZLbcC3nJpWCPTzfWkqTzUDvx"
    )
    given: dict[str, object] = {"guest_disk": guest_image["disk"], "public_key_file": tmp_path / "key.pub"}
    with LabAgent() as lab:
        given |= {"network": f"net-{lab.mark}", "cidr": lab.cidr}
        said = quickstart(lab, "quickstart.yml", tmp_path, **given)
        assert said.endswith("status 0"), said
        lab.domain("quick-1").destroy()
        lab.becomes("quick-1", "off")
        said = quickstart(lab, "quickstart.yml", tmp_path, **given)
        assert "quick-1 is ACTIVE" in said, said
        assert said.endswith("status 0"), said

        lab.ensure("volume", "mine", {"size": 1})
        said = quickstart(lab, "quickstart_down.yml", tmp_path)
        assert "not of the quickstart: mine. Nothing was removed" in said, said
        assert said.endswith("status 2"), said
        assert len(lab.domains()) == 2
        said = quickstart(lab, "quickstart_down.yml", tmp_path, everything=True)
        assert said.endswith("status 0"), said
        assert not lab.domains()
        assert not [one for kind in ("server", "volume", "network", "image", "flavor", "keypair")
                    for one in lab.names(kind)]  # fmt: skip
