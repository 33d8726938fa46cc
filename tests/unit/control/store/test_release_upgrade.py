# SPDX-License-Identifier: GPL-3.0-or-later
"""A database of each earlier release, with a row in every table, becomes one of this release on both engines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import API, CELL
from tools import postgres
from tools.schema_snapshot import FOLDER, NEXT

RELEASES = sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []
#: Operations of a migration that a program of the previous release may not survive.
REMOVING = re.compile(r"\bop\.(drop_table|drop_column|rename_table)\b|\.drop_column\(|new_column_name=")
METADATA = {"api": API, "cell": CELL}
schema.add_services()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """An empty database of each engine in turn."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path}/old.db")
        yield database
        database.close()
        return
    cluster = request.getfixturevalue("cluster")
    with psycopg.connect(host=str(cluster), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE old")
        database = Database(postgres.postgres_url(cluster, "old"))
        yield database
        database.close()
        connection.execute("DROP DATABASE old WITH (FORCE)")


def fill(database, release, kind):
    """Make the tables of *release*, and insert its rows. Return the rows by table."""
    folder = FOLDER / release
    rows = json.loads((folder / f"{kind}.rows.json").read_text())
    with database.write() as connection:
        for statement in (folder / f"{kind}.{database.kind}.sql").read_text().split(NEXT):
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        for table, row in rows.items():
            names = ", ".join(f'"{name}"' for name in row)
            values = ", ".join(f":{name}" for name in row)
            connection.execute(text(f'INSERT INTO "{table}" ({names}) VALUES ({values})'), row)
    return rows


@pytest.mark.parametrize("kind", METADATA)
@pytest.mark.parametrize("release", RELEASES)
def test_a_database_of_a_release_is_upgraded_with_its_rows(empty, release, kind):
    rows, metadata = fill(empty, release, kind), METADATA[kind]
    schema.upgrade_schema(empty, metadata)
    assert not schema.upgrade_schema(empty, metadata)
    with empty.read() as connection:
        state = schema.read_schema_state(connection, "old", metadata)
        assert not state.mismatch() and state.version == state.newest
        context = MigrationContext.configure(connection, opts={
            "compare_type": True, "version_table": schema.version_table(kind), "include_object": schema.is_compared})
        assert compare_metadata(context, metadata) == []
        for name, row in rows.items():
            table = metadata.tables.get(name)
            if table is None:  # a later release has removed it
                continue
            kept = [column for column in row if column in table.columns]
            found = connection.execute(text(f'SELECT {", ".join(f"{chr(34)}{one}{chr(34)}" for one in kept)} '
                                            f'FROM "{name}"')).mappings().all()
            assert {one: row[one] for one in kept} in [dict(each) for each in found], name


@pytest.mark.parametrize("kind", METADATA)
def test_a_migration_removes_only_what_the_release_before_does_not_use(kind):
    """The previous release goes on while hosts are upgraded one by one, and may come back. A migration that removes
    something names the release that no longer uses it: ``UNUSED_SINCE``."""
    for path in sorted((schema.FOLDER / kind / "versions").glob("[0-9]*.py")):
        text = path.read_text()
        if path.name.startswith("0001_") or not REMOVING.search(text.partition("def downgrade")[0]):
            continue
        unused = re.search(r'^UNUSED_SINCE = "(.+)"$', text, re.MULTILINE)
        assert unused and unused[1] in RELEASES, f"{path.name}: see docs/contributing.md, \"Changing a table\""


def test_the_first_migration_is_not_changed_any_more():
    """It makes the tables of the first release, whatever the tables are now."""
    if RELEASES:
        for kind in METADATA:
            text = (schema.FOLDER / kind / "versions/0001_first.py").read_text()
            assert "create_tables" not in text and "magnetar_control" not in text


def test_each_file_is_there():
    for release in RELEASES:
        assert {path.name for path in Path(FOLDER / release).iterdir()} == {
            f"{kind}.{name}" for kind in METADATA for name in ("sqlite.sql", "postgresql.sql", "rows.json")}
