# SPDX-License-Identifier: GPL-3.0-or-later
"""The report on SIGUSR2: it comes while threads, loops and sections hang, and has no values of variables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.reports import ask_report, sections_of
from tests.support.waiting import eventually

#: A process whose main thread and event loop hang in calls of C, and a program that it runs.
HANGS = """
import asyncio, ctypes, os, subprocess, sys, threading
from pathlib import Path
from magnetar_core.daemon.report import start_process_report

report = start_process_report("trial process")
if sys.argv[1]:
    report.folder = lambda: Path(sys.argv[1])
if sys.argv[1] == "hangs":
    class StuckFolder(type(Path())):
        def mkdir(self, *args, **more):
            lock.acquire()

    report.folder = lambda: StuckFolder("/nowhere")
lock = threading.Lock()
lock.acquire()
os.umask(0)
report.add_section("Good", lambda: ["a line", "another"])
report.add_section("Stuck", lambda: lock.acquire() and [])
report.add_section("Broken", lambda: [str(1 / 0)])
report.add_section("Empty", lambda: [])
report.add_section("Gone", lambda: [])
report.remove_section("Gone")

async def waits(password):
    await asyncio.Event().wait()

async def serve_forever():
    report.add_loop(asyncio.get_running_loop())
    tasks = [asyncio.create_task(waits("secret-word"), name=f"waiter {number}") for number in range(30)]
    await asyncio.sleep(0.1)
    print("ready", subprocess.Popen(["sleep", "60"]).pid, flush=True)
    ctypes.CDLL(None).sleep(600)

threading.Thread(target=asyncio.run, args=(serve_forever(),), name="api loop", daemon=True).start()

def hang_in_c(token):
    ctypes.CDLL(None).sleep(600)

hang_in_c("secret-word")
"""


@pytest.fixture
def hanging(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A process that hangs, its stderr, and the id of the program that it runs."""
    log = tmp_path / "log"
    with log.open("w") as stream, subprocess.Popen(
            [sys.executable, "-c", HANGS, getattr(request, "param", "").format(tmp_path)], stderr=stream,
            stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = int(process.stdout.readline().split()[1])
        try:
            yield process, log, child
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()


def test_a_process_that_hangs(hanging: tuple[subprocess.Popen[str], Path, int]) -> None:
    process, log, child = hanging
    sections = ask_report(process.pid, "trial process", log)
    assert list(sections) == ["Process", "Threads", "Tasks", "Good", "Stuck", "Broken", "Empty"]
    assert f"id {process.pid}," in sections["Process"] and "package: magnetar " in sections["Process"]
    assert "1 thread: MainThread" in sections["Threads"] and "hang_in_c" in sections["Threads"]
    assert "1 thread: api loop" in sections["Threads"] and "serve_forever" in sections["Threads"]
    assert "30 tasks: waiter 0, waiter 1, waiter 10" in sections["Tasks"] and " and 10 more\n" in sections["Tasks"]
    assert "waits\n" in sections["Tasks"] and "Event.wait\n  waits for: Future" in sections["Tasks"]
    assert sections["Good"] == "a line\nanother\n\n" and sections["Empty"].strip() == "none"
    assert sections["Stuck"].strip() == "did not answer within 2 s"
    assert sections["Broken"].strip() == "failed: ZeroDivisionError"
    assert "secret-word" not in "".join(text for title, text in sections.items() if title != "Process")
    ask_report(process.pid, "trial process", log)  # each signal gets one
    os.kill(child, signal.SIGUSR2)  # as of `systemctl kill`, which reaches all processes of a unit
    assert Path(f"/proc/{child}/cmdline").read_text().startswith("sleep")


@pytest.mark.parametrize("hanging", ["{}/reports"], indirect=True)
def test_a_report_in_a_folder(hanging: tuple[subprocess.Popen[str], Path, int], tmp_path: Path) -> None:
    process, log, _child = hanging
    for count in (1, 2):
        process.send_signal(signal.SIGUSR2)
        eventually(lambda count=count: log.read_text().count('"level": "info"') == count)
    folder = tmp_path / "reports"
    assert folder.stat().st_mode & 0o777 == 0o700
    files = sorted(folder.glob(f"magnetar-trial-process_*Z_{process.pid}.txt"))
    assert len(files) == 2 and all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert all(f"the report of this process is in {file}" in log.read_text() for file in files)
    assert sections_of(files[0].read_text())["Good"].startswith("a line")
    assert "== Threads ==" not in log.read_text()


@pytest.mark.parametrize("hanging", ["{}/none/none"], indirect=True)
def test_a_folder_that_cannot_be_created(hanging: tuple[subprocess.Popen[str], Path, int]) -> None:
    process, log, _child = hanging
    assert "MainThread" in ask_report(process.pid, "trial process", log)["Threads"]
    assert "cannot be created: No such file or directory" in log.read_text()


@pytest.mark.parametrize("hanging", ["hangs"], indirect=True)
def test_a_folder_whose_disk_hangs(hanging: tuple[subprocess.Popen[str], Path, int]) -> None:
    process, log, _child = hanging
    for _time in range(2):  # the thread that waits for signals does not hang
        sections = ask_report(process.pid, "trial process", log)
        assert "MainThread" in sections["Threads"] and sections["Good"] == "a line\nanother\n\n"
        assert "report output" not in sections["Threads"]
    assert log.read_text().count("the report follows, because its folder does not answer within 2 s") == 2


def test_sigabrt_writes_the_stacks(hanging: tuple[subprocess.Popen[str], Path, int]) -> None:
    """For a process whose code keeps the interpreter lock."""
    process, log, _child = hanging
    process.send_signal(signal.SIGABRT)
    assert process.wait(120) == -signal.SIGABRT
    assert "in hang_in_c" in log.read_text() and "in serve_forever" in log.read_text()
