# SPDX-License-Identifier: GPL-3.0-or-later
"""``magnetar db migrate-data``: data migrations in batches, as ``nova-manage db online_data_migrations``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .command_parts import open_parts, print_table
from .upgrade_commands import require_current_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .data_migrations import BatchResult
#: Exit statuses, those of nova-manage.
DONE, PARTIAL, STUCK, INVALID = 0, 1, 2, 127


def add_data_command(command: Any, actions: Any) -> None:
    """Add the command ``migrate-data`` to *actions*, the argparse subparsers of the group ``db``. *command*: the
    function of ``cli`` that adds a command."""
    migrate = command(actions, "migrate-data", run_db_migrate_data,
                      "Migrate rows that an earlier release wrote in another form. Conductors do it slowly, too. "
                      "Status 0: nothing is left; 1: rows were migrated, and more may be left: run it again; 2: "
                      "nothing could be migrated, and an error or a process of an earlier release is the reason; 127: "
                      "a wrong argument.",
                      "magnetar db migrate-data\n  magnetar db migrate-data --max-count 1000")
    migrate.add_argument("--max-count", type=int, metavar="N", help="rows to migrate at most (default: all, in batches "
                         "of 50)")


def run_db_migrate_data(options: argparse.Namespace) -> int:
    """Run ``magnetar db migrate-data``: migrate old rows in batches, print the totals, and return the exit status."""
    from .data_migrations import BATCH, DataMigrator

    most = options.max_count
    if most is not None and most < 1:
        print(f"magnetar: --max-count: must be 1 or more (got {most}).", file=sys.stderr)
        return INVALID
    if most is None:
        print(f"Running batches of {BATCH} until complete")
    totals: dict[str, list[int]] = {}
    with open_parts(options) as parts:
        require_current_tables(parts)
        migrator = DataMigrator(parts.store, parts.known)
        while True:
            results = list(migrator.run_batch(most or BATCH))
            _report_batch(results, totals)
            migrated = sum(result.migrated for result in results)
            if most is not None or not migrated:
                break
    _print_totals(totals)
    if any(result.problem for result in results) and not migrated:
        return STUCK
    return PARTIAL if migrated else DONE


def _report_batch(results: Sequence[BatchResult], totals: dict[str, list[int]]) -> None:
    """Print a line for each result, and add its row counts to *totals*: [found, migrated] by name of the migration."""
    for result in results:
        name = result.migration.name
        if result.problem:
            print(f"magnetar: {name}: {result.problem}.", file=sys.stderr)
        if result.migrated or (result.found and not result.problem):
            print(f"{result.found} rows of {result.database} matched query {name}, {result.migrated} migrated")
            total = totals.setdefault(name, [0, 0])
            total[0] += result.found
            total[1] += result.migrated


def _print_totals(totals: dict[str, list[int]]) -> None:
    """Print a table of the rows found and migrated by each migration of this release. *totals*: [found, migrated] by
    name of the migration."""
    from .data_migrations import DATA_MIGRATIONS

    print_table(["Migration", "Total Needed", "Completed"], [
        [migration.name, *map(str, totals.get(migration.name, [0, 0]))] for migration in DATA_MIGRATIONS])
