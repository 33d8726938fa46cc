# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a server: cases in tests/cases/plans/server.yml, and that every pair of power states has a way."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_core.errors import MagnetarError
from magnetar_core.power import WANTED
from magnetar_core.server_plan import converged_state, plan_server

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/plans/server.yml").read_text())
BASE: dict[str, Any] = {
    "name": "web1", "description": "", "power": "running", "config_drive": True,
    "flavor": {"vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0},
    "networks": [{"network": "lan", "mac": "52:54:00:00:00:01", "model": "virtio"}],
}
SEEN: dict[str, Any] = {"todo": (), "lost": (), "root_bytes": 2**30}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case: dict[str, Any]) -> None:
    want = None if case["want"] is None else {**BASE, **case["want"]}
    have = None if case["have"] is None else {**BASE, **SEEN, **case["have"]}
    if "refused" in case:
        with pytest.raises(MagnetarError, match=case["refused"]):
            list(plan_server(want, have))
    else:
        assert [step.verb for step in plan_server(want, have)] == case["steps"]


@pytest.mark.parametrize(("seen", "wanted"), list(itertools.product((*WANTED, "crashed", "missing"), WANTED)))
def test_every_power_state_is_reached(seen: str, wanted: str) -> None:
    verbs = [step.verb for step in plan_server({**BASE, "power": wanted}, {**BASE, **SEEN, "power": seen})]
    effect = {"start": "running", "start_paused": "paused", "stop": "off", "pause": "paused", "resume": "running",
              "save": "suspended", "destroy": "off", "define": "off"}
    state = "off" if (seen, wanted) == ("crashed", "off") else seen
    for verb in verbs:
        state = effect[verb]
    assert state == wanted


@pytest.mark.parametrize("case", [case for case in CASES if case["want"] is not None], ids=lambda case: case["name"])
def test_what_is_as_wanted_needs_no_step(case: dict[str, Any]) -> None:
    want = {**BASE, **case["want"]}
    assert list(plan_server(want, converged_state(want))) == []
