# SPDX-License-Identifier: GPL-3.0-or-later
"""What the shipped playbooks say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.support.roles.agent import play

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("state", "said"), [("absent", "web1: gone"), ("running", "web1: ACTIVE {}")])
def test_the_summary_of_servers(tmp_path, state, said):
    """A removed server is shown as it was, which is not what it is now."""
    (book,) = yaml.safe_load((ROOT / "playbooks/servers.yml").read_text())
    made = {"results": [{"item": "web1", "server": {"status": "ACTIVE", "addresses": {}}}]}
    summary = [task for task in book["tasks"] if task["name"] == "Summary"]
    good, told = play(tmp_path, summary, server_state=state, made=made)
    assert good and f'"msg": "{said}"' in told, told


@pytest.mark.parametrize("network", [[], ["net1"]])
def test_a_site_may_have_no_network_of_its_own(tmp_path, network):
    """Every variable that the role names is looked at before it runs, whether it is used or not."""
    groups = {"magnetar_api": ["localhost"], "magnetar_cells": ["localhost"], "magnetar_network": network}
    hosts = {name: {"hosts": {host: {"network_northbound": True} for host in found}}
             for name, found in groups.items() if found}
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"all": {"children": hosts}}))
    good, told = play(tmp_path, [
        {"ansible.builtin.include_role": {
            "name": str(ROOT / "roles/common"), "tasks_from": "topology", "public": True}},
        {"ansible.builtin.debug": {"msg": "northbound <{{ common_northbound }}>"}}],
        "-i", str(inventory), common_without_passwords=True)
    assert good and f"northbound <{'ssl:net1:6641' if network else ''}>" in told, told


def test_the_quickstart_says_why_guests_have_no_address(tmp_path):
    (book,) = yaml.safe_load((ROOT / "playbooks/quickstart.yml").read_text())
    (wait,) = [task for task in book["tasks"] if "rescue" in task]
    wait["block"] = [{"ansible.builtin.fail": {"msg": "Unknown error"}}]
    wait["rescue"] = wait["rescue"][1:]  # without an agent
    consoles = {"results": [{"item": {"name": "quick-1"}, "console": "udhcpc: no lease, failing"}]}
    good, told = play(tmp_path, [wait], consoles=consoles, network="lan")
    assert not good and "quick-1 got no address within three minutes" in told, told
    assert "UDP port 67" in told and "on the network lan" in told and "udhcpc: no lease, failing" in told, told
    good, told = play(tmp_path, [wait], consoles={"results": []}, network="lan")
    assert not good and "Unknown error" in told.partition("and what to do]")[2], told
