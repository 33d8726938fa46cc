# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of servers over real WebSockets: VNC, and the serial line with many who see it and one who types."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, unix_connect

from magnetar_agent import consoles
from magnetar_agent.api import serve
from magnetar_agent.api.access import OPERATE, READ, Peer
from magnetar_agent.consoles import serial
from magnetar_agent.consoles.log import LogReader
from magnetar_agent.fake.consoles import GREETING
from magnetar_core.errors import Conflict, HypervisorError
from tests.support.agent.serving import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Connect = "Callable[..., ClientConnection]"
LIMIT = 120.0


@pytest.fixture
def connect(host: Any, tmp_path: Path) -> Iterator[Callable[..., ClientConnection]]:
    """Opens a console of web1."""
    where = tmp_path / "agent.sock"
    host.server()
    with ExitStack() as end, served(host.agent, serve.unix_socket(where, "magnetar")):
        def connect(kind: str = "serial", key: str = "web1", **more: Any) -> ClientConnection:
            return end.enter_context(unix_connect(
                str(where), f"ws://agent/v1/server/{key}/consoles/{kind}", subprotocols=["binary"], **more))

        yield connect


def heard(console: ClientConnection, words: str) -> str:
    """What the console shows, until the *words* were there."""
    said, deadline = "", time.monotonic() + LIMIT
    while not re.search(words, said):
        said += bytes(console.recv(deadline - time.monotonic())).decode()  # type: ignore[arg-type]
    return said


