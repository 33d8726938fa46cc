# SPDX-License-Identifier: GPL-3.0-or-later
"""Files between two agents: whole, sparse, gone on with, and refused when they were changed on their way."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from magnetar_agent.link.rpc import Rpc
from magnetar_agent.migrations import transfer
from magnetar_core.errors import HypervisorError, InvalidRequest, NoSpace, Unreachable

MIB = 2**20


class Ends:
    """Two agents who talk."""

    def __init__(self) -> None:
        self.socks = socket.socketpair()
        self.near, self.far = (Rpc(sock) for sock in self.socks)

    def go(self, path: Path, to: Path, offset: int = 0, append: bool = False, state: str | None = None,
           linked: bool = False) -> int:
        """Send *path* and receive it as *to*; the bytes of data that went."""
        went: list[int] = []
        sending = threading.Thread(target=transfer.send_file_frames, args=(self.near, path, offset, went.append))
        sending.start()
        try:
            assert transfer.receive_file_frames(self.far, to, offset, append, state, linked) == path.stat().st_size
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
        return [(start, data) for start, data in transfer.data_pieces(file.fileno(), 0) if data.strip(b"\0")]


def test_a_file_that_broke_off_goes_on(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SURE", 2 * MIB)
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(os.urandom(8 * MIB))
    assert transfer.bytes_present(there, "one") == 0

    def sent(_count: int) -> None:
        if transfer._noted(there.with_name("there.part.at"))[1]:
            raise Unreachable("broken off")

    with pytest.raises(Unreachable):
        _broken(ends, here, there, sent)
    sure = transfer.bytes_present(there, "one")
    assert sure and sure % (2 * MIB) == 0 and not there.exists()
    again = Ends()
    assert again.go(here, there, sure, state="one") == 8 * MIB - sure
    assert there.read_bytes() == here.read_bytes() and transfer.bytes_present(there, "one") is None
    assert transfer.bytes_present(there, "another") == 0 and not list(tmp_path.glob("there*"))


@pytest.mark.parametrize("state", ["another", None])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_of_another_state_is_thrown_away(tmp_path: Path, state: str | None, whole: bool) -> None:
    there = tmp_path / "there"
    (there if whole else tmp_path / "there.part").write_bytes(b"12345678")
    transfer._note(there, "one", 4)
    assert transfer.bytes_present(there, "one") == (None if whole else 4)
    assert transfer.bytes_present(there, state) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("note", [b"4", b"", b"{", b"[1]", b'{"sure": 4}', b'{"state": "one", "sure": 9}', None])
def test_a_note_that_says_nothing_certain(tmp_path: Path, note: bytes | None) -> None:
    """That of an earlier agent is a number; one may say more than there is."""
    (tmp_path / "there.part").write_bytes(b"12345678")
    if note is not None:
        (tmp_path / "there.part.at").write_bytes(note)
    assert transfer.bytes_present(tmp_path / "there", "one") == 0
    assert not list(tmp_path.iterdir())


def test_a_crash_before_the_name_was_given(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the end of it is sent again; and what had the name before is never taken for it."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(b"12345678")
    there.write_bytes(b"of before")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", _rename_notes_only)
        ends.go(here, there, state="one")
    assert not there.exists() and transfer.bytes_present(there, "one") == 8
    assert Ends().go(here, there, 8, state="one") == 0
    assert there.read_bytes() == b"12345678"


def _rename_notes_only(path: Path, to: Path) -> None:
    if to.name == "there":
        raise KeyboardInterrupt
    path.replace(to)


def test_another_attempt_threw_it_away(ends: Ends, tmp_path: Path) -> None:
    """Who still receives for an earlier attempt neither notes nor names anything."""
    there = tmp_path / "there"
    ends.near.write(transfer._FRAME.pack(0, 4, transfer._digest(b"good")) + b"good")
    ends.near.flush()
    receiving = threading.Thread(target=_gone, args=(ends, there))
    receiving.start()
    end = time.monotonic() + 120
    while not (tmp_path / "there.part").exists() and time.monotonic() < end:
        time.sleep(0.01)
    while not transfer._noted(tmp_path / "there.part.at")[0] and time.monotonic() < end:
        time.sleep(0.01)
    assert transfer.bytes_present(there, "two") == 0
    (tmp_path / "there.part").write_bytes(b"of two")
    ends.near.write(transfer._FRAME.pack(4, 0, transfer._digest(b"")))
    ends.near.flush()
    receiving.join(20)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"there.part": b"of two"}


def _gone(ends: Ends, there: Path) -> None:
    with pytest.raises(HypervisorError, match="another attempt"):
        transfer.receive_file_frames(ends.far, there, 0, state="one")


def test_the_part_is_gone(ends: Ends, tmp_path: Path) -> None:
    with pytest.raises(HypervisorError, match="is not there any more"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 8, state="one")


def _broken(ends: Ends, here: Path, there: Path, sent: object) -> None:
    def send() -> None:
        try:
            transfer.send_file_frames(ends.near, here, 0, sent, rate=20 * MIB)  # type: ignore[arg-type]
        except Unreachable:
            ends.near.close()

    sending = threading.Thread(target=send)
    sending.start()
    try:
        transfer.receive_file_frames(ends.far, there, 0, state="one")
    finally:
        sending.join(10)


def test_a_log_is_continued_behind_what_is_there(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("one\ntwo\nthree\n")
    (tmp_path / "there").write_text("one\ntwo\n")
    ends.go(tmp_path / "here", tmp_path / "there", 8, append=True)
    assert (tmp_path / "there").read_text() == "one\ntwo\nthree\n"


def test_a_changed_byte_is_noticed(ends: Ends, tmp_path: Path) -> None:
    ends.near.write(transfer._FRAME.pack(0, 4, transfer._digest(b"good")) + b"goof")
    ends.near.flush()
    with pytest.raises(HypervisorError, match="changed on its way"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0)
    assert not (tmp_path / "there").exists()


def test_a_frame_that_is_too_long(ends: Ends, tmp_path: Path) -> None:
    ends.near.write(transfer._FRAME.pack(0, transfer.PIECE + 1, b"x" * 16))
    ends.near.flush()
    with pytest.raises(InvalidRequest, match="too long"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0)


def test_the_other_side_is_gone(ends: Ends, tmp_path: Path) -> None:
    ends.near.close()
    with pytest.raises(Unreachable, match="goes on where it was"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0)
    with pytest.raises(Unreachable):
        ends.far.call("look")


def test_no_room(ends: Ends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    ends.near.write(transfer._FRAME.pack(0, 4, transfer._digest(b"good")) + b"good")
    ends.near.flush()
    with pytest.raises(NoSpace, match="No space left.*Free some room"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0)


def test_a_link_in_the_way_is_not_followed(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "there.part").symlink_to(tmp_path / "victim")
    (tmp_path / "here").write_bytes(b"evil")
    with pytest.raises(OSError):
        ends.go(tmp_path / "here", tmp_path / "there", 1)
    assert Ends().go(tmp_path / "here", tmp_path / "there") == 4  # anew: the link goes
    assert (tmp_path / "victim").read_text() == "keep"


def test_a_limit_is_kept(ends: Ends, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(os.urandom(2 * MIB))
    began = time.monotonic()
    args = (ends.near, tmp_path / "here", 0, lambda _count: None, 4 * MIB)
    sending = threading.Thread(target=transfer.send_file_frames, args=args)
    sending.start()
    transfer.receive_file_frames(ends.far, tmp_path / "there", 0)
    assert time.monotonic() - began > 0.4
    sending.join(10)
    assert not sending.is_alive()


# To a logical volume, for which a file stands ---------------------------------------------------------------------
@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """What is there already, and is not zero."""
    path = tmp_path / "volume"
    path.write_bytes(b"\xa5" * 8 * MIB)
    (tmp_path / "there.part").symlink_to(path)
    return path


def test_what_does_not_come_reads_as_zeros(ends: Ends, tmp_path: Path, volume: Path) -> None:
    with (tmp_path / "here").open("wb") as file:
        file.seek(2 * MIB)
        file.write(b"x" * MIB)
        file.truncate(8 * MIB)
    assert ends.go(tmp_path / "here", tmp_path / "there", state="s", linked=True) == MIB
    assert volume.read_bytes() == (tmp_path / "here").read_bytes() and (tmp_path / "there").is_symlink()
    assert not (tmp_path / "there.part").exists()
    assert transfer.bytes_present(tmp_path / "there", "s", linked=True) is None
    assert transfer.bytes_present(tmp_path / "there", "other", linked=True) == 0
    assert volume.exists() and not (tmp_path / "there").exists()


def test_a_volume_that_broke_off_goes_on(ends: Ends, tmp_path: Path, volume: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SURE", MIB)
    (tmp_path / "here").write_bytes(os.urandom(8 * MIB))
    threading.Thread(target=_part_of, args=(ends, tmp_path / "here", 3)).start()
    with pytest.raises(Unreachable):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0, state="s", linked=True)
    assert transfer.bytes_present(tmp_path / "there", "s", linked=True) == 3 * MIB
    again = Ends()
    assert again.go(tmp_path / "here", tmp_path / "there", 3 * MIB, state="s", linked=True) == 5 * MIB
    assert volume.read_bytes() == (tmp_path / "here").read_bytes()


def _part_of(ends: Ends, path: Path, count: int) -> None:
    """Send so many pieces, and hang up."""
    def sent(_bytes: int) -> None:
        nonlocal count
        count -= 1
        if not count:
            ends.near.flush()
            ends.socks[0].shutdown(socket.SHUT_RDWR)
    with suppress(OSError, Unreachable):
        transfer.send_file_frames(ends.near, path, 0, sent)


def test_an_earlier_attempt_writes_no_more(ends: Ends, tmp_path: Path, volume: Path) -> None:
    place = transfer._ReceivedFile(tmp_path / "there", tmp_path / "there.part",
                                   transfer._inode(tmp_path / "there.part"),
                                   os.open(tmp_path / "there.part", os.O_WRONLY), append=False)
    place.write(b"first", 0, 0)
    (tmp_path / "there.part").unlink()
    (tmp_path / "there.part").symlink_to(volume)
    with pytest.raises(HypervisorError, match="another attempt"):
        place.write(b"later", 0, 0)
    os.close(place.descriptor)
    assert volume.read_bytes().startswith(b"first")


def test_a_link_that_leads_nowhere_makes_nothing(ends: Ends, tmp_path: Path, volume: Path) -> None:
    volume.unlink()
    (tmp_path / "here").write_bytes(b"x")
    with pytest.raises(HypervisorError, match="not there any more"):
        transfer.receive_file_frames(ends.far, tmp_path / "there", 0, state="s", linked=True)
    assert not volume.exists()
