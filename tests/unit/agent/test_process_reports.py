# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of the agent and of the simulator on SIGUSR2; the processes go on."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.agent.serving import Client, Unix
from tests.support.reports import ask_report, ask_report_file, magnetar_process
from tests.support.waiting import eventually


def test_an_agent(tmp_path: Path) -> None:
    path, log, config = tmp_path / "agent.sock", tmp_path / "log", tmp_path / "agent.yml"
    folder = tmp_path / "reports"
    config.write_text(f"state_dir: {tmp_path}/state\nsocket: {path}\nreport_dir: {folder}\n")
    with magnetar_process(log, "agent", "--fake", "--config", str(config)) as process:
        eventually(lambda: '"message": "serving"' in log.read_text())
        assert Client(Unix(path)).call("PUT", "/v1/flavor/f", {"vcpus": 1, "ram": 64})[0] == 200
        Client(Unix(path)).call("PUT", "/v1/image/i", {"source": {"upload": True}, "disk_format": "raw"})
        uploader = Unix(path)
        uploader.putrequest("PUT", "/v1/image/i/data")
        uploader.putheader("content-length", "512")
        uploader.endheaders(b"\0" * 256)  # an operation that goes on as long as its client likes
        eventually(lambda: Client(Unix(path)).call("GET", "/v1/operations?status=running")[1]["operations"])
        file, sections = ask_report_file(process.pid, "agent", folder)
        assert file.stat().st_mode & 0o777 == 0o600
        assert list(sections) == ["Process", "Threads", "Tasks", "Settings", "Operations", "Resources"]
        assert f"id {process.pid}," in sections["Process"] and "MainThread" in sections["Threads"]
        assert "_serve" in sections["Tasks"] and f"state_dir: {tmp_path}/state\n" in sections["Settings"]
        assert " image i, since " in sections["Operations"]
        assert sections["Resources"].startswith("flavor: 1\nimage: 1\n")
        uploader.send(b"\0" * 256)
        assert uploader.getresponse().status == 200
        assert ask_report_file(process.pid, "agent", folder)[1]["Operations"].strip() == "none"


def test_a_simulator(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ("agent", "--fake", "--hosts", "10", "--state-dir", str(tmp_path / "state"))
    with magnetar_process(log, *words) as process:
        eventually(lambda: '"message": "simulating"' in log.read_text())
        sections = ask_report(process.pid, "simulator", log)
        assert sections["Hosts"].startswith("hosts: 10\nconditions: {'up': 10,")
        assert f"state_dir: {tmp_path}/state\n" in sections["Settings"]
        assert "serve_simulation" in sections["Tasks"]
        for number, dead in ((signal.SIGUSR1, 1), (signal.SIGRTMIN, 0)):
            process.send_signal(number)
            eventually(lambda dead=dead: f"'dead': {dead}}}" in ask_report(process.pid, "simulator", log)["Hosts"])
