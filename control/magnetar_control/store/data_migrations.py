# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations of data: rows that an earlier release wrote in another form are changed in small batches, while the cloud
runs. Migrations of tables add columns at once; what has to be written into them comes here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import Connection

from .engine.database import Database


class DataMigration(NamedTuple):
    """A migration of data. *kind*: of the databases, ``api`` or ``cell``. *needs*: the capability that all processes
    must know before rows may have the new form; "" for none. *count* returns how many rows have the old form. *migrate*
    changes at most so many rows, and returns how many it found and how many it changed; it may be repeated, and run in
    several processes at the same time."""

    name: str
    meaning: str
    kind: str
    needs: str
    count: Callable[[Connection], int]
    migrate: Callable[[Connection, int], tuple[int, int]]


def migrate_batch(database: Database, migration: DataMigration, most: int) -> tuple[int, int]:
    """Change at most *most* rows in one transaction. Return how many were found, and how many changed."""
    with database.write() as connection:
        return migration.migrate(connection, most)


def count_old_rows(database: Database, migration: DataMigration) -> int:
    """Return how many rows of *database* have the old form."""
    with database.read() as connection:
        return migration.count(connection)
