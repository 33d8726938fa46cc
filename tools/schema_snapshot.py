# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a snapshot of a release's databases, for the test that upgrades them: the statements that create the
tables on SQLite and PostgreSQL, and a row of every table. A release writes it once.

    python -m tools.schema_snapshot
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Boolean, Column, Float, Integer, MetaData, Table, event

from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import API, CELL, TIME
from tools import postgres, release

FOLDER = release.ROOT / "tests/cases/schema"
#: Between two statements of a file.
NEXT = "\n-- next\n"
#: Words of statements that only some databases of PostgreSQL can execute (an extension).
OPTIONAL = ("gin_trgm_ops", "CREATE EXTENSION")
MOMENT = "2026-11-30 12:00:00.000000"
#: Values of columns that triggers or conditions read, by table and column.
VALUES: dict[tuple[str, str], Any] = {
    ("servers", "flavor"): '{"id": "1", "name": "small", "vcpus": 1, "ram": 512, "disk": 1}',
}


def recorded_statements(url: str, metadata: MetaData) -> list[str]:
    """Create the tables of *metadata* in the empty database at *url*, and return the SQL statements that created them.
    """
    statements: list[str] = []
    with closing(Database(url)) as database:
        @event.listens_for(database.engine, "before_cursor_execute")
        def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any) -> None:
            word = statement.lstrip().partition(" ")[0].upper()
            if word == "CREATE" and not any(text in statement for text in OPTIONAL):
                statements.append(statement.strip())
            elif word == "INSERT":  # the version, the only one
                [version] = parameters.values() if isinstance(parameters, dict) else parameters
                statements.append(f"{statement.partition('VALUES')[0]}VALUES ('{version}')")

        with database.write() as connection:
            schema.create_schema(connection, metadata)
    return statements


def sample_rows(metadata: MetaData) -> dict[str, dict[str, Any]]:
    """Return a row for each table of *metadata*, parents first. Foreign keys refer to the row of the other table."""
    rows: dict[str, dict[str, Any]] = {}
    for table in metadata.sorted_tables:
        rows[table.name] = {}
        for column in table.columns:
            rows[table.name][column.name] = _sample_value(table, column, rows)
    return rows


def _sample_value(table: Table, column: Column[Any], rows: dict[str, dict[str, Any]]) -> Any:
    """Return a value for *column* of *table*. A foreign key gets the value from the row of the other table in *rows*
    (by table), any other column a value that its type allows."""
    if (table.name, column.name) in VALUES:
        return VALUES[table.name, column.name]
    for key in column.foreign_keys:
        if key.column.table is table:
            return None
        return rows[key.column.table.name][key.column.name]
    if isinstance(column.type, JsonColumn):
        return "{}"
    if isinstance(column.type, Boolean):
        return False
    if isinstance(column.type, (Integer, Float)):
        return 1
    if column.name.endswith("_at") or column.type is TIME:
        return MOMENT
    return f"{table.name}.{column.name}"[:getattr(column.type, "length", None) or 40]


def write_snapshot(folder: Path) -> None:
    """Write statements and rows of both kinds of database to *folder*."""
    schema.add_services()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, postgres.postgres_cluster() as cluster:
        for metadata in (API, CELL):
            kind = schema.database_kind(metadata)
            with psycopg.connect(host=str(cluster), user=postgres.USER, dbname="postgres", autocommit=True) as made:
                made.execute(f"CREATE DATABASE {kind}")
            for engine, url in (("sqlite", f"sqlite:///{scratch}/{kind}.db"),
                                ("postgresql", postgres.postgres_url(cluster, kind))):
                text = NEXT.join(recorded_statements(url, metadata))
                (folder / f"{kind}.{engine}.sql").write_text(text + "\n", encoding="utf-8")
            (folder / f"{kind}.rows.json").write_text(json.dumps(sample_rows(metadata), indent=1) + "\n",
                                                      encoding="utf-8")


def main() -> int:
    """Run the command line; write the files of the version in galaxy.yml."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    folder = FOLDER / release.release_version()
    write_snapshot(folder)
    print(folder.relative_to(release.ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