def ended(console: ClientConnection) -> str:
    """Why the console has ended."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            console.recv(LIMIT)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.reason


def refused(connect: Callable[..., ClientConnection], *words: str, **more: Any) -> tuple[int, str]:
    """Status and words of a refusal."""
    with pytest.raises(InvalidStatus) as error:
        connect(*words, **more)
    response = error.value.response
    return response.status_code, response.body.decode()


def none_left(host: Any) -> None:
    """Wait until no console is open."""
    deadline = time.monotonic() + LIMIT
    while host.agent.host.consoles:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_vnc(host: Any, connect: Callable[..., ClientConnection]) -> None:
    console = connect("vnc")
    assert console.subprotocol == "binary"
    assert console.recv(LIMIT) == GREETING
    console.send(b"x" * 300_000)
    there = b""
    while len(there) < 300_000:
        there += bytes(console.recv(LIMIT))  # type: ignore[arg-type]
    assert there == b"x" * 300_000
    assert sum(host.agent.host.consoles.values()) == 1
    host.server(power="off")
    assert "the guest stopped" in ended(console)


def test_spice(host: Any, connect: Callable[..., ClientConnection]) -> None:
    """A guest has it from the first start on with the setting, however the guest was stopped before."""
    assert host.agent.host.kinds_of_consoles() == ["serial", "vnc"]
    status, words = refused(connect, "spice")
    assert status == 409 and "setting spice" in words
    host.agent.host.settings = replace(host.agent.host.settings, spice=True)
    host.agent.drivers.by_noun["server"].sweep(host.agent.host)  # as the agent does when it starts
    assert refused(connect, "spice")[0] == 409
    host.server(power="off")
    host.server(power="running")
    assert host.agent.host.kinds_of_consoles() == ["serial", "spice", "vnc"]
    console = connect("spice")
    console.send(b"REDQ")
    assert console.recv(LIMIT) == b"REDQ"
    assert host.agent.host.consoles[str(host.show()["id"]), "spice"] == 1
    host.server(power="off")
    assert "the guest stopped" in ended(console)


def test_a_qemu_without_spice(host: Any) -> None:
    host.fake.spice = False
    host.agent.host.settings = replace(host.agent.host.settings, spice=True)
    assert host.agent.host.kinds_of_consoles() == ["serial", "vnc"]
    with pytest.raises(Conflict, match="setting spice is true, and QEMU of host .* has no SPICE.*modules-spice"):
        host.server("web2")


def test_serial_begins_with_what_was_said(host: Any, connect: Callable[..., ClientConnection]) -> None:
    id = str(host.show()["id"])
    host.fake.guest_says(id, "long ago\nlogin: ")
    console = connect()
    assert heard(console, "login: ") == "long ago\nlogin: "
    console.send(b"root\r")
    assert heard(console, "root") == "root\r"
    host.fake.guest_says(id, "welcome")
    assert heard(console, "welcome") == "welcome"
    later = connect("serial?scrollback=7")
    assert heard(later, "shows what is said").startswith("welcome\r\n[magnetar")


def test_one_types_and_all_see_it(host: Any, connect: Callable[..., ClientConnection]) -> None:
    first, second = connect(), connect()
    first.send(b"one")
    assert heard(first, "one") == "one"
    assert "somebody else types here" in heard(second, "somebody else .*\n")
    second.send(b"two")  # goes nowhere
    first.send(b"three")
    assert heard(first, "three") == "three"
    assert "two" not in heard(second, "three")
    first.close()
    assert "types from now on" in heard(second, "from now on.*\n")
    second.send(b"four")
    assert heard(second, "four") == "four"


def test_a_break(host: Any, connect: Callable[..., ClientConnection]) -> None:
    first, second = connect(), connect()
    second.send("break")  # as nothing that this one types
    first.send("something else")
    first.send("break")
    assert heard(first, "break") == "[break]"


def test_a_console_ends_with_its_guest(host: Any, connect: Callable[..., ClientConnection]) -> None:
    id = str(host.show()["id"])
    one, other = connect(), connect("vnc")
    host.fake.guest_says(id, "the last words")
    host.fake.guest_powers_off(id)
    assert "the last words" in heard(one, "words")
    assert "the guest stopped" in ended(one)
    assert "the guest stopped" in ended(other)
    host.settled()
    assert refused(connect)[0] == 409
    host.server(power="running")
    again = connect()
    again.send(b"here")
    heard(again, "here")
    host.ensure("server", "web1", None)
    ended(again)
    assert refused(connect)[0] == 404


def test_a_reader_that_does_not_read_keeps_nobody(host: Any, connect: Callable[..., ClientConnection]) -> None:
    """It has no queue: it finds what it missed in the log, when it reads on."""
    id, slow, quick = str(host.show()["id"]), connect(), connect()
    host.fake.guest_says(id, "begin")
    for console in (slow, quick):
        heard(console, "begin")
    for _piece in range(10):
        host.fake.guest_says(id, "x" * 500_000)
    host.fake.guest_says(id, "end")
    assert heard(quick, "end").count("x") == 5_000_000
    assert heard(slow, "end").count("x") == 5_000_000


def test_one_who_takes_nothing_is_cut_off(host: Any, connect: Callable[..., ClientConnection],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "HUNG", 0.3)
    connect(max_queue=1)
    for _piece in range(40):
        host.fake.guest_says(str(host.show()["id"]), "x" * 500_000)
    none_left(host)


def test_logs_that_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "console.log"
    reader = LogReader(path, 10)
    assert reader.read(100) == b""
    path.write_bytes(b"first ")
    assert reader.read(100) == b"first "
    with path.open("ab") as file:
        file.write(b"more ")
        path.rename(tmp_path / "console.log.0")
        path.write_bytes(b"second ")
        file.write(b"and more ")
    assert [reader.read(100), reader.read(100), reader.read(100)] == [b"more and more ", b"second ", b""]
    for name in ("third ", "fourth "):
        (tmp_path / "console.log.0").rename(tmp_path / "console.log.1")
        path.rename(tmp_path / "console.log.0")
        path.write_text(name)
    assert [reader.read(100), reader.read(100), reader.read(100)] == [b"third ", b"fourth ", b""]
    reader.close()
    both = LogReader(path, 10)
    assert [both.read(100), both.read(100)] == [b"rd ", b"fourth "]
    both.close()


def test_only_plain_logs_are_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "console.log").symlink_to("secret")
    reader = LogReader(tmp_path / "console.log", 100)
    assert reader.read(100) == b""
    reader.close()


def test_what_is_refused(host: Any, connect: Callable[..., ClientConnection],
                         caplog: pytest.LogCaptureFixture) -> None:
    status, words = refused(connect, "rdp")
    assert status == 404 and "there are serial, spice, vnc" in words
    assert refused(connect, "serial?size=1")[0] == 400
    assert refused(connect, "serial", "web2")[0] == 404
    status, words = refused(connect, "serial", origin="https://elsewhere.example")
    assert status == 403 and "another site" in words
    host.fake.fail_next("open_graphics", HypervisorError("broken"))
    assert refused(connect, "vnc")[0] == 500
    host.fake.fail_next("open_serial", HypervisorError("broken"))
    assert refused(connect)[0] == 500
    host.server(power="off")
    status, words = refused(connect, "vnc")
    assert status == 409 and "Start it" in words
    assert not [one for one in caplog.records if one.name.startswith("uvicorn") and one.levelname == "ERROR"]


def test_those_who_may_only_read(host: Any, connect: Callable[..., ClientConnection],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    for scope, status in ((READ, 403), (None, 401)):
        monkeypatch.setattr(serve.access, "of_connection", lambda *_given, scope=scope: Peer("somebody", scope))
        assert refused(connect)[0] == status
    monkeypatch.setattr(serve.access, "of_connection", lambda *_given: Peer("somebody", OPERATE))
    connect()


def test_a_flood(host: Any, connect: Callable[..., ClientConnection], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "OF_SERVER", {"vnc": 1, "serial": 3})
    opened = [connect() for _one in range(3)]
    status, words = refused(connect)
    assert status == 429 and "Close one" in words
    connect("vnc")  # of each kind
    opened[0].close()
    deadline = time.monotonic() + LIMIT
    while host.agent.host.consoles[str(host.show()["id"]), "serial"] == 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    connect()


def test_a_guest_that_does_not_listen(host: Any, connect: Callable[..., ClientConnection],
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not take is dropped, and the console goes on."""
    monkeypatch.setattr(serial, "DEAF", 0.2)
    monkeypatch.setattr(host.fake, "_guest", lambda *_given: None)  # never reads
    id, console = str(host.show()["id"]), connect()
    for _piece in range(16):
        console.send(b"x" * 2**19)
    host.fake.guest_says(id, "still here")
    heard(console, "still here")


def test_audit_and_metrics(host: Any, connect: Callable[..., ClientConnection],
                           caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "magnetar.audit")
    connect().close()
    none_left(host)
    connect("vnc").close()
    none_left(host)
    said = [(one.what, one.console) for one in caplog.records if hasattr(one, "console")]  # type: ignore[attr-defined]
    assert said == [("open_console", "serial"), ("close_console", "serial"), ("open_console", "vnc"),
                    ("close_console", "vnc")]
