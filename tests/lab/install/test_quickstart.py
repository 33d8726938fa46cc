# SPDX-License-Identifier: GPL-3.0-or-later
"""What `./quickstart --hosts` ends with, on hosts that the role has installed. Its others are in test_playbooks.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.lab.bare import Site

pytestmark = pytest.mark.lab

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "galaxy.yml").exists())
#: What the tutorial says that the playbook prints.
(SAID,) = re.findall(r"^wanderer went .*$", (ROOT / "docs/start/live-migration.md").read_text(), re.MULTILINE)

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
        assert SAID.replace("kvm", "bare") in said
        numbers = [int(number) for number in re.findall(r"I have counted to (\d+)", said)]
        assert numbers[-1] > numbers[0]
        assert re.search(r"^bare1 +: ok=\d+ +changed=0 ", three_hosts.play(*words), re.MULTILINE)
    finally:
        path = three_hosts.folder / "remove.yml"
        path.write_text(REMOVE)
        three_hosts.play(path)
