# SPDX-License-Identifier: GPL-3.0-or-later
"""The actions of a server, and the steps that follow from them: cases in tests/cases/plans/server_of_cloud.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_control.api.v1.servers import server_plan
from magnetar_core.errors import MagnetarError

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases/plans/server_of_cloud.yml").read_text())
BASE: dict[str, Any] = {
    "name": "web1", "description": "", "power": "running", "config_drive": True, "rescue": None, "key_name": None,
    "flavor": {"name": "s", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}, "user_data": None,
    "networks": [{"network": "lan", "mac": "52:54:00:00:00:01", "model": "virtio", "_id": "a", "_port": "p"}],
    "image": {"id": "i", "name": "cirros"}, "metadata": {}, "tags": [], "block_device_mapping": [],
}
WANT: dict[str, Any] = {**BASE, "_flavor": "1", "_assumed": False}
HAVE: dict[str, Any] = {**BASE, "_vm_state": "active", "_host": "kvm1", "_disks": {"disk": 1, "ephemeral": 0},
                        "volumes_attached": []}


def verbs(found: Any) -> list[str]:
    return [step.verb for step in found]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case: dict[str, Any]) -> None:
    want, have = {**WANT, **case["want"]}, {**HAVE, **case["have"]}
    if "refused" in case:
        with pytest.raises(MagnetarError, match=case["refused"]):
            list(server_plan.plan_actions(want, have))
        return
    actions = list(server_plan.plan_actions(want, have))
    assert [action.key for action in actions] == case["actions"]
    assert verbs(server_plan.steps_of_actions(actions, want, have)) == case["steps"]


@pytest.mark.parametrize(("want", "steps"), [
    ({}, ["disks", "define", "drive", "start"]),
    ({"config_drive": False, "power": "off"}, ["disks", "define"]),
    ({"power": "paused"}, ["disks", "define", "drive", "start", "pause"]),
    ({"power": "shelved"}, ["disks", "define", "drive", "start", "shelve"]),
    ({"block_device_mapping": [{"source_type": "volume"}]}, ["volumes", "disks", "define", "drive", "start"]),
    ({"block_device_mapping": [{"source_type": "image", "tag": "root"}]}, ["disks", "define", "drive", "start"])])
def test_making(want: dict[str, Any], steps: list[str]) -> None:
    assert verbs(server_plan.creation_steps({**WANT, **want})) == steps


@pytest.mark.parametrize(("keys", "have", "steps"), [
    (["os-stop"], {"power": "off"}, ["stop"]),
    (["os-start", "pause"], {"power": "paused"}, ["start", "pause"]),
    (["resume"], {}, ["start"]),
    (["shelve"], {"power": "shelved"}, ["shelve"]),
    (["unshelve", "os-stop"], {"power": "off"}, ["unshelve", "stop"]),
    (["resize"], {}, ["stop", "define", "drive", "start"]),
    (["resize"], {"power": "off"}, ["define", "drive"]),
    (["rebuild", "os-stop"], {"power": "off"}, [
        "stop", "wipe", "disks", "define", "drive", "rebuilt", "start", "stop"]),
    (["rescue"], {"rescue": {}}, ["stop", "rescue", "define", "start"]),
    (["unrescue"], {}, ["stop", "define", "unrescue", "start"]),
    (["os-migrateLive"], {}, ["migrate"]), (["reboot-hard"], {}, ["start"])])
def test_what_was_done_is_told_again(keys: list[str], have: dict[str, Any], steps: list[str]) -> None:
    assert verbs(server_plan.steps_before(keys, {**HAVE, **have})) == steps
