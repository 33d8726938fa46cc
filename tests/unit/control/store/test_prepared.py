# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepared queries give the rows that SQLAlchemy gives, on both engines."""

import pytest
from sqlalchemy import bindparam, column, event, insert, select, table
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.database import OPEN, utc_now
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.tables import flavors
from magnetar_control.store.servers.servers import live_server_query

ALL = PreparedQuery(select(flavors).where(flavors.c.ram >= bindparam("ram")).order_by(flavors.c.id).limit(
    bindparam("most")))
SIZES = [{"id": str(number), "name": f"size {number} %", "vcpus": 1, "ram": number, "rxtx_factor": 1.5,
          "is_public": number != 2, "description": None if number == 3 else "é", "created_at": utc_now()}
         for number in (1, 2, 3)]


@pytest.fixture
def filled(database):
    with database.write() as connection:
        connection.execute(insert(flavors), SIZES)
    return database


def test_rows_are_the_same_as_sqlalchemys(filled):
    with filled.read() as connection:
        rows = ALL.all(connection, {"ram": 2, "most": 10})
        expected = connection.execute(ALL.query, {"ram": 2, "most": 10}).all()
    assert [dict(row._mapping) for row in rows] == [dict(row._mapping) for row in expected]
    assert [[type(value) for value in row] for row in rows] == [[type(value) for value in row] for row in expected]
    assert [(row.id, row.is_public, row.description) for row in rows] == [("2", False, "é"), ("3", True, None)]


def test_an_unused_parameter_is_ignored(filled):
    with filled.read() as connection:
        row = ALL.first(connection, {"ram": 3, "most": 1, "project": "p"})
        assert row is not None and row.name == "size 3 %"
        assert ALL.first(connection, {"ram": 4, "most": 1}) is None


def test_it_reads_within_a_transaction(filled):
    with filled.write() as connection:
        connection.execute(insert(flavors), {**SIZES[0], "id": "4", "name": "new", "ram": 4})
        assert [row.name for row in ALL.all(connection, {"ram": 4, "most": 10})] == ["new"]


def test_listeners_hear_of_the_statement(filled):
    heard = []

    def note(*given):
        heard.append(given[2])

    event.listen(filled.reading, "before_cursor_execute", note)
    try:
        with filled.read() as connection:
            assert len(ALL.all(connection, {"ram": 1, "most": 2})) == 2
    finally:
        event.remove(filled.reading, "before_cursor_execute", note)
    assert len(heard) == 1 and "FROM flavors" in heard[0]


def test_a_refused_statement_raises_sqlalchemys_error(database):
    query = PreparedQuery(select(column("id")).select_from(table("missing")))
    with pytest.raises(DBAPIError), database.read() as connection:
        query.all(connection, {})
    with database.read() as connection:
        assert ALL.all(connection, {"ram": 1, "most": 1}) == []


def test_a_list_of_values_is_refused(database):
    query = PreparedQuery(select(flavors).where(flavors.c.id.in_(bindparam("ids", expanding=True))))
    with pytest.raises(ValueError, match="SQLAlchemy must convert"), database.read() as connection:
        query.all(connection, {"ids": ["1"]})


@pytest.mark.parametrize("ids", [["1"], ["3", "1"], []])
def test_a_list_of_values_that_are_known(filled, ids):
    query = PreparedQuery(ALL.query.where(flavors.c.id.in_(ids), flavors.c.is_public.is_(True)), {"ram": 1, "most": 10})
    with filled.read() as connection:
        assert [row.id for row in query.all(connection, {"ram": 1, "most": 10})] == sorted(ids)


def test_a_server_that_is_not_there(database):
    with database.read() as connection:
        assert live_server_query(frozenset(("name",))).first(connection, {"id": "s"}) is None


def test_few_connections_stay_open(database):
    """They are closed with the database."""
    def read(depth):
        with database.read() as connection:
            assert ALL.all(connection, {"ram": 1, "most": 1}) == []
            if depth:
                read(depth - 1)

    read(OPEN + 2)
    assert database.reading.pool.checkedout() == OPEN
    database.close()
    assert database.reading.pool.checkedout() == 0
