# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of the counted quota usage: a few projects at a time are compared with their servers, and corrected."""

from __future__ import annotations

import logging

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.accounts import quota_usage
from magnetar_control.store.accounts.quota_usage import UsageComparison
from magnetar_control.store.engine.database import Database
from magnetar_control.store.store import CELL0

log = logging.getLogger(__name__)
#: Seconds between two parts of the check; size of a part in servers; number of servers that a project counts as, for
#: its queries.
POLL_INTERVAL, SERVERS, PROJECT = 60.0, 2000, 20


class UsageCheck:
    """A check of the counts of quota usage that are stored in two databases: the database of the conductor's cell, and
    cell0. It remembers the last project that was compared in each database; the next run continues after this project.
    """

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._after: dict[str, str] = {}  # the last compared project, by database

    def check_next(self) -> list[UsageComparison]:
        """Compare the stored counts of quota usage with the real usage of the servers, and correct wrong counts. Each
        call checks a limited number of projects in the databases of the conductor's cell and of cell0. The next call
        continues after the last checked project. Return the comparisons that found wrong counts."""
        return [wrong for database in (self.conductor.database, self.conductor.store.cell(CELL0))
                for wrong in self._compare_some(database)]

    def _compare_some(self, database: Database) -> list[UsageComparison]:
        corrected: list[UsageComparison] = []
        compared = 0
        while compared < SERVERS and not self.conductor.over.is_set():
            with database.read() as connection:
                project = quota_usage.fetch_next_usage_project(connection, self._after.get(database.name, ""))
                comparisons = quota_usage.compare_quota_usage(connection, project) if project is not None else []
            if project is None:
                self._after.pop(database.name, None)
                break
            self._after[database.name] = project
            compared += PROJECT + sum(comparison.used[0] for comparison in comparisons)
            if any(comparison.differs for comparison in comparisons):
                with database.write() as connection:
                    corrected += quota_usage.repair_quota_usage(connection, project)
            if any(comparison.is_empty for comparison in comparisons):
                with database.write() as connection:
                    quota_usage.remove_empty_usage(connection, project)
        for comparison in corrected:
            log.warning("repaired: %s (cell %s)", comparison.text, database.name, extra={"cell": database.name})
        return corrected
