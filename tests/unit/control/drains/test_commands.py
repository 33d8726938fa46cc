# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar host drain``, ``undrain`` and ``drains`` on the settings of a cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from magnetar_control import cli
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.inside import Inside

from .draining import Draining

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=2, host_down_after=600.0) as made:
        flavors(made)
        yield made


@pytest.fixture
def run(cloud: Inside, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``magnetar`` on the cloud's settings; returns status, output and errors."""
    path = cloud.folder / "command.yml"
    path.write_text(json.dumps({**cloud.settings, "hosts": cloud.hosts, "state_dir": str(cloud.folder / "control")}))

    def command(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = cli.main([*words, "--config", str(path)])
        return status, *capsys.readouterr()
    return command


def test_a_host_is_drained_and_enabled(cloud: Inside, run: Command) -> None:
    admin = Draining(cloud)
    moves, locked = admin.boot("kvm1", name="moves"), admin.boot("kvm1", name="locked")
    assert cloud.admin.act(locked, "lock").status == 202
    status, said, _errors = run("host", "drain", "kvm1", "--dry-run")
    reason = "stays: An administrator has locked it. Unlock it first."
    assert (status, sorted(said.splitlines())) == (
        0, sorted([f"moves\t{moves}\tlive to kvm2", f"locked\t{locked}\t{reason}"]))
    assert run("host", "drains")[:2] == (0, "")
    status, said, errors = run("host", "drain", "kvm1", "--wait", "--reason", "new memory")
    assert (status, said) == (1, f"kvm1: 1 moved, 0 moving, 0 waiting, 1 stays\nlocked\t{locked}\t{reason}\n"), errors
    assert row(cloud, moves).host == "kvm2" and admin.shown("kvm1")["reason"] == "new memory"
    [shown] = json.loads(run("host", "drains", "kvm1", "--json")[1])
    assert (shown["host"], shown["state"]) == ("kvm1", "drained")
    assert {server["name"]: (server["state"], server["to"]) for server in shown["servers"]} == {
        "moves": ("moved", "kvm2"), "locked": ("stays", None)}
    assert "kvm1: 1 moved, 0 moving, 0 waiting, 1 stays (drained)" in run("host", "drains")[1]
    assert run("host", "undrain", "kvm1")[0] == 0
    eventually(lambda: admin.shown("kvm1")["drain"] is None, pause=0.2)
    assert admin.shown("kvm1")["state"] == "enabled"


def test_an_unknown_host_is_refused(run: Command) -> None:
    for words in (("drain", "kvm9"), ("drain", "kvm9", "--dry-run"), ("undrain", "kvm9"), ("drains", "kvm9")):
        status, said, errors = run("host", *words)
        assert (status, said) == (1, "") and "kvm9" in errors, words
