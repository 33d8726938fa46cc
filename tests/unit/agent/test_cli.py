# SPDX-License-Identifier: GPL-3.0-or-later
"""The command: help, tokens, completion, and an agent process that starts once, serves, and ends when told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magnetar_agent.cli import main
from tests.support.agent.serving import Client, Unix


@pytest.mark.parametrize("words", [[], ["agent"], ["token"], ["token", "create"], ["token", "list"],
                                   ["token", "revoke"], ["adopt"], ["console"], ["completion"], ["version"]])
def test_help_has_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0 and "Examples:\n  " in capsys.readouterr().out


def test_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--tokens-file", str(tmp_path / "tokens.yml")]
    assert main(["token", "create", "awx", "--scope", "operate", *where]) == 0
    assert capsys.readouterr().out.startswith("mag_")
    assert main(["token", "create", "awx", *where]) == 1
    assert "already" in capsys.readouterr().err
    assert main(["token", "list", *where]) == 0
    assert capsys.readouterr().out.startswith("awx\toperate\t")
    assert main(["token", "revoke", "awx", *where]) == 0
    assert main(["token", "revoke", "awx", *where]) == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0 and capsys.readouterr().out.strip()


def test_check_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "agent.yml"
    file.write_text("wait: 7\n")
    assert main(["agent", "--config", str(file), "--check-config", "--state-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "wait: 7.0" in shown.out and f"state_dir: {tmp_path}" in shown.out
    file.write_text("wiat: 7\n")
    assert main(["agent", "--config", str(file), "--check-config"]) == 1
    assert "Did you mean wait?" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "offered"), [
    ("magnetar ", {"agent", "token", "completion", "version"}), ("magnetar tok", {"token"}),
    ("magnetar token ", {"create", "list", "revoke"}), ("magnetar agent --ch", {"--check-config"}),
    ("magnetar token create x --scope ", {"read", "operate"}), ("magnetar completion ", {"bash", "zsh"}),
])
def test_completion(typed: str, offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    words = typed.split(" ")
    asked = (f"COMP_WORDS=({' '.join(words[:-1])} \"{words[-1]}\"); COMP_CWORD={len(words) - 1}; _magnetar; "
             "printf '%s\\n' \"${COMPREPLY[@]}\"")
    found = subprocess.run(["bash", "-c", capsys.readouterr().out + asked], capture_output=True, text=True, check=True)
    assert offered <= set(found.stdout.split()), found.stderr
    main(["completion", "zsh"])
    assert "bashcompinit" in capsys.readouterr().out


def test_an_agent_process(tmp_path: Path) -> None:
    where = tmp_path / "agent.sock"
    command = [sys.executable, "-m", "magnetar_agent", "agent", "--fake", "--state-dir", str(tmp_path / "state"),
               "--socket", str(where)]
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(command, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _listens(where) and time.monotonic() < deadline:
                time.sleep(0.02)
            client = Client(Unix(where))
            assert client.call("PUT", "/v1/flavor/f", {"vcpus": 1, "ram": 64})[1]["changed"] is True
            second = subprocess.run([*command[:-1], str(tmp_path / "other")], capture_output=True, text=True,
                                    check=False)
            assert second.returncode == 1 and f"Another agent (process {agent.pid}) works in" in second.stderr
            assert _resident(agent.pid) <= 90 * 2**20
            watcher = Unix(where)
            watcher.request("GET", "/v1/watch")
            watcher.getresponse()
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(120) == 0 and not where.exists()
        finally:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
    assert '"message": "stopped"' in (tmp_path / "log").read_text()


def _listens(where: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(str(where)) == 0


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_agent_that_stops_still_answers_reads(tmp_path: Path) -> None:
    where, fifo = tmp_path / "agent.sock", tmp_path / "content"
    os.mkfifo(fifo)
    config = tmp_path / "agent.yml"
    config.write_text(f"state_dir: {tmp_path}/state\nsocket: {where}\nimage_paths: [{tmp_path}]\ngrace: 20\n")
    agent = subprocess.Popen([sys.executable, "-m", "magnetar_agent", "agent", "--fake", "--config", str(config)],
                             stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not where.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        client, uploader = Client(Unix(where)), Unix(where)
        client.call("PUT", "/v1/image/i", {"source": {"upload": True}, "disk_format": "raw"})
        uploader.putrequest("PUT", "/v1/image/i/data")
        uploader.putheader("content-length", "512")
        uploader.endheaders(b"\0" * 256)  # an operation that goes on as long as its client likes
        while not client.call("GET", "/v1/operations?status=running")[1]["operations"]:
            time.sleep(0.01)
        agent.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 120
        while (status := client.call("PUT", "/v1/flavor/f", {"vcpus": 1, "ram": 64})[0]) == 200:
            assert time.monotonic() < deadline
        assert status == 503
        assert Client(Unix(where)).call("GET", "/v1/image/i")[0] == 200  # a new connection too
        uploader.send(b"\0" * 256)
        assert uploader.getresponse().status == 200
        assert agent.wait(120) == 0 and not where.exists()
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
