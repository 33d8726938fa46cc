# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading and writing have connections of their own, on both engines."""

import contextlib
import sqlite3
import threading

import psycopg
import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine import postgresql
from magnetar_control.store.engine.database import (
    Database,
    drop_null_columns,
    is_transient_error,
    parse_moment,
    utc_now,
)
from magnetar_control.store.engine.tables import flavors
from tests.support.waiting import eventually

BACKEND = text("SELECT pg_backend_pid()")
SMALL = {"id": "1", "name": "small", "vcpus": 1, "ram": 1}


def count(connection):
    return connection.execute(text("SELECT count(*) FROM flavors")).scalar_one()


def backend(database):
    with database.read() as connection:
        return connection.execute(BACKEND).scalar_one()


def test_each_statement_that_reads_sees_what_is_true_then(database):
    with database.read() as reading:
        assert count(reading) == 0
        with database.write() as connection:
            connection.execute(insert(flavors), {**SMALL, "created_at": utc_now()})
            assert count(connection) == 1
            assert count(reading) == 0
        assert count(reading) == 1


def test_what_fails_is_not_written(database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        connection.execute(insert(flavors), {**SMALL, "created_at": utc_now()})
        1 / 0  # noqa: B018 - anything that fails
    with database.read() as connection:
        assert count(connection) == 0


def test_a_file_that_another_process_writes_is_busy(tmp_path):
    """Which passes."""
    database = Database(f"sqlite:///{tmp_path}/a.db")
    with database.engine.connect() as connection:
        connection.connection.dbapi_connection.execute("PRAGMA busy_timeout=1")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DBAPIError, match="locked") as raised, database.write():
            pass
        assert is_transient_error(raised.value)
        other.execute("COMMIT")
    with database.write() as connection:
        connection.execute(text("CREATE TABLE one (two INTEGER)"))
    database.close()


def test_one_writes_at_a_time(tmp_path):
    database, inside, most = Database(f"sqlite:///{tmp_path}/a.db"), [], []

    def write():
        for _time in range(20):
            with database.write():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=write) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80
    database.close()


def test_columns_without_a_value_are_left_out():
    """Those that another row has stay: rows that are inserted together have the same columns."""
    assert drop_null_columns([{"id": 1, "host": None, "fault": None}, {"id": 2, "host": "a", "fault": None}]) == [
        {"id": 1, "host": None}, {"id": 2, "host": "a"}]


def test_who_reads_one_by_one_has_one_connection(postgres):
    assert len({backend(postgres) for _again in range(5)}) == 1
    with postgres.read() as one, postgres.read() as other:
        assert one.execute(BACKEND).scalar_one() != other.execute(BACKEND).scalar_one()
    assert postgres.reading.pool.checkedout() == 2  # for the next readers


def test_what_was_cut_is_made_anew(postgres, cluster):
    cut = backend(postgres)
    with psycopg.connect(host=str(cluster), user="postgres", dbname="postgres", autocommit=True) as connection:
        assert connection.execute("SELECT pg_terminate_backend(%s, 60000)", (cut,)).fetchone() == (True,)
    assert backend(postgres) != cut


def test_an_old_connection_is_replaced(postgres, monkeypatch):
    old = backend(postgres)
    monkeypatch.setattr(postgresql, "OLD", -1.0)
    assert backend(postgres) != old
    assert postgres.reading.pool.checkedout() == 1


def test_a_refused_statement_leaves_nothing_behind(postgres):
    with pytest.raises(DBAPIError), postgres.read() as connection:
        connection.execute(text("SELECT nothing FROM nowhere"))
    assert postgres.reading.pool.checkedout() == 0
    assert backend(postgres)


def test_an_error_tells_no_values(database):
    """It is logged, and passwords may be among them."""
    with pytest.raises(DBAPIError) as refused, database.write() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:password)"), {"password": "hunter2"})
    assert "INSERT" in str(refused.value) and "hunter2" not in str(refused.value)


def test_none_is_left_when_the_database_is_closed(database):
    with database.write() as writing, database.read() as reading:
        count(writing), count(reading)
    database.close()
    assert database.engine.pool.checkedin() == database.reading.pool.checkedin() == 0


def test_what_is_rung_is_heard_in_other_processes(postgres):
    """Here another ``Database`` of the same URL. Also what was rung last before the end."""
    other = Database(postgres.url.render_as_string(hide_password=False))
    other.listen()
    eventually(lambda: other.signals.count("actions"))  # rung once when it listens
    seen = other.signals.count("actions")
    with postgres.write() as connection:
        postgres.notify(connection, "actions")
        assert postgres.signals.count("actions") == 0
    assert postgres.signals.count("actions") == 1
    eventually(lambda: other.signals.count("actions") > seen)
    with postgres.write() as connection:
        postgres.notify(connection, "last")
    postgres.close()
    eventually(lambda: other.signals.count("last"))
    other.close()


def test_what_is_not_written_is_not_rung(database):
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        database.notify(connection, "actions")
        1 / 0  # noqa: B018 - anything that fails
    assert database.signals.count("actions") == 0


@pytest.mark.parametrize(("text", "kept"), [
    ("2026-06-01", "2026-06-01T00:00:00.000000"), ("2026-06-01T02:00+02:00", "2026-06-01T00:00:00.000000"),
    ("2026-06-01T00:00:00Z", "2026-06-01T00:00:00.000000")])
def test_moments(text, kept):
    assert parse_moment(text) == kept
    assert utc_now(-1) <= utc_now(0)


@pytest.mark.parametrize("text", ["soon", "0001-01-01T00:00+14:00"])
def test_what_is_no_moment(text):
    with pytest.raises(ValueError, match="isoformat|calendar"):
        parse_moment(text)
