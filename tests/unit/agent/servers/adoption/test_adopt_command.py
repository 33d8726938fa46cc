# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar adopt`` against an agent on a fake host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar_agent.cli import main
from tests.modules.conftest import Running
from tests.support.agent import foreign
from tests.support.waiting import eventually

UUID = "5f0a2c1e-9d3b-4c55-8f51-0e6d1b7a9c20"
Adopt = Callable[..., tuple[int, str, str]]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    agent = Running(tmp_path)
    agent.hypervisor.network_outside("default")
    for number, name in enumerate(("old1", "old2")):
        disk = foreign.file_disk(foreign.overlay(tmp_path, f"{name}.qcow2"))
        nic = foreign.network_nic(mac=f"52:54:00:6b:3c:0{number}")
        agent.hypervisor.defined_outside(foreign.foreign_xml(name, disk + nic, f"{UUID[:-1]}{number}"), "running")
    agent.hypervisor.snapshot_outside(f"{UUID[:-1]}1", "before")
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def adopt(running: Running, capsys: pytest.CaptureFixture[str]) -> Adopt:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["adopt", "--socket", str(running.socket), *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    eventually(lambda: run()[0] == 0, "the agent answers")
    return run


def test_list_look_adopt_release(adopt: Adopt, running: Running) -> None:
    before = running.hypervisor.xml(UUID)
    _status, listed, _error = adopt()
    assert [line.split()[:3] for line in listed.splitlines()[1:3]] == [
        ["old1", "adoptable", "running"], ["old2", "hindered", "running"]]
    status, told, _error = adopt("old1")
    assert status == 0 and "disk vda: " in told and "magnetar adopt old1 --yes" in told
    assert running.hypervisor.xml(UUID) == before
    status, told, _error = adopt("old2", "old1", "--yes")
    assert status == 1 and told.startswith("old1: record server old1") and running.hypervisor.domain(UUID).adopted
    assert adopt("old1", "--yes")[:2] == (0, "old1: no change\n")
    assert json.loads(adopt("--json")[1])[0]["status"] == "adopted"
    assert adopt("old1", "--release")[1].startswith("old1: would remove") and running.hypervisor.domain(UUID).adopted
    assert adopt("old1", "--release", "--yes")[0] == 0 and running.hypervisor.xml(UUID) == before


def test_all_that_nothing_hinders(adopt: Adopt, running: Running) -> None:
    assert adopt("--all")[0] == 0 and not running.hypervisor.domain(UUID).owned
    assert adopt("--all", "--yes")[0] == 0
    assert running.hypervisor.domain(UUID).adopted


@pytest.mark.parametrize(("words", "said"), [
    (["--yes"], "name the domains"), (["--release"], "name the domains"), (["none"], "There is no libvirt domain"),
    (["--all", "old1"], "--all"), (["--server-name", "x"], "--server-name"),
    (["old1", "--server-name", " x"], "server_name"), (["old2", "--yes"], "snapshots inside of its disks")], ids=str)
def test_bad_input(adopt: Adopt, words: list[str], said: str) -> None:
    status, _told, error = adopt(*words)
    assert status == 1 and said in error
