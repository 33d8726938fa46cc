# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads that are spared while a database is as it was: no commit is missed."""

from __future__ import annotations

import os
import time

from sqlalchemy import update

from magnetar_control.store.engine.database import ChangeCheck
from magnetar_control.store.engine.sqlite import commit_mark
from magnetar_control.store.engine.tables import host_states
from magnetar_control.store.hosts.host_leases import take_host_leases


def age(database, seconds=60):
    """Let the last write to the files be *seconds* old."""
    for name in (database.url.database, f"{database.url.database}-wal"):
        os.utime(name, (time.time() - seconds,) * 2)


def test_a_read_is_spared_only_while_nothing_was_committed(sqlite):
    take_host_leases(sqlite, "one", ["kvm1"])
    check = ChangeCheck(sqlite, 60.0)
    assert check.may_have_changed() and check.may_have_changed(), "a write a moment ago may not be readable yet"
    age(sqlite)
    assert check.may_have_changed() and not check.may_have_changed() and not check.may_have_changed()
    with sqlite.write() as connection:
        connection.execute(update(host_states).values(watcher="two"))
    assert check.may_have_changed() and check.may_have_changed()
    age(sqlite, 30)
    assert check.may_have_changed() and not check.may_have_changed()
    with sqlite.single() as connection:
        connection.execute(update(host_states).values(watcher="one"))
    assert check.may_have_changed()


def test_it_is_asked_again_after_some_time(sqlite):
    take_host_leases(sqlite, "one", ["kvm1"])
    age(sqlite)
    check = ChangeCheck(sqlite, 0.0)
    assert check.may_have_changed() and check.may_have_changed()


def test_a_database_without_files_may_always_have_changed(postgres, tmp_path):
    check = ChangeCheck(postgres, 60.0)
    assert check.may_have_changed() and check.may_have_changed()
    assert commit_mark(str(tmp_path / "none.db")) is None
