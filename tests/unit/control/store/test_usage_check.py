# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor corrects counted quota usage, a few projects at a time."""

import threading
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, insert, select, update

from magnetar_control.conductor.periodic import usage_check
from magnetar_control.store.accounts.quota_usage import find_wrong_usage
from magnetar_control.store.engine.tables import quota_usage, servers
from tests.support.control.quota_rows import usage_row


@pytest.fixture
def check(database):
    """The check of a conductor whose cell is also cell0."""
    store = SimpleNamespace(cell=lambda _id: database)
    return usage_check.UsageCheck(SimpleNamespace(database=database, store=store, over=threading.Event()))


def test_all_projects_are_checked_in_turn(check, database, monkeypatch, caplog):
    """Two projects a look, as there are two databases to look at; after the last it begins again."""
    monkeypatch.setattr(usage_check, "SERVERS", 1)
    projects = ["red", "blue", "green", "black"]
    with database.write() as connection:
        connection.execute(insert(servers), [usage_row(project) for project in projects])
        connection.execute(insert(servers), usage_row("white"))
        connection.execute(delete(servers).where(servers.c.project_id == "white"))
    assert [check.check_next() for _time in range(4)] == [[]] * 4
    with database.read() as connection:
        assert sorted(connection.execute(select(quota_usage.c.project_id)).scalars()) == sorted(projects)
    with database.write() as connection:
        connection.execute(update(quota_usage).values(ram=7))
        assert len(find_wrong_usage(connection)) == 4
    corrected = [wrong for _time in range(4) for wrong in check.check_next()]
    assert sorted(wrong.project_id for wrong in corrected) == sorted(projects)
    assert "the usage of project red by user alice is counted as (1, 1, 7)" in caplog.text
    with database.read() as connection:
        assert find_wrong_usage(connection) == []
