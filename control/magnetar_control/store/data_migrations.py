# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations of data: rows that an earlier release wrote in another form are changed in small batches, while the cloud
runs. Migrations of tables add columns at once; what has to be written into them comes here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection

from .engine.database import Database


class DataMigration(NamedTuple):
    """A change of existing rows to a new form, made in batches while the cloud runs.

    *kind*: the databases to change, ``api`` or ``cell``. *needs*: the name of a capability (a feature that older
    releases lack) that all processes must have before rows may have the new form; empty for none. *count* returns the
    number of rows in the old form. *migrate* changes at most the given number of rows, and returns (rows found, rows
    changed); *migrate* may be repeated, and several processes may run it at the same time.
    """

    name: str
    meaning: str
    kind: str
    needs: str
    count: Callable[[Connection], int]
    migrate: Callable[[Connection, int], tuple[int, int]]


def migrate_batch(database: Database, migration: DataMigration, most: int) -> tuple[int, int]:
    """Change at most *most* rows to the migration's new form, in one transaction. Return (rows found, rows changed)."""
    with database.write() as connection:
        return migration.migrate(connection, most)


def count_old_rows(database: Database, migration: DataMigration) -> int:
    """Return how many rows of *database* the migration must still change."""
    with database.read() as connection:
        return migration.count(connection)
