# SPDX-License-Identifier: GPL-3.0-or-later
"""A migration that broke off and is repeated, on fake hosts: what came before is used where it is still the same."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_agent.link.rpc import Rpc
from magnetar_agent.migrations import source, target, transfer
from magnetar_core.errors import HypervisorError, MagnetarError, TimedOut
from magnetar_core.flows.migrate import Migrate
from tests.support.agent.pair import Died, Pair, brief, quiet

pytestmark = pytest.mark.slow

MIB = 1 << 20
FLAVOR = {"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 1}


class Way:
    """Counts what goes from hosts of a pair as files, and breaks once at the file *at*: before its first byte, or when
    the target is sure of some of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
        self.pair, self.at, self.sure = pair, "", False
        self.error: BaseException = HypervisorError("The link broke.")
        self.went: dict[str, int] = {}
        self._whole = source.send_file_frames
        monkeypatch.setattr(source, "send_file_frames", self._send)

    def _send(self, talk: Rpc, path: Path, offset: int, sent: Callable[[int], None], *rate: Any) -> int:
        breaks = path.name == self.at
        note = folder(self.pair.two, talk, path) / f"{path.name}.part.at"

        def counted(count: int) -> None:
            self.went[path.name] = self.went.get(path.name, 0) + count
            sent(count)
            if breaks and self.sure:
                talk.flush()
                deadline = time.monotonic() + 120
                while self.went[path.name] >= 4 * MIB and not transfer._noted(note)[1] and time.monotonic() < deadline:
                    time.sleep(0.01)
                if transfer._noted(note)[1]:
                    self._break()

        if breaks and not self.sure:
            self._break()
        return int(self._whole(talk, path, offset, counted, *rate))

    def _break(self) -> None:
        self.at = ""
        raise self.error

    def broken(self, kind: str, at: str, sure: bool = False) -> None:
        """An attempt that gets as far as to the file *at*, and gives the server back; after it nothing is counted."""
        self.at, self.sure = at, sure
        with pytest.raises(MagnetarError, match="The link broke"):
            self.pair.migrate(type=kind)
        assert not self.at
        self.went.clear()


def folder(host: Any, _talk: object, path: Path) -> Path:
    """Where a server's file is at *host*."""
    return Path(host.agent.host.settings.state_dir) / "servers" / path.parent.name


