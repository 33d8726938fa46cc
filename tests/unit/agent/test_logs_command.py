# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar logs``: lines of the journal and of files, selected by level, request, server and time."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent import logs_command
from magnetar_agent.api.audit import JsonLines
from magnetar_agent.cli import main
from magnetar_control.web.json_log import JsonLog

SERVER = "6fd1d5b1-6c2e-4a1c-8d34-1c0b5f8c1a11"


def line(level: str, message: str, formatter: logging.Formatter | None = None, **fields: Any) -> str:
    """A line as the control plane writes it, or the agent (*formatter*)."""
    record = logging.makeLogRecord({"name": "magnetar", "levelname": level, "msg": message, **fields})
    return (formatter or JsonLog()).format(record)


LINES = (line("INFO", "serving"), line("WARNING", "slow", request_id="req-1"),
         line("ERROR", "failed", server=SERVER, request_id="req-2"),
         line("ERROR", f"server {SERVER} is gone", JsonLines()), line("ERROR", "host web1-old is away", JsonLines()),
         line("WARNING", "ensure server web1: failed", JsonLines(), key="web1", request_id="req-2"))


def entry(message: Any, priority: int = 6, **fields: Any) -> str:
    """A line of `journalctl --output=json`."""
    return json.dumps({"__REALTIME_TIMESTAMP": "1796000000000000", "PRIORITY": str(priority), "_HOSTNAME": "kvm1",
                       "_SYSTEMD_UNIT": "magnetar-agent.service", "MESSAGE": message, **fields})


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program journalctl that prints the file ``entries`` and writes its arguments to ``words``."""
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\ncat {tmp_path}/entries\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "entries").write_text("".join(f"{entry(text)}\n" for text in LINES))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """The lines that ``magnetar logs`` prints with these arguments."""
    assert main(["logs", *words]) == 0
    return [json.loads(text) for text in capsys.readouterr().out.splitlines()]


def messages(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    return [found["message"] for found in shown(capsys, *words)]


@pytest.mark.usefixtures("journal")
@pytest.mark.parametrize(("words", "expected"), [
    ((), ["slow", "failed", f"server {SERVER} is gone", "host web1-old is away", "ensure server web1: failed"]),
    (("--level", "error"), ["failed", f"server {SERVER} is gone", "host web1-old is away"]),
    (("--level", "info", "--number", "1"), ["ensure server web1: failed"]),
    (("--level", "debug", "--request", "req-1"), ["slow"]),
    (("--request", "req-2"), ["failed", "ensure server web1: failed"]),
    (("--server", SERVER), ["failed", f"server {SERVER} is gone"]),
    (("--server", "web1"), ["ensure server web1: failed"]),
    (("--level", "critical"), [])])
def test_lines_are_selected(words: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert messages(capsys, *words) == expected


def test_the_journal_is_asked_for_units_and_time(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "--server", SERVER)[0] == {
        **json.loads(LINES[2]), "unit": "magnetar-agent", "machine": "kvm1"}
    words = (journal / "words").read_text().splitlines()
    assert {"--output=json", "--unit=magnetar-agent", "--unit=magnetar-api", "--unit=magnetar-conductor"} <= {*words}
    assert not [word for word in words if "since" in word]
    shown(capsys, "--service", "api", "--since", "1970-01-01T00:01:00+00:00")
    words = (journal / "words").read_text().splitlines()
    assert words[-2:] == ["--unit=magnetar-api", "--since=@60.000000"]


def test_text_of_systemd_and_of_a_failed_start(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (journal / "entries").write_text("\n".join((
        entry("Started magnetar-api.service", 6, UNIT="magnetar-api.service", _SYSTEMD_UNIT="init.scope"),
        entry("magnetar-api.service: Failed with result 'exit-code'.", 4, UNIT="magnetar-api.service"),
        entry("magnetar: There is no cell 'c'; see `magnetar cell list`."), entry(None), entry([255, 104, 105], 3),
        entry("== Threads ==", 6))))
    assert [(found["level"], found["unit"], found["message"][:12]) for found in shown(capsys)] == [
        ("warning", "magnetar-api", "magnetar-api"), ("error", "magnetar-agent", "magnetar: Th"),
        ("error", "magnetar-agent", "\ufffdhi")]
    assert shown(capsys)[0]["time"] == "2026-11-30T00:53:20.000+00:00"


def test_a_file_or_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                             monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join((*LINES, "==== Report of magnetar agent ====", "[1, 2]", "magnetar: no settings",
                              entry(LINES[1]))))
    expected = ["failed", f"server {SERVER} is gone", "host web1-old is away", "magnetar: no settings"]
    assert messages(capsys, "--file", str(log), "--level", "error") == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(log.read_text()))
    assert messages(capsys, "--file", "-", "--level", "error") == expected


def test_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, now = tmp_path / "log", datetime.now(UTC)
    log.write_text("".join(json.dumps({"time": moment, "level": "error", "message": text}) + "\n" for text, moment in (
        ("old", (now - timedelta(hours=3)).isoformat()),
        ("of the agent", (now - timedelta(hours=1)).isoformat(timespec="milliseconds")),
        ("of the API", (now - timedelta(hours=1)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")))))
    recent = ["of the agent", "of the API"]
    assert messages(capsys, "--file", str(log), "--since", "2h") == recent
    assert messages(capsys, "--file", str(log), "--since", (now - timedelta(hours=2)).isoformat()) == recent
    assert messages(capsys, "--file", str(log), "--since", "1d") == ["old", *recent]


@pytest.mark.parametrize(("words", "problem"), [
    (("--since", "yesterday"), "--since: must be a time such as"), (("--number", "-1"), "--number: must be 0 or more"),
    (("--file", "/nowhere/log"), "--file: cannot be read: No such file"),
    (("--file", "-", "--service", "api"), "--service: selects units of the journal")])
def test_wrong_arguments(words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", *words]) == 1
    assert problem in capsys.readouterr().err


def test_a_machine_without_a_journal(journal: Path, capsys: pytest.CaptureFixture[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    (journal / "journalctl").write_text("#!/bin/sh\necho Failed to open the journal >&2\nexit 1\n")
    assert main(["logs"]) == 1
    assert "The journal cannot be read (Failed to open the journal). Run it as root" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(journal / "none"))
    assert main(["logs"]) == 1
    assert "has no journalctl. Give the log file of a service: --file FILE" in capsys.readouterr().err


def test_a_journal_with_many_complaints(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More of them than a pipe holds, before the entries."""
    complain = "#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x >&2\n"
    (journal / "journalctl").write_text(f"{complain}cat {journal}/entries\n")
    assert shown(capsys, "--level", "debug")
    (journal / "journalctl").write_text(f"{complain}exit 1\n")
    assert main(["logs"]) == 1
    error = capsys.readouterr().err
    assert "The journal cannot be read (xxx" in error and len(error) < 3000


@pytest.mark.parametrize(("uid", "hint"), [(0, ""), (1000, " The journal shows all lines only to root and")])
def test_no_line(journal: Path, uid: int, hint: str, capsys: pytest.CaptureFixture[str],
                 monkeypatch: pytest.MonkeyPatch) -> None:
    (journal / "entries").write_text("")
    monkeypatch.setattr(logs_command.os, "geteuid", lambda: uid)
    assert main(["logs"]) == 0
    assert capsys.readouterr().err.startswith(f"No line is selected.{hint}")
