# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks of `./quickstart`: on an agent, and what `--hosts` ends with on hosts that the role has installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent import CACHE, CHECKOUT, LabAgent

if TYPE_CHECKING:
    from bare import Site

pytestmark = pytest.mark.lab

REMOVE = """
- hosts: magnetar
  become: true
  gather_facts: false
  tasks:
    - magnetar.compute.server: {name: wanderer, state: absent}
    - magnetar.compute.image: {name: quickstart, state: absent}
"""


def test_a_server_goes_from_one_host_to_another(three_hosts: Site) -> None:
    words = ("magnetar.compute.quickstart_hosts", "-e", f"guest_disk={three_hosts.variables['disk']}")
    try:
        said = three_hosts.play(*words)
        assert "wanderer went from bare1 to bare2 while it ran." in said
        numbers = [int(number) for number in re.findall(r"I have counted to (\d+)", said)]
        assert numbers[-1] > numbers[0]
        assert re.search(r"^bare1 +: ok=\d+ +changed=0 ", three_hosts.play(*words), re.MULTILINE)
    finally:
        path = three_hosts.folder / "remove.yml"
        path.write_text(REMOVE)
        three_hosts.play(path)


def play(lab: LabAgent, name: str, folder: Path, **variables: object) -> str:
    """What a playbook of the checkout says with this agent, and its status at the end."""
    words = [Path(sys.executable).parent / "ansible-playbook", CHECKOUT / "playbooks" / name]
    for key, value in variables.items():
        words += ["-e", f"{key}={value}"]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(CACHE), "MAGNETAR_ENDPOINT": lab.endpoint,
                   "ANSIBLE_LOCAL_TEMP": str(folder)}  # fmt: skip
    done = subprocess.run(words, check=False, env=environment, cwd=folder, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    return f"{done.stdout}\nstatus {done.returncode}"


def test_it_may_be_run_again_whatever_was_tried_in_between(guest_image: dict[str, Path], tmp_path: Path) -> None:
    """A server that somebody stopped runs again; one that somebody made is not lost unless that is said."""
    (tmp_path / "key.pub").write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBwIIyAUw3AJlDWG3n5qZLbcC3nJpWCPTzfWkqTzUDvx"
    )
    given: dict[str, object] = {"guest_disk": guest_image["disk"], "public_key_file": tmp_path / "key.pub"}
    with LabAgent() as lab:
        given |= {"network": f"net-{lab.mark}", "cidr": lab.cidr}
        said = play(lab, "quickstart.yml", tmp_path, **given)
        assert said.endswith("status 0"), said
        lab.domain("quick-1").destroy()
        lab.becomes("quick-1", "off")
        said = play(lab, "quickstart.yml", tmp_path, **given)
        assert "quick-1 is ACTIVE" in said, said
        assert said.endswith("status 0"), said

        lab.ensure("volume", "mine", {"size": 1})
        said = play(lab, "quickstart_down.yml", tmp_path)
        assert "not of the quickstart: mine. Nothing was removed" in said, said
        assert said.endswith("status 2"), said
        assert len(lab.domains()) == 2
        said = play(lab, "quickstart_down.yml", tmp_path, everything=True)
        assert said.endswith("status 0"), said
        assert not lab.domains()
        assert not [one for kind in ("server", "volume", "network", "image", "flavor", "keypair")
                    for one in lab.names(kind)]  # fmt: skip
