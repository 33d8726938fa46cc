# SPDX-License-Identifier: GPL-3.0-or-later
"""A database gets exactly the tables, at once or by migrations, on both engines, whoever does it at the same time."""

from __future__ import annotations

import dataclasses
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import insert, inspect, select, text

from magnetar_control import services
from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema_check import SchemaMismatch
from magnetar_control.store.engine.tables import API, CELL, cells
from tools import postgres as server

for found in pkgutil.walk_packages(services.__path__, "magnetar_control.services."):
    if found.name.endswith(".tables"):
        import_module(found.name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """The URL of an empty database of each engine in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
        return
    cluster = request.getfixturevalue("cluster")
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
        yield server.postgres_url(cluster, "empty")
        connection.execute("DROP DATABASE empty WITH (FORCE)")


@pytest.fixture
def empty(url):
    database = Database(url)
    yield database
    database.close()


@pytest.mark.parametrize("by", [schema.create_schema, schema.run_schema_migrations], ids=["at once", "by migrations"])
@pytest.mark.parametrize("metadata", [API, CELL], ids=["api", "cell"])
def test_the_tables_are_made(empty, metadata, by):
    """When this fails the tables have changed: see docs/contributing.md, "Changing a table"."""
    with empty.write() as connection:
        by(connection, metadata)
    assert not schema.upgrade_schema(empty, metadata)
    kind = schema.database_kind(metadata)
    with empty.read() as connection:
        context = MigrationContext.configure(connection, opts={
            "compare_type": True, "version_table": schema.version_table(kind), "include_object": schema.is_compared})
        assert compare_metadata(context, metadata) == []
        assert schema.fetch_schema_version(connection, kind) == schema.latest_schema_version(kind)


def test_an_upgrade_changes_nothing_when_there_is_nothing_to_do(empty):
    schema.upgrade_schema(empty, API)
    with empty.write() as connection:
        connection.execute(insert(cells).values(id="c", name="cell1", database_url="x", created_at="now"))
    assert not schema.upgrade_schema(empty, API)
    with empty.read() as connection:
        assert connection.execute(select(cells.c.name)).scalars().all() == ["cell1"]


def test_both_kinds_fit_into_one_database(empty):
    assert schema.upgrade_schema(empty, API)
    assert schema.upgrade_schema(empty, CELL)
    assert {"cells", "servers", "alembic_version_api", "alembic_version_cell"} <= set(
        inspect(empty.engine).get_table_names())


def test_many_upgrade_at_once(empty, url):
    databases = [Database(url) for _number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(lambda one: schema.upgrade_schema(one, CELL), databases)) == [False, False, False,
                                                                                                True]
    for one in databases:
        one.close()


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(empty, monkeypatch):
    def broken(*_given, **_options):
        raise RuntimeError("broken")

    monkeypatch.setattr("sqlalchemy.sql.ddl.CreateIndex.__init__", broken)
    with pytest.raises(RuntimeError, match="broken"):
        schema.upgrade_schema(empty, CELL)
    assert inspect(empty.engine).get_table_names() == []


def change(database, *statements):
    with database.write() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize(("metadata", "statements", "message"), [
    (API, ["DROP TABLE pool_hosts"], r"says that its tables have version 0002, but lacks pool_hosts: a version before"),
    (CELL, ["ALTER TABLE actions DROP COLUMN attempts"], r"lacks actions\.attempts"),
    (CELL, ["DROP TABLE alembic_version_cell"], r"no version of them: an upgrade was not completed"),
    (CELL, ["DELETE FROM alembic_version_cell"], r"no version of them: an upgrade was not completed"),
    (CELL, ["UPDATE alembic_version_cell SET version_num = 'a1b2c3'"], r"version 'a1b2c3', which no release has"),
    (API, ["UPDATE alembic_version_api SET version_num = '0999'", "DROP TABLE pool_hosts"],
     r"version 0999 of a newer release, and lacks pool_hosts; this release needs version 0002\. Run the newer"),
])
def test_a_database_that_cannot_be_used_is_refused_by_name(empty, metadata, statements, message):
    schema.upgrade_schema(empty, metadata)
    change(empty, *statements)
    before = sorted(inspect(empty.engine).get_table_names())
    with pytest.raises(SchemaMismatch, match=f"(?s)The database .* {message}"):
        schema.upgrade_schema(empty, metadata)
    assert sorted(inspect(empty.engine).get_table_names()) == before


@pytest.mark.parametrize("metadata", [API, CELL], ids=["api", "cell"])
def test_what_a_newer_release_has_only_added_to_is_used(empty, metadata):
    """So that a release that fails its verification can be rolled back."""
    schema.upgrade_schema(empty, metadata)
    kind = schema.database_kind(metadata)
    change(empty, f"UPDATE alembic_version_{kind} SET version_num = '0999'",
           f"ALTER TABLE {'cells' if metadata is API else 'servers'} ADD COLUMN later text",
           "CREATE TABLE later (id text)")
    assert not schema.upgrade_schema(empty, metadata)
    with empty.read() as connection:
        assert schema.fetch_schema_version(connection, kind) == "0999"


def test_many_lacking_names_are_counted(empty):
    schema.upgrade_schema(empty, CELL)
    with empty.read() as connection:
        state = schema.read_schema_state(connection, "cell1", CELL)
    assert not state.mismatch() and not state.lacking and state.present == len(CELL.tables)
    lacking = dataclasses.replace(state, lacking=tuple("abcdefgh")).mismatch()
    assert "lacks a, b, c, d, e and 3 more:" in lacking
