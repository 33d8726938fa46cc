# SPDX-License-Identifier: GPL-3.0-or-later
"""Files between two agents: whole, sparse, gone on with, and refused when they were changed on their way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.link.talk import Talk
from magnetar_agent.migrations import wire
from magnetar_core.errors import HypervisorError, InvalidRequest, NoSpace, Unreachable

MIB = 2**20


class Ends:
    """Two agents who talk."""

    def __init__(self) -> None:
        self.socks = socket.socketpair()
        self.near, self.far = (Talk(sock) for sock in self.socks)

    def go(self, path: Path, to: Path, offset: int = 0, append: bool = False) -> int:
        """Send *path* and receive it as *to*; the bytes of data that went."""
        went: list[int] = []
        sending = threading.Thread(target=wire.send, args=(self.near, path, offset, went.append))
        sending.start()
        try:
            assert wire.receive(self.far, to, offset, append) == path.stat().st_size
        finally:
            sending.join(10)
        return sum(went)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.near.close()
    made.far.close()


@pytest.mark.parametrize("size", [0, 1, 511, MIB, 3 * MIB + 17])
def test_a_file_arrives_whole(ends: Ends, tmp_path: Path, size: int) -> None:
    (tmp_path / "here").write_bytes(os.urandom(size))
    assert ends.go(tmp_path / "here", tmp_path / "there") == size
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "there"}
    assert wire.have(tmp_path / "there") is None


def test_holes_are_not_sent(ends: Ends, tmp_path: Path) -> None:
    with (tmp_path / "here").open("wb") as file:
        for at in (0, 100 * MIB, 500 * MIB):
            file.seek(at)
            file.write(b"x" * MIB)
        file.truncate(1024 * MIB)
    assert ends.go(tmp_path / "here", tmp_path / "there") == 3 * MIB
    there = tmp_path / "there"
    assert there.stat().st_size == 1024 * MIB
    assert there.stat().st_blocks * 512 < 8 * MIB
    assert [start for start, _data in _pieces(there)] == [0, 100 * MIB, 500 * MIB]


def _pieces(path: Path) -> list[tuple[int, bytes]]:
    with path.open("rb") as file:
        return [(start, data) for start, data in wire.pieces(file.fileno(), 0) if data.strip(b"\0")]


def test_a_file_that_broke_off_goes_on(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SURE", 2 * MIB)
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(os.urandom(8 * MIB))
    assert wire.have(there) == 0

    def sent(_count: int) -> None:
        if there.with_name("there.part.at").exists():
            raise Unreachable("broken off")

    with pytest.raises(Unreachable):
        _broken(ends, here, there, sent)
    sure = wire.have(there)
    assert sure and sure % (2 * MIB) == 0 and not there.exists()
    again = Ends()
    assert again.go(here, there, sure) == 8 * MIB - sure
    assert there.read_bytes() == here.read_bytes() and wire.have(there) is None


def _broken(ends: Ends, here: Path, there: Path, sent: object) -> None:
    def send() -> None:
        try:
            wire.send(ends.near, here, 0, sent, rate=20 * MIB)  # type: ignore[arg-type]
        except Unreachable:
            ends.near.close()

    sending = threading.Thread(target=send)
    sending.start()
    try:
        wire.receive(ends.far, there, 0)
    finally:
        sending.join(10)


def test_a_log_is_continued_behind_what_is_there(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("one\ntwo\nthree\n")
    (tmp_path / "there").write_text("one\ntwo\n")
    ends.go(tmp_path / "here", tmp_path / "there", 8, append=True)
    assert (tmp_path / "there").read_text() == "one\ntwo\nthree\n"


def test_a_changed_byte_is_noticed(ends: Ends, tmp_path: Path) -> None:
    ends.near.write(wire._FRAME.pack(0, 4, wire._digest(b"good")) + b"goof")
    ends.near.flush()
    with pytest.raises(HypervisorError, match="changed on its way"):
        wire.receive(ends.far, tmp_path / "there", 0)
    assert not (tmp_path / "there").exists()


def test_a_frame_that_is_too_long(ends: Ends, tmp_path: Path) -> None:
    ends.near.write(wire._FRAME.pack(0, wire.PIECE + 1, b"x" * 16))
    ends.near.flush()
    with pytest.raises(InvalidRequest, match="too long"):
        wire.receive(ends.far, tmp_path / "there", 0)


def test_the_other_side_is_gone(ends: Ends, tmp_path: Path) -> None:
    ends.near.close()
    with pytest.raises(Unreachable, match="goes on where it was"):
        wire.receive(ends.far, tmp_path / "there", 0)
    with pytest.raises(Unreachable):
        ends.far.ask("look")


def test_no_room(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    ends.near.write(wire._FRAME.pack(0, 4, wire._digest(b"good")) + b"good")
    ends.near.flush()
    with pytest.raises(NoSpace, match="No space left.*Free some room"):
        wire.receive(ends.far, tmp_path / "there", 0)


def test_a_link_in_the_way_is_not_followed(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "there.part").symlink_to(tmp_path / "victim")
    (tmp_path / "here").write_bytes(b"evil")
    with pytest.raises(OSError):
        ends.go(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "victim").read_text() == "keep"


def test_a_limit_is_kept(ends: Ends, tmp_path: Path) -> None:
    import time

    (tmp_path / "here").write_bytes(os.urandom(2 * MIB))
    began = time.monotonic()
    sending = threading.Thread(target=wire.send, args=(ends.near, tmp_path / "here", 0, lambda _count: None, 4 * MIB))
    sending.start()
    wire.receive(ends.far, tmp_path / "there", 0)
    sending.join(10)
    assert 0.4 < time.monotonic() - began < 5
