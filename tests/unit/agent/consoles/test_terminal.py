# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar console`` on a terminal: a process of its own at a pseudo-terminal, and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.api import serve
from tests.support.agent.serving import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = [sys.executable, "-c", "import sys; from magnetar_core.commands import main; sys.exit(main(sys.argv[1:]))",
           "console"]
LIMIT = 120.0
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}


@pytest.fixture
def where(host: Any, tmp_path: Path) -> Iterator[str]:
    """The socket of an agent with a server web1."""
    path = tmp_path / "agent.sock"
    host.server()
    with served(host.agent, serve.unix_socket(path, "magnetar")):
        yield str(path)


@contextmanager
def terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command at a terminal, whose other end is given."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=PLAIN)
    try:
        os.close(theirs)
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def shown(end: int, words: str) -> str:
    """What the terminal shows, until the *words* were there."""
    said, deadline = "", time.monotonic() + LIMIT
    while words not in said:
        assert time.monotonic() < deadline, said
        said += os.read(end, 4096).decode()
    return said


def test_typing_until_the_key_that_ends_it(host: Any, where: str) -> None:
    host.fake.guest_says(str(host.show()["id"]), "login: ")
    with terminal("--socket", where, "web1") as (process, end):
        assert "login: " in shown(end, "login: ")
        assert not termios.tcgetattr(end)[3] & (termios.ECHO | termios.ICANON)
        os.write(end, b"ro\x03ot\r")
        assert "ro\x03ot\r" in shown(end, "ot\r")
        os.write(end, b"more\x1dnot this")
        shown(end, "goes on without this terminal")
        assert process.wait(LIMIT) == 0
        assert termios.tcgetattr(end)[3] & termios.ECHO


def test_a_guest_that_stops(host: Any, where: str) -> None:
    with terminal("--socket", where, "--break", "web1") as (process, end):
        shown(end, "[break]")
        host.fake.guest_powers_off(str(host.show()["id"]))
        shown(end, "the guest stopped")
        assert process.wait(LIMIT) == 0


def test_a_pipe(host: Any, where: str) -> None:
    with subprocess.Popen([*COMMAND, "--socket", where, "web1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=PLAIN) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"typed\x1d")
        process.stdin.close()
        assert process.stdout.read(6) == b"typed\x1d"
        host.fake.guest_powers_off(str(host.show()["id"]))
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize(("words", "told"), [
    (["--socket", "{socket}", "web2"], "web2"), (["--socket", "/nowhere", "web1"], "no such socket"),
    (["--cloud", "none", "web1"], "clouds.yaml"), (["ws://127.0.0.1:1/console"], "connection refused"),
    (["ws://"], "is no URL of a console"),
])
def test_what_is_refused(where: str, tmp_path: Path, words: list[str], told: str) -> None:
    done = subprocess.run([*COMMAND, *(word.format(socket=where) for word in words)], check=False, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True, env={**PLAIN, "HOME": str(tmp_path)},
                          cwd=tmp_path, timeout=LIMIT)
    assert done.returncode == 1 and told in done.stderr, done
    assert done.stderr.startswith("magnetar: ") and "Traceback" not in done.stderr
