# SPDX-License-Identifier: GPL-3.0-or-later
"""Which conductors a cell has."""

from sqlalchemy import select, update

from magnetar_control.store.engine.tables import conductors
from magnetar_control.store.hosts import conductors as noun


def rows(database):
    with database.read() as connection:
        return connection.execute(select(conductors).order_by(conductors.c.holder)).all()


def test_a_conductor_is_seen_until_it_ends(database):
    noun.write_conductor_heartbeat(database, "a:1", "a")
    (first,) = rows(database)
    noun.write_conductor_heartbeat(database, "a:1", "a")
    (again,) = rows(database)
    assert again.started_at == first.started_at
    assert again.seen_at > first.seen_at
    noun.remove_conductor_row(database, "a:1")
    assert rows(database) == []


def test_two_of_one_name_are_two_and_shown_as_one(database):
    noun.write_conductor_heartbeat(database, "a:1", "a")
    noun.write_conductor_heartbeat(database, "a:2", "a")
    noun.write_conductor_heartbeat(database, "b:3", "b")
    assert [row.holder for row in rows(database)] == ["a:1", "a:2", "b:3"]
    with database.read() as connection:
        assert [row.name for row in noun.fetch_conductor_rows(connection)] == ["a", "b"]


def test_the_row_of_one_that_was_killed_goes_when_it_is_started_again(database):
    noun.write_conductor_heartbeat(database, "a:1", "a")
    noun.write_conductor_heartbeat(database, "b:1", "b")
    with database.write() as connection:
        connection.execute(update(conductors).values(seen_at=database.clock(-noun.FORGOTTEN - 1)))
    noun.write_conductor_heartbeat(database, "a:2", "a")
    assert [row.holder for row in rows(database)] == ["a:2", "b:1"]
    with database.write() as connection:
        assert noun.remove_conductors_named(connection, "b") == 1
    assert [row.holder for row in rows(database)] == ["a:2"]
