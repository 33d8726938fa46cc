# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs and files in guests through their guest agents: what works, what a guest answers wrongly, and that a
program is started once."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api import serve
from magnetar_core.errors import Conflict, GuestRefused, InvalidField, MagnetarError, NoGuestAgent, NotFound, TooLarge
from magnetar_core.http.client import Client
from magnetar_core.http.guest_commands import PIECE
from tests.support.agent.guest_programs import LocalGuest
from tests.support.agent.serving import served
from tests.unit.agent.conftest import Host


@pytest.fixture
def guest(host: Host, tmp_path: Path) -> LocalGuest:
    """The guest of a running server web1, with a guest agent."""
    made = host.server().resource
    assert made
    host.fake.talking.add(made["id"])
    (tmp_path / "guest").mkdir()
    guest = LocalGuest(tmp_path / "guest")
    host.fake.answer_guest = guest  # type: ignore[assignment]
    return guest


@pytest.fixture
def client(host: Host, tmp_path: Path) -> Iterator[Client]:
    where = tmp_path / "agent.sock"
    with served(host.agent, serve.unix_socket(where, "no-such-group")), Client(f"unix://{where}") as client:
        yield client


def run(client: Client, script: str, wait: int = 20, run_id: str = "r1", **more: Any) -> dict[str, Any]:
    return client.ask_guest("web1", "run", {"path": "/bin/sh", "arguments": ["-c", script], "wait": wait,
                                            "run_id": run_id, **more})


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def test_a_program_runs(client: Client, guest: LocalGuest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer = run(client, "cat; echo oops >&2; exit 3", input=base64.b64encode(b"hello").decode())
    assert (answer["exited"], answer["exit_code"], answer["signal"]) == (True, 3, None)
    assert (decoded(answer["stdout"]), decoded(answer["stderr"])) == (b"hello", b"oops\n")
    assert run(client, "kill -9 $$", run_id="r2")["signal"] == 9
    assert client.ask_guest("web1", "info")["missing"] == []
    lines = [record for record in caplog.records if getattr(record, "what", "") == "guest_run"]
    assert [(line.key, line.path, line.result) for line in lines] == [("web1", "/bin/sh", "succeeded")] * 2
    assert "oops" not in caplog.text


def test_a_long_program_is_looked_at(client: Client, guest: LocalGuest, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    answer = run(client, f"while [ ! -e {flag} ]; do sleep 0.05; done; echo done", wait=0)
    assert answer["exited"] is False
    assert client.ask_guest("web1", "status", {"pid": answer["pid"]})["exited"] is False
    flag.touch()
    ended = client.ask_guest("web1", "status", {"pid": answer["pid"], "wait": 20})
    assert decoded(ended["stdout"]) == b"done\n"
    with pytest.raises(GuestRefused, match="is lost: it was passed on already.*no process"):
        client.ask_guest("web1", "status", {"pid": answer["pid"]})


def test_a_repeated_request_starts_nothing(client: Client, guest: LocalGuest, tmp_path: Path) -> None:
    script = f"echo once >>{tmp_path}/times; sleep 1"
    first = run(client, script, wait=0)
    assert run(client, script, wait=20)["pid"] == first["pid"]
    assert (tmp_path / "times").read_text() == "once\n"


def test_an_agent_that_died_while_it_started_a_program(host: Host, client: Client, guest: LocalGuest) -> None:
    """Nobody knows whether the program runs, so it is not started again."""
    host.fake.fail_next("ask_guest_agent", RuntimeError("killed"))
    with pytest.raises(MagnetarError):
        run(client, "true")
    with pytest.raises(Conflict, match="look in the guest whether it ran"):
        run(client, "true")
    assert guest.asked == []
    assert run(client, "true", run_id="r2")["exit_code"] == 0


def test_a_program_that_was_refused_may_be_tried_again(client: Client, guest: LocalGuest) -> None:
    with pytest.raises(GuestRefused, match="No such file"):
        client.ask_guest("web1", "run", {"path": "/no/such/program", "run_id": "r1"})
    assert run(client, "true")["exit_code"] == 0


def test_files(client: Client, guest: LocalGuest, tmp_path: Path) -> None:
    file, content = tmp_path / "file", bytes(range(256)) * 5000
    file.touch()
    for offset in range(0, len(content), PIECE):
        piece = base64.b64encode(content[offset:offset + PIECE]).decode()
        for _repeated in range(2):
            answer = client.ask_guest("web1", "write_file", {"path": str(file), "offset": offset, "content": piece})
        assert answer["written"] == min(PIECE, len(content) - offset)
    assert file.read_bytes() == content
    first = client.ask_guest("web1", "read_file", {"path": str(file)})
    rest = client.ask_guest("web1", "read_file", {"path": str(file), "offset": PIECE})
    assert (first["eof"], rest["eof"]) == (False, True)
    assert decoded(first["content"]) + decoded(rest["content"]) == content
    with pytest.raises(GuestRefused, match="No such file"):
        client.ask_guest("web1", "write_file", {"path": str(tmp_path / "other"), "content": ""})
    assert guest.open_files == 0 and max(guest.sizes) < 2**16


@pytest.mark.parametrize(("command", "args", "field"), [
    ("run", {"path": "sh", "run_id": "r"}, "path"), ("run", {"path": "/bin/sh"}, "run_id"),
    ("run", {"path": "/bin/sh", "run_id": "r", "arguments": ["a\0b"]}, "arguments"),
    ("run", {"path": "/bin/sh", "run_id": "../r"}, "run_id"),
    ("run", {"path": "/bin/sh", "run_id": "r", "input": "?"}, "input"),
    ("run", {"path": "/bin/sh", "run_id": "r", "input": "A" * 70_000}, "input"),
    ("run", {"path": "/bin/sh", "run_id": "r", "wait": 21}, "wait"), ("status", {"pid": 0}, "pid"),
    ("read_file", {"path": "/x", "size": PIECE + 1}, "size"), ("write_file", {"path": "/x"}, "content"),
    ("write_file", {"path": "/x", "content": "A" * 1_500_000}, "content"), ("reboot", {}, "command"),
])
def test_wrong_input(client: Client, guest: LocalGuest, command: str, args: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        client.ask_guest("web1", command, args)
    assert refused.value.details["field"].startswith(field) and guest.asked == []


def test_no_guest_agent(host: Host, client: Client, guest: LocalGuest) -> None:
    host.fake.talking.clear()
    with pytest.raises(NoGuestAgent, match="Install qemu-guest-agent") as refused:
        run(client, "true")
    assert refused.value.details["why"] == "silent"
    host.fake.fail_next("ask_guest_agent", AssertionError("it is not asked so soon"))
    with pytest.raises(NoGuestAgent, match="asked again in"):
        run(client, "true", run_id="r2")
    host.ensure("server", "web1", {"power": "off"})
    with pytest.raises(Conflict, match="Start the server"):
        run(client, "true", run_id="r3")
    with pytest.raises(NotFound, match="no server 'db1'"):
        client.ask_guest("db1", "info")


def test_no_channel(host: Host, client: Client, guest: LocalGuest) -> None:
    host.fake.fail_next("ask_guest_agent", NoGuestAgent("QEMU guest agent is not configured", why="channel"))
    with pytest.raises(NoGuestAgent, match="guest_agent: false"):
        run(client, "true")
    assert run(client, "true")["exit_code"] == 0  # which is no silence


def test_commands_that_the_guest_agent_does_not_do(client: Client, guest: LocalGuest) -> None:
    guest.disabled = {"guest-exec"}
    with pytest.raises(NoGuestAgent, match="not allowed to do guest-exec.*/etc/sysconfig/qemu-ga"):
        run(client, "true")
    assert client.ask_guest("web1", "info")["missing"] == ["guest-exec"]


def test_a_frozen_guest(host: Host, client: Client, guest: LocalGuest) -> None:
    started = run(client, "true", wait=0)
    frozen = GuestRefused("Command guest-exec-status has been disabled: the agent is in frozen state")
    host.fake.fail_next("ask_guest_agent", frozen)
    ended = client.ask_guest("web1", "status", {"pid": started["pid"], "wait": 20})
    assert ended["exited"]
    host.fake.fail_next("ask_guest_agent", frozen)
    with pytest.raises(NoGuestAgent, match="frozen.*Repeat") as refused:
        run(client, "true", run_id="r2")
    assert refused.value.details["why"] == "frozen"


def test_questions_are_short(client: Client, guest: LocalGuest) -> None:
    """libvirt garbles long ones."""
    with pytest.raises(TooLarge, match="Write what is longer into a file"):
        run(client, "#" * 70_000)
    assert run(client, "true")["exit_code"] == 0 and max(guest.sizes) < 2**16


LIES = {"guest-exec": ["[", "null", "{}", '{"return": {"pid": true}}', '{"return": {"pid": -1}}', '{"return": [1]}',
                       '{"return": {"pid": "1"}}', "[" * 100_000, '{"return": {"pid": 1e3}}'],
        "guest-exec-status": ['{"return": {"exited": 1}}', '{"return": {"exited": true, "exitcode": "0"}}',
                              '{"return": {"exited": true, "out-data": "?"}}',
                              '{"return": {"exited": true, "out-data": "é"}}',
                              '{"return": {"exited": true, "out-data": 7}}',
                              '{"return": {"exited": true, "exitcode": 99999999999}}'],
        "guest-file-open": ['{"return": "7"}', '{"return": -1}'],
        "guest-file-seek": ['{"return": {"position": 4}}', '{"return": 5}'],
        "guest-file-read": ['{"return": {"buf-b64": "QUFBQUFBQUFBQUFBQUFB", "eof": true}}',
                            '{"return": {"buf-b64": "", "eof": "no"}}'],
        "guest-file-write": ['{"return": {"count": 0}}', '{"return": {"count": 2000000}}', '{"return": {"count": 4}}']}


@pytest.mark.parametrize(("command", "lie"), [(command, lie) for command, lies in LIES.items() for lie in lies])
def test_guests_that_lie(host: Host, client: Client, guest: LocalGuest, tmp_path: Path, command: str,
                         lie: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 20)

    def answer(uuid: str, request: str) -> str:
        return lie if json.loads(request)["execute"] == command else guest(uuid, request)

    host.fake.answer_guest = answer  # type: ignore[assignment]
    with pytest.raises(GuestRefused, match="does not keep its protocol"):
        run(client, "true")
        client.ask_guest("web1", "read_file", {"path": str(file), "offset": 5, "size": 8})
        client.ask_guest("web1", "write_file", {"path": str(file), "content": "QUFB"})
    assert guest.open_files == 0


def test_what_a_guest_writes_is_cut_and_plain(host: Host, client: Client, guest: LocalGuest) -> None:
    host.fake.fail_next("ask_guest_agent", GuestRefused("\x1b[31m" + "x" * 100_000))
    with pytest.raises(GuestRefused) as refused:
        run(client, "true")
    assert "\x1b" not in refused.value.message and len(refused.value.message) < 500


def test_a_guest_that_hangs_delays_no_other_request(host: Host, client: Client, guest: LocalGuest) -> None:
    asked, hangs = threading.Event(), threading.Event()

    def answer(_uuid: str, _request: str) -> str:
        asked.set()
        hangs.wait(60)
        raise NoGuestAgent("not answered in time", why="silent")

    host.fake.answer_guest = answer  # type: ignore[assignment]
    failed: list[MagnetarError] = []

    def ask() -> None:
        with Client(client.endpoint) as other:
            try:
                run(other, "true")
            except MagnetarError as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert asked.wait(60)
    began = time.monotonic()
    assert client.get("server", "web1")["power_state"] == "running"
    client.ensure("server", "web1", {"power": "off"})
    assert time.monotonic() - began < 30 and asking.is_alive()
    hangs.set()
    asking.join(60)
    assert failed[0].code == "no-guest-agent"


def test_keys_of_runs_are_trimmed(host: Host, client: Client, guest: LocalGuest) -> None:
    folder = host.root / "state" / "guest_runs"
    folder.mkdir(0o700)
    for number in range(host.agent.host.settings.event_keys_kept + 5):
        (folder / f"run-old{number}").touch(0o600)
    run(client, "true")
    assert len(list(folder.iterdir())) == host.agent.host.settings.event_keys_kept + 1