@pytest.fixture
def way(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Way:
    """See ``Way``; small files count as much as large ones."""
    monkeypatch.setattr(transfer, "SURE", 2 * MIB)
    pair.image("system")
    return Way(monkeypatch, pair)


def content(pair: Pair, id: str, host: Any = None) -> dict[str, bytes]:
    """All files of the server but notes."""
    place = (host or pair.one).agent.host.settings.state_dir / "servers" / id
    return {path.name: path.read_bytes() for path in place.iterdir() if path.suffix not in (".part", ".at")}


def power(pair: Pair, wanted: str) -> None:
    """Start or stop it at the source."""
    pair.one.side().client.ensure("server", "web1", {"power": wanted})


# What changed ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["disk", "disk.ephemeral"])
def test_what_the_guest_wrote_since_goes_along(pair: Pair, way: Way, name: str) -> None:
    id = pair.make(image="system", flavor=FLAVOR)
    place = pair.one.agent.host.settings.state_dir / "servers" / id
    way.broken("cold", "base")
    assert name in content(pair, id, pair.two)
    assert pair.one.runs(id)
    with (place / name).open("r+b") as disk:  # as many bytes as before
        disk.seek(-7, os.SEEK_END)
        disk.write(b"pattern" if name == "disk" else b"written")
        disk.seek(100)
        disk.write(b"NEW")
    before = content(pair, id)
    pair.migrate(type="cold")
    pair.check(id, pair.two)
    assert content(pair, id, pair.two) == before


def test_a_guest_that_ran_has_other_disks_whatever_their_times_say(
        pair: Pair, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "file_state", lambda path, migration, run: f"{path.name} {migration} {run}")
    pair.make(image="system")
    way.broken("cold", "base")
    pair.migrate(type="cold")
    assert way.went["disk"]


def test_a_server_that_was_off_and_is_started_and_stopped_since(pair: Pair, way: Way) -> None:
    id = pair.make(image="system", power="off")
    way.broken("cold", "base")
    power(pair, "running")
    with (pair.one.agent.host.settings.state_dir / "servers" / id / "disk").open("r+b") as disk:
        disk.write(b"NEW")
    power(pair, "off")
    before = content(pair, id)
    pair.migrate()
    pair.check(id, pair.two, runs=False)
    assert content(pair, id, pair.two) == before


@pytest.mark.parametrize("running", [False, True])
def test_a_disk_that_was_half_there_is_not_mixed_with_another(pair: Pair, way: Way, running: bool) -> None:
    id = pair.make(power="running" if running else "off")
    disk = pair.one.agent.host.settings.state_dir / "servers" / id / "disk"
    with disk.open("ab") as file:
        file.write(os.urandom(8 * MIB) + b"pattern" * 1000)
    way.broken("cold", "disk", sure=True)
    with disk.open("r+b") as file:
        file.seek(MIB)
        file.write(b"NEW")
    before = content(pair, id)
    pair.migrate(type="cold")
    pair.check(id, pair.two, runs=running)
    assert content(pair, id, pair.two) == before


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_a_server_that_was_rebuilt_since(pair: Pair, way: Way, kind: str) -> None:
    pair.image("other")
    id = pair.make(image="system", config_drive=True)
    way.broken(kind, "base")
    assert "config.iso" in content(pair, id, pair.two)
    old = content(pair, id)
    pair.one.side().client.ensure("server", "web1", {"image": "other", "user_data": "b3RoZXI="},
                                  on_immutable="rebuild")
    with (pair.one.agent.host.settings.state_dir / "servers" / id / "disk").open("ab") as disk:
        disk.write(b"pattern" * 1000)
    new = content(pair, id)
    assert all(old[name] != new[name] for name in ("config.iso", "base"))
    pair.migrate(type=kind)
    pair.check(id, pair.two)
    assert content(pair, id, pair.two) == new


def test_a_rebuilt_server_whose_image_was_there_already(pair: Pair, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """``base`` had come whole when the attempt broke, in the part that libvirt does."""
    pair.image("other")
    id = pair.make(image="system")
    pair.one.fake.fail_next("migrate", HypervisorError("The link broke."))
    way.broken("live", "")
    pair.one.side().client.ensure("server", "web1", {"image": "other"}, on_immutable="rebuild")
    with (pair.one.agent.host.settings.state_dir / "servers" / id / "disk").open("ab") as disk:
        disk.write(b"pattern" * 1000)
    before = content(pair, id)
    pair.migrate(type="live")
    pair.check(id, pair.two)
    assert content(pair, id, pair.two) == before


def test_a_disk_that_the_server_has_no_more(pair: Pair, way: Way) -> None:
    id = pair.make(image="system", power="off")
    way.broken("cold", "base")
    place = pair.two.agent.host.settings.state_dir / "servers" / id
    for name in ("disk.rescue", "disk.swap.part", "disk.swap.part.at"):
        (place / name).write_text("of before")
    pair.migrate()
    assert sorted(path.name for path in place.iterdir()) == ["base", "config.iso", "console.log", "disk"]


# What did not -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "runs"), [("live", True), ("cold", True), ("cold", False)])
def test_what_is_the_same_is_not_sent_again(pair: Pair, way: Way, kind: str, runs: bool) -> None:
    id = pair.make(image="system", config_drive=True, power="running" if runs else "off")
    way.broken(kind, "base")
    pair.image("another")  # links to the image's content come and go
    before = content(pair, id)
    pair.migrate(type=kind)
    pair.check(id, pair.two, runs)
    assert content(pair, id, pair.two) == before
    assert set(way.went) == ({"base", "disk"} if kind == "cold" and runs else {"base"})


def test_a_base_that_is_there_is_not_sent_again_when_the_image_goes(pair: Pair, way: Way) -> None:
    id = pair.make(image="system")
    pair.one.fake.fail_next("migrate", HypervisorError("The link broke."))
    way.broken("live", "")
    pair.one.side().client.delete("image", "system")
    pair.migrate(type="live")
    pair.check(id, pair.two)
    assert not way.went


def test_a_disk_that_broke_off_goes_on(pair: Pair, way: Way) -> None:
    id = pair.make(power="off")
    with (pair.one.agent.host.settings.state_dir / "servers" / id / "disk").open("ab") as file:
        file.write(os.urandom(8 * MIB) + b"pattern" * 1000)
    before = content(pair, id)
    way.broken("cold", "disk", sure=True)
    pair.migrate()
    pair.check(id, pair.two, runs=False)
    assert content(pair, id, pair.two) == before
    assert 0 < way.went["disk"] <= len(before["disk"]) - 2 * MIB


def test_an_agent_that_died_goes_on_with_the_same_disks(pair: Pair, way: Way) -> None:
    """The guest that it had stopped was not started meanwhile."""
    id = pair.make(image="system")
    before = content(pair, id)
    way.at, way.error = "base", Died()
    deadline = time.monotonic() + 120
    while way.at and time.monotonic() < deadline:  # a coordinator that waits briefly may go before
        with suppress(MagnetarError):
            list(Migrate(brief(pair.one), brief(pair.two), "web1", {"type": "cold"}).steps())
    assert not way.at and not pair.one.runs(id)
    sent = way.went["disk"]
    pair.one.restart()
    quiet(pair)
    pair.migrate(type="cold")
    pair.check(id, pair.two)
    assert content(pair, id, pair.two) == before
    assert way.went["disk"] == sent


# A limit of time -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("then", "ends"), [("abort", True), ("pause", False), ("post_copy", False)])
def test_a_limit_of_time_ends_a_cold_one_only_with_abort(
        pair: Pair, way: Way, monkeypatch: pytest.MonkeyPatch, then: str, ends: bool) -> None:
    """A guest that is off can do nothing else."""
    id = pair.make(image="system")
    before = content(pair, id)
    with monkeypatch.context() as slow:
        clock = itertools.count(0, 1000)
        slow.setattr(source, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        if ends:
            with pytest.raises(TimedOut, match="time_limit of 600 s; the server stays where it is"):
                pair.migrate(type="cold", time_limit=600, on_time_limit=then)
            assert pair.one.runs(id) and not pair.two.knows(id)
        else:
            pair.migrate(type="cold", time_limit=600, on_time_limit=then)
    pair.migrate(type="cold")
    pair.check(id, pair.two)
    assert content(pair, id, pair.two) == before


# Agents of two versions --------------------------------------------------------------------------------------------
def test_an_older_target_gets_everything(pair: Pair, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes by names, and says that all of it is there."""
    id = pair.make(image="system", power="off")
    way.broken("cold", "base")
    begin = target.OPS["begin"]

    def older(agent: Any, document: Any, talk: Rpc, line: dict[str, Any]) -> dict[str, Any]:
        answer = begin(agent, document, talk, line)
        del answer["kept"]
        return {**answer, "have": dict.fromkeys(line["files"])}

    monkeypatch.setattr(target, "OPS", {**target.OPS, "begin": older})
    before = content(pair, id)
    pair.migrate()
    assert set(way.went) == {"base", "config.iso", "disk"}
    assert content(pair, id, pair.two) == before


def test_an_older_source_sends_everything(pair: Pair, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says no states, and goes by what the target has of each name."""
    id = pair.make(image="system", power="off")
    way.broken("cold", "base")
    say, ask = Rpc.send, Rpc.call

    def older_say(talk: Rpc, line: dict[str, Any]) -> None:
        say(talk, {key: value for key, value in line.items() if key not in ("states", "state")})

    def older_ask(talk: Rpc, op: str, **line: Any) -> dict[str, Any]:
        answer = ask(talk, op, **line)
        return {**answer, "kept": answer["have"]} if op == "begin" else answer

    monkeypatch.setattr(Rpc, "send", older_say)
    monkeypatch.setattr(Rpc, "call", older_ask)
    before = content(pair, id)
    pair.migrate()
    assert set(way.went) == {"base", "config.iso", "disk"}
    assert content(pair, id, pair.two) == before


# The state of a file ------------------------------------------------------------------------------------------------
def test_what_makes_another_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, base = tmp_path / "disk", tmp_path / "base"
    for path in (disk, base):
        path.write_bytes(b"one")
    first = [source.file_state(path, "m", "run") for path in (disk, base)]
    assert [source.file_state(path, "m", "run") for path in (disk, base)] == first
    assert [source.file_state(path, "m", "later") == old for path, old in zip((disk, base), first, strict=True)] == [
        False, True]
    os.link(base, tmp_path / "image")
    assert source.file_state(base, "m", "run") == first[1]
    assert source.file_state(base, "another", "run") != first[1]
    with monkeypatch.context() as patched:
        patched.setattr(source, "boot_id", lambda: "another")
        assert [source.file_state(path, "m", "run") == old for path, old in zip((disk, base), first, strict=True)] == [
            False, True]
    seen = base.stat()
    (tmp_path / "new").write_bytes(b"two")
    os.utime(tmp_path / "new", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    (tmp_path / "new").rename(base)
    assert source.file_state(base, "m", "run") != first[1]


def test_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before the first look took no time, and while nothing comes there is no estimate."""
    clock = iter([100.0, 130.0, 131.0, 132.0])
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    flow = source.Throughput()
    assert [flow.seconds_left(done, 1000 - done) for done in (500, 500, 600, 700)] == [None, None, 4, 3]
