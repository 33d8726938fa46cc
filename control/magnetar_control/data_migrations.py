# SPDX-License-Identifier: GPL-3.0-or-later
"""The data migrations of this release, and running them in batches: ``magnetar db migrate-data`` and conductors do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.services.volume.reimage_data import REIMAGE_MIGRATION
from magnetar_control.store.data_migrations import DataMigration, count_old_rows, migrate_batch
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts.capability_marks import KnownCapabilities
from magnetar_control.store.store import Store

#: All data migrations, in the order in which they run. A row is removed one release after the release that needs it.
DATA_MIGRATIONS: tuple[DataMigration, ...] = (REIMAGE_MIGRATION,)
#: Most rows that a batch changes.
BATCH = 50


class BatchResult(NamedTuple):
    """The result of one migration in one database. ``found``: number of rows that need the migration, at most the size
    of the batch. ``problem``: the reason why no rows could be migrated, otherwise ""."""

    migration: DataMigration
    database: str
    found: int = 0
    migrated: int = 0
    problem: str = ""


class DataMigrator:
    """A runner of the data migrations, which convert rows that earlier releases wrote. It migrates the rows of all
    databases of the cloud, or of given databases."""

    def __init__(self, store: Store, known: KnownCapabilities) -> None:
        self._store, self._known = store, known

    def databases(self) -> list[tuple[str, str, Database]]:
        """Return (kind, name, database) for each database of the cloud. The kind is ``api`` or ``cell``."""
        return [("api", "api", self._store.api),
                *(("cell", cell.name, database) for cell, database in self._store.databases())]

    def _migrations(self, databases: Sequence[tuple[str, str, Database]] | None = None
                    ) -> Iterator[tuple[DataMigration, str, Database]]:
        """Yield (migration, name of the database, database) for each migration and each database that it applies to.
        *databases*: (kind, name, database) of the databases to consider; by default all."""
        for kind, name, database in self.databases() if databases is None else databases:
            for migration in DATA_MIGRATIONS:
                if migration.kind == kind:
                    yield migration, name, database

    def run_batch(self, most: int, databases: Sequence[tuple[str, str, Database]] | None = None
                  ) -> Iterator[BatchResult]:
        """Migrate at most *most* rows in total. *databases*: (kind, name, database) of the databases to migrate; by
        default all. Yield a result for each migration and database with rows to migrate, or with an error."""
        for migration, name, database in self._migrations(databases):
            if most > 0:
                result = self._run(migration, name, database, most)
                if result.found or result.problem:
                    yield result
                most -= result.migrated

    def _run(self, migration: DataMigration, name: str, database: Database, most: int) -> BatchResult:
        try:
            count = count_old_rows(database, migration)
            if count and migration.needs and not self._known.all_processes_know(migration.needs):
                return BatchResult(migration, name, count, 0, f"{count} rows wait until all processes know "
                                   f"{migration.needs} (magnetar upgrade status) and hold_upgrade is false")
            found, migrated = migrate_batch(database, migration, most) if count else (0, 0)
        except DBAPIError as error:
            return BatchResult(migration, name, 0, 0, f"the database {name} refuses it: {str(error.orig).strip()}")
        return BatchResult(migration, name, found, migrated)

    def remaining(self) -> Iterator[BatchResult]:
        """Yield for each migration and database the number of rows that still need the migration, or the error that
        prevented counting them. Migrations without such rows are left out."""
        for migration, name, database in self._migrations():
            try:
                count, problem = count_old_rows(database, migration), ""
            except DBAPIError as error:
                count, problem = 0, str(error.orig).strip()
            if count or problem:
                yield BatchResult(migration, name, count, 0, problem)
