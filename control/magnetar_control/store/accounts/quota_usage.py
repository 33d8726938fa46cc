# SPDX-License-Identifier: GPL-3.0-or-later
"""The quota usage in a cell's database: counters kept by triggers (``store.engine.quota_triggers``), and their
comparison with the servers' rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, column, delete, text

from magnetar_control.store.engine.database import INSERT, Database, advisory_lock
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.quota_triggers import counted_condition, flavor_amount, staying_condition
from magnetar_control.store.engine.tables import quota_usage
from magnetar_control.store.scatter_gather import scatter_query
from magnetar_control.store.store import CellMapping

#: The counted amounts: the columns of ``quota_usage``.
COUNTED = ("instances", "cores", "ram")
_NEXT_PROJECT = text(
    "SELECT min(project_id) FROM (SELECT min(project_id) AS project_id FROM servers "
    "WHERE project_id > :after AND deleted_at IS NULL "
    "UNION ALL SELECT min(project_id) FROM quota_usage WHERE project_id > :after) AS projects")


class UsageComparison(NamedTuple):
    """The quota usage of a user in a project, as counted and as it should be. ``counted``: the stored counters.
    ``used``: the sums over the rows of servers. Both are (instances, cores, ram in MiB)."""

    project_id: str
    user_id: str
    counted: tuple[int, ...]
    used: tuple[int, ...]

    @property
    def differs(self) -> bool:
        """Return whether the stored counters differ from the sums over the servers."""
        return self.counted != self.used

    @property
    def is_empty(self) -> bool:
        """Return whether the user has no servers and all counters are zero, so that the row of the counters can be
        deleted."""
        return not any((*self.counted, *self.used))

    @property
    def text(self) -> str:
        """Return a sentence that describes the difference between the counters and the sums over the servers."""
        return (f"the usage of project {self.project_id} by user {self.user_id} is counted as {self.counted} "
                f"(instances, cores, ram), its servers use {self.used}")


class UsageRow(NamedTuple):
    """A part of a project's quota usage in a cell: either the sum over all servers that stay in the cell (then *id* is
    ``None``), or the usage of one server *id* that is moving to another cell. *leaving*: the cell that this server is
    moving to. *cell_moves*: how often this server has changed its cell. *ram*: MiB."""

    id: str | None
    leaving: str | None
    cell_moves: int | None
    instances: int
    cores: int
    ram: int


def fetch_quota_usage(connection: Connection, project: str, user: str | None = None) -> list[UsageRow]:
    """Return the quota usage of *project* in this cell, or only of the servers of *user*: one row with the sum, and one
    row for each server that is moving to another cell."""
    query = _usage_query(connection.dialect.name, user is not None)
    return list(map(UsageRow._make, query.all(connection, {"project": project, "user": user})))


def fetch_quota_usage_of_cells(cells: Sequence[tuple[CellMapping, Database]], project: str, user: str | None,
                               timeout: float) -> dict[str, list[UsageRow] | None]:
    """Return the quota usage of *project* in each of *cells*, or only of the servers of *user*: {cell: rows as from
    ``fetch_quota_usage``}. A cell that does not answer within *timeout* seconds has ``None``."""
    rows_by_cell = scatter_query(cells, lambda kind: _usage_query(kind, user is not None),
                                 {"project": project, "user": user}, timeout)
    return {id: None if rows is None else list(map(UsageRow._make, rows)) for id, rows in rows_by_cell.items()}


@cache
def _usage_query(kind: str, of_user: bool) -> PreparedQuery:
    """Return the prepared query of ``fetch_quota_usage``. *kind*: the database engine. *of_user*: whether the query is
    for one user of the project. The condition ``leaving > ''`` in the query lets the database use the small partial
    index of servers that leave the cell."""
    owned = "project_id = :project AND user_id = :user" if of_user else "project_id = :project"
    sums = ", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in COUNTED)
    vcpus, ram = (flavor_amount(kind, "servers", name) for name in ("vcpus", "ram"))
    return PreparedQuery(text(
        f"SELECT NULL AS id, NULL AS leaving, NULL AS cell_moves, {sums} FROM quota_usage WHERE {owned} "  # noqa: S608
        f"UNION ALL SELECT id, leaving, cell_moves, 1, {vcpus}, {ram} FROM servers "
        f"WHERE {owned} AND leaving > '' AND {counted_condition('servers')}").columns(
        *map(column, UsageRow._fields)))


def fetch_next_usage_project(connection: Connection, after: str = "") -> str | None:
    """Return the first project after *after*, in the database's sort order, that has servers or counted usage; ``None``
    if there is no further one. This is fast even with many servers, because it reads only two indexes."""
    project: str | None = connection.execute(_NEXT_PROJECT, {"after": after}).scalar()
    return project


def compare_quota_usage(connection: Connection, project: str) -> list[UsageComparison]:
    """Compare the counted quota usage of each user of *project* with the sums over the rows of servers. One SQL
    statement reads both, so that concurrent changes do not appear as differences."""
    rows = connection.execute(_comparison_statement(connection.dialect.name), {"project": project}).all()
    return [UsageComparison(project, row.user_id, tuple(map(int, row[1:4])), tuple(map(int, row[4:7]))) for row in rows]


@cache
def _comparison_statement(kind: str) -> TextClause:
    """Return the SQL statement of ``compare_quota_usage``, which is built once. *kind*: the database engine."""
    names = ", ".join(f"sum({name})" for name in ("counted_instances", "counted_cores", "counted_ram", *COUNTED))
    vcpus, ram = (flavor_amount(kind, "servers", name) for name in ("vcpus", "ram"))
    return text(
        f"SELECT user_id, {names} FROM (SELECT user_id, instances AS counted_instances, "  # noqa: S608 - our own words
        f"cores AS counted_cores, ram AS counted_ram, 0 AS instances, 0 AS cores, 0 AS ram FROM quota_usage "
        f"WHERE project_id = :project UNION ALL SELECT user_id, 0, 0, 0, 1, {vcpus}, {ram} FROM servers "
        f"WHERE project_id = :project AND {staying_condition('servers')}) AS amounts GROUP BY user_id ORDER BY user_id")


def repair_quota_usage(connection: Connection, project: str) -> list[UsageComparison]:
    """Correct the counted quota usage of *project*, and return the comparisons of users whose usage was wrong. Call
    this in a ``write`` transaction: concurrent repairs wait for each other.

    Concurrent changes of servers are harmless, because such a change affects counters and servers alike, and this
    function only adds the difference between them to the counters.
    """
    advisory_lock(connection, "quota usage", project)
    wrong = [comparison for comparison in compare_quota_usage(connection, project) if comparison.differs]
    for comparison in wrong:
        missing = [used - counted for used, counted in zip(comparison.used, comparison.counted, strict=True)]
        add = INSERT[connection.dialect.name](quota_usage).values(
            project_id=project, user_id=comparison.user_id, slot=0, **dict(zip(COUNTED, missing, strict=True)))
        connection.execute(add.on_conflict_do_update(
            index_elements=["project_id", "user_id", "slot"],
            set_={name: quota_usage.c[name] + add.excluded[name] for name in COUNTED}))
    return wrong


def remove_empty_usage(connection: Connection, project: str) -> None:
    """Delete the counters of the users of *project* (rows of ``quota_usage``) that are all zero."""
    connection.execute(delete(quota_usage).where(
        quota_usage.c.project_id == project, *(quota_usage.c[name] == 0 for name in COUNTED)))


def find_wrong_usage(connection: Connection) -> list[UsageComparison]:
    """Return a comparison for each user whose counted quota usage differs from the sums over the rows of servers. Reads
    all servers of the cell, one project at a time."""
    wrong: list[UsageComparison] = []
    project = fetch_next_usage_project(connection)
    while project is not None:
        wrong += [comparison for comparison in compare_quota_usage(connection, project) if comparison.differs]
        project = fetch_next_usage_project(connection, project)
    return wrong
