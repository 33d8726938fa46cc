# SPDX-License-Identifier: GPL-3.0-or-later
"""The console's logs of a server that moves, on fake hosts: also those that virtlogd starts anew meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.migrations import console_logs
from magnetar_core.errors import HypervisorError
from tests.support.agent.pair import Pair

BACKUPS = 3


def rotate(place: Path) -> None:
    """As virtlogd does it: the oldest goes, each other gets the next number, and a new one begins."""
    (place / f"console.log.{BACKUPS - 1}").unlink(missing_ok=True)
    for number in range(BACKUPS - 2, -1, -1):
        if (place / f"console.log.{number}").exists():
            (place / f"console.log.{number}").rename(place / f"console.log.{number + 1}")
    (place / "console.log").rename(place / "console.log.0")
    (place / "console.log").touch()


def write(place: Path, text: str) -> None:
    """The guest says something."""
    with (place / "console.log").open("a") as log:
        log.write(text)


def read(place: Path) -> dict[str, str]:
    """All logs."""
    return {path.name: path.read_text() for path in place.glob("console.log*")}


@pytest.fixture
def places(pair: Pair) -> tuple[Path, Path]:
    """The folders of a server that has logged much, on both hosts."""
    id = pair.make()
    here, there = (host.agent.host.settings.state_dir / "servers" / id for host in (pair.one, pair.two))
    for number in range(2):
        rotate(here)
        write(here, f"{number}\n")
    return here, there


def during(pair: Pair, act: Callable[[], None]) -> None:
    """Do *act* while libvirt copies."""
    whole = pair.one.fake.migrate

    def migrate(*given: Any) -> None:
        act()
        whole(*given)

    pair.one.fake.migrate = migrate  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["live", "cold"])
def test_all_logs_go(pair: Pair, places: tuple[Path, Path], kind: str) -> None:
    before = read(places[0])
    assert before == {"console.log": "1\n", "console.log.0": "0\n", "console.log.1": "boot\n"}
    pair.migrate(type=kind)
    assert read(places[1]) == before


@pytest.mark.parametrize("times", range(BACKUPS + 2))
def test_logs_that_are_rotated_meanwhile(pair: Pair, places: tuple[Path, Path], times: int) -> None:
    """All that is there when the guest ends; it is in one file, in its order."""
    def logged() -> None:
        write(places[0], "last of it\n")
        for number in range(times):
            rotate(places[0])
            write(places[0], f"new {number}\n")

    during(pair, logged)
    pair.migrate(type="live")
    kept = [f"new {number}\n" for number in range(times)][-BACKUPS - 1:]
    assert read(places[1]) == {"console.log": "".join(["1\n", "last of it\n", *kept]), "console.log.0": "0\n",
                               "console.log.1": "boot\n"}


def test_what_an_attempt_left_is_not_doubled(pair: Pair, places: tuple[Path, Path]) -> None:
    pair.one.fake.fail_next("migrate", HypervisorError("no."))
    with pytest.raises(HypervisorError):
        pair.migrate(type="live")
    rotate(places[0])
    before = read(places[0])
    pair.migrate(type="live")
    assert read(places[1]) == before


def test_a_server_without_a_log(pair: Pair) -> None:
    id = pair.make()
    here, there = (host.agent.host.settings.state_dir / "servers" / id for host in (pair.one, pair.two))
    (here / "console.log").unlink()
    during(pair, lambda: write(here, "first\n"))
    pair.migrate(type="live")
    assert read(there) == {"console.log": "first\n"}


def test_logs_that_change_their_names_while_they_are_looked_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is found once."""
    write(tmp_path, "old\n")
    rotate(tmp_path)
    write(tmp_path, "new\n")
    found = console_logs.Logs(tmp_path)
    whole, names = found._opened, []

    def opened(path: Path) -> int | None:
        log = whole(path)
        if not names:
            rotate(tmp_path)
        names.append(path.name)
        return log

    monkeypatch.setattr(found, "_opened", opened)
    texts = [Path(f"/proc/self/fd/{log}").read_text() for log in found._open_log_files()]
    found.close()
    assert texts == ["new\n", "old\n"] and not found._open
