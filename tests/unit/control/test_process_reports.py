# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of the control plane's processes on SIGUSR2, without secrets; the processes go on."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar_control import cli
from tests.support.ports import free_port
from tests.support.reports import ask_report, ask_report_file, magnetar_process
from tests.support.waiting import eventually

#: A secret in settings.
SECRET = "secret-word"


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Write the settings file of a service, with *more* settings; return its path, and the URL at which it says that it
    serves: the API's own one, or that of a *conductor*."""
    def write(conductor: bool = False, **more: object) -> tuple[str, str]:
        path, listen, health = tmp_path / "control.yml", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        path.write_text(json.dumps({
            "state_dir": str(tmp_path / "state"), "listen": listen, "health_listen": health,
            "notification_urls": {"billing": f"https://127.0.0.1:1/{SECRET}"},
            "vendordata_dynamic_targets": [f"names@https://127.0.0.1:1/{SECRET}?token={SECRET}"], **more}))
        return str(path), f"http://{health if conductor else listen}/healthz"
    return write


def answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.status == 200


@pytest.mark.parametrize("command", ["serve", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "api", "conductor"))])
def test_a_service(settings: Callable[..., tuple[str, str]], tmp_path: Path, command: str) -> None:
    path, health = settings(command == "conductor")
    if command == "conductor":
        assert cli.main(["db", "upgrade", "--config", path]) == 0
    log = tmp_path / "log"
    with magnetar_process(log, command, "--config", path) as process:
        eventually(lambda: answers(health, process), passing=(OSError,))
        sections = ask_report(process.pid, command, log)
        assert list(sections) == ["Process", "Threads", "Tasks", "Settings", "Databases", "Actions"]
        assert f"process: {command}, id {process.pid}," in sections["Process"]
        assert "MainThread" in sections["Threads"]
        assert command == "conductor" or "ApiServer.main_loop" in sections["Tasks"]
        assert f"state_dir: {tmp_path}/state\n" in sections["Settings"]
        assert "notification_urls: {'billing': 'https://127.0.0.1:1/...'}\n" in sections["Settings"]
        assert "api: sqlite" in sections["Databases"] and "  reads: Pool size: 16" in sections["Databases"]
        assert answers(health, process)
    passwords = re.findall(r"password: (\S+)", (tmp_path / "state/clouds.yaml").read_text()) \
        if command != "conductor" else []
    assert not [word for word in (SECRET, *passwords) if word in log.read_text()]


@pytest.mark.slow
def test_api_processes(settings: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """The parent and each API process write a report of their own, to a folder."""
    folder = tmp_path / "reports"
    path, health = settings(api_workers=2, report_dir=str(folder))
    log = tmp_path / "log"
    with magnetar_process(log, "api", "--config", path) as process:
        eventually(lambda: answers(health, process), passing=(OSError,))
        _file, parent = ask_report_file(process.pid, "api", folder)
        pids = [int(pid) for pid in re.findall(r"api worker \d: id (\d+)", parent["API processes"])]
        assert len(pids) == 2 and "Settings" in parent
        for number, pid in enumerate(pids, 1):
            name = f"api-worker-{number}"
            eventually(lambda pid=pid, name=name: "ApiServer.main_loop" in ask_report_file(
                pid, name, folder)[1]["Tasks"])
            file, sections = ask_report_file(pid, name, folder)
            assert file.stat().st_mode & 0o777 == 0o600
            assert f"process: api worker {number}, id {pid}, parent {process.pid}" in sections["Process"]
            assert f"report_dir: {folder}\n" in sections["Settings"] and SECRET not in file.read_text()
        assert answers(health, process)
