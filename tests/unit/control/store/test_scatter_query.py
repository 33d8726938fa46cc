# SPDX-License-Identifier: GPL-3.0-or-later
"""One prepared query to several cells, without a thread for each."""

from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import bindparam, column, func, insert, select, table
from sqlalchemy.exc import ProgrammingError

from magnetar_control.store import scatter_gather
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.tables import flavors
from magnetar_control.store.scatter_gather import scatter_query

NAMES = ("one", "two", "three")
ROWS = PreparedQuery(select(flavors.c.name).where(flavors.c.ram >= bindparam("ram")).order_by(flavors.c.id))
SLOW = PreparedQuery(select(func.pg_sleep(bindparam("seconds"))))
MISSING = PreparedQuery(select(column("id")).select_from(table("missing")))


@pytest.fixture
def cells(database):
    """Three cells with the same database."""
    with database.write() as connection:
        connection.execute(insert(flavors), [{"id": str(at), "name": f"size{at}", "vcpus": 1, "ram": at,
                                              "created_at": utc_now()} for at in range(3)])
    url = database.url.render_as_string(hide_password=False)
    databases = [Database(url, name) for name in NAMES]
    yield [(SimpleNamespace(id=database.name, name=database.name), database) for database in databases]
    for opened in databases:
        opened.close()


@pytest.fixture
def open_cells(postgres, cells):
    """The same on PostgreSQL, each with an open connection."""
    scatter_query(cells, lambda _kind: ROWS, {"ram": 0})
    return cells


@pytest.fixture
def database_kind():
    return "postgres"


def names(answers):
    return {cell: rows and [row.name for row in rows] for cell, rows in answers.items()}


def in_all(*rows):
    return {name: list(rows) for name in NAMES}


@pytest.fixture
def no_threads(monkeypatch, open_cells):
    """Fail where a thread would ask a cell."""
    monkeypatch.setattr(scatter_gather, "_ask", None)


@pytest.mark.parametrize("database_kind", ["sqlite", "postgres"])
def test_each_cell_gives_its_rows(cells):
    for _again in range(3):
        assert names(scatter_query(cells, lambda _kind: ROWS, {"ram": 1})) == in_all("size1", "size2")
    assert {len(database._open) for _cell, database in cells} == {1}


@pytest.mark.usefixtures("no_threads")
def test_open_connections_need_no_threads(open_cells):
    for ram in range(3):
        answers = scatter_query(open_cells, lambda _kind: ROWS, {"ram": ram})
        assert list(answers) == list(NAMES)
        assert names(answers) == in_all(*(f"size{at}" for at in range(ram, 3)))


def test_a_connection_that_was_cut_is_replaced(open_cells, cluster):
    with psycopg.connect(host=str(cluster), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'copy'")
    assert names(scatter_query(open_cells, lambda _kind: ROWS, {"ram": 2})) == in_all("size2")


@pytest.mark.usefixtures("no_threads")
def test_a_late_cell_is_none_and_its_connection_closed(open_cells):
    assert scatter_query(open_cells, lambda _kind: SLOW, {"seconds": 60.0}, 0.1) == dict.fromkeys(NAMES)
    assert {(database.breaker.hangs, len(database._open), database.reading.pool.checkedout())
            for _cell, database in open_cells} == {(True, 0, 0)}


def test_a_late_cell_delays_no_other_one(open_cells):
    """A database that hangs is asked in the background; its answer may come in time."""
    _cell, late = open_cells[0]
    late.breaker.late()
    late.breaker._tried = 0.0  # the next statement is tried
    answers = names(scatter_query(open_cells, lambda _kind: ROWS, {"ram": 2}))
    assert answers["two"] == answers["three"] == ["size2"]


@pytest.mark.usefixtures("no_threads")
def test_a_refused_statement_is_an_error(open_cells):
    with pytest.raises(ProgrammingError, match="missing"):
        scatter_query(open_cells, lambda _kind: MISSING, {})
    assert {database.reading.pool.checkedout() for _cell, database in open_cells} == {0}
