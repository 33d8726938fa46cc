# SPDX-License-Identifier: GPL-3.0-or-later
"""A commit to a SQLite file wakes the processes that wait for it; nothing is read meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_control.store.engine import file_watch
from magnetar_control.store.engine.database import WATCHED, Database
from magnetar_control.store.engine.file_watch import FileWatch
from tests.support.waiting import eventually

WRITE = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('INSERT INTO noted VALUES (1)'); c.commit()"


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/a.db")
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE noted (number INTEGER)")
    database.listen()
    database.listen()  # a second call does nothing
    yield database
    database.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions of the file that a watch has read."""
    read, versions = FileWatch._read_version, []

    def noting(self: FileWatch) -> int:
        versions.append(read(self))
        return versions[-1]

    monkeypatch.setattr(FileWatch, "_read_version", noting)
    return versions


def test_a_commit_of_another_process_is_heard(watching: Database) -> None:
    assert watching.signals.recheck_interval == WATCHED
    for _time in range(2):
        count = watching.signals.count("actions")
        subprocess.run([sys.executable, "-c", WRITE, str(watching.url.database)], check=True, timeout=300)
        eventually(lambda count=count: watching.signals.count("actions") > count)


def test_a_waiting_thread_is_woken_before_it_looks_again(watching: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.signals, "recheck_interval", 600.0)
    other = Database(str(watching.url))
    count = watching.signals.count("servers")
    woken = threading.Thread(target=watching.signals.wait, args=("servers", count))
    woken.start()
    with other.write() as connection:
        connection.exec_driver_sql("INSERT INTO noted VALUES (1)")
    woken.join(300)
    assert not woken.is_alive()
    other.close()


def test_names_that_only_the_own_process_rings_are_not_rung(watching: Database) -> None:
    watching.signals.wait_for_signal("volumes", 0, 0.01)
    count = watching.signals.count("actions")
    with watching.write() as connection:
        connection.exec_driver_sql("INSERT INTO noted VALUES (1)")
    eventually(lambda: watching.signals.count("actions") > count)
    assert watching.signals.count("volumes") == 0


def test_nothing_is_rung_for_what_is_not_committed_nor_read_at_rest(
        reads: list[int], watching: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "LATER", (0.001, 0.001, 0.001))
    eventually(lambda: len(reads) >= 4)  # since its begin
    with pytest.raises(ZeroDivisionError), watching.write() as connection:
        connection.exec_driver_sql("INSERT INTO noted VALUES (1)")
        1 / 0  # noqa: B018 - anything that fails
    count, at_rest = watching.signals.count("actions"), len(reads)
    with watching.read() as connection:
        connection.exec_driver_sql("SELECT * FROM noted").all()
    with watching.write() as connection:  # changes nothing
        connection.exec_driver_sql("UPDATE noted SET number = 2 WHERE number = 1")
    watching._listener.join(0.3)
    assert (watching.signals.count("actions"), len(reads)) == (count, at_rest)


def test_without_a_watch_the_tables_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(file_watch, "_report_writes", full)
    database = Database(f"sqlite:///{tmp_path}/a.db")
    database.listen()
    assert database._listener is None and database.signals.recheck_interval == 0.05
    database.close()
