# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar export`` against an agent on a fake host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar_agent.cli import main
from magnetar_core.http.client import Client
from tests.modules.conftest import Running

Export = Callable[..., tuple[int, str, str]]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    agent = Running(tmp_path)
    agent.start()
    with Client(agent.endpoint) as client:
        client.ensure("server", "web1", {"name": "web1", "flavor": {"vcpus": 1, "ram": 64, "disk": 1}, "image": None,
                                         "power": "off"})
    yield agent
    agent.stop()


@pytest.fixture
def export(running: Running, capsys: pytest.CaptureFixture[str]) -> Export:
    def run(*words: str) -> tuple[int, str, str]:
        status = main(["export", "--socket", str(running.socket), *words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_check_export_again(export: Export, running: Running) -> None:
    folder = running.folder / "exports/moved"
    assert export("web1", str(folder), "--check")[:2] == (
        0, f"moved: would record server_export moved; export the server to {folder}\n")
    assert not folder.exists()
    status, told, _error = export("web1", str(folder))
    assert status == 0 and f"{folder} has 5 files" in told and (folder / "README.txt").exists()
    assert export("web1", str(folder))[1].startswith("moved: no change\n")
    assert json.loads(export("web1", "--json")[1])["resource"]["folder"] == str(running.folder / "exports/web1")


def test_what_hinders_is_said(export: Export, running: Running) -> None:
    with Client(running.endpoint) as client:
        client.ensure("server", "web1", {"power": "running"})
    status, _told, error = export("web1")
    assert status == 1 and error.startswith("magnetar: Server 'web1' is running") and "Stop it" in error
    assert export("nobody")[0] == 1 and not (running.folder / "exports").exists()
