# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers that existed in a period: running, stopped, or deleted since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from magnetar_control.store.engine.conditions import keyset_condition
from magnetar_control.store.engine.database import Database, format_moment, insert_if_absent
from magnetar_control.store.engine.tables import servers, usage_audits
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import Store

from .server_candidates import GONE, LIVE, MOST, has_more_servers
from .server_row import ServerRow

COLUMNS = (servers.c.id, servers.c.project_id, servers.c.name, servers.c.vm_state, servers.c.flavor,
           servers.c.launched_at, servers.c.terminated_at, servers.c.leaving)
#: Project and uuid of the last server on the previous page.
After = tuple[str, str]
#: The most time by which the clocks of an API and of a conductor may differ: a server may seem to be launched this much
#: before it was created.
CLOCK_SKEW = timedelta(minutes=10)
#: The name of the row in ``usage_audits``.
EXISTS = "exists"


def fetch_servers_of_period(store: Store, begin: str, end: str, *, project: str | None, limit: int,
                            marker: After | None, timeout: float) -> list[ServerRow]:
    """Return at most *limit* servers that existed at any time between *begin* and *end*, ordered by project and uuid,
    with the columns ``COLUMNS``. Deleted servers are included. Servers in cell0 are left out, because they never ran.
    *project*: only servers of this project; ``None``: all. *marker*: project and uuid of the last server on the
    previous page. *timeout*: seconds for a cell to answer; other cells are skipped.

    If a cell has few servers of the period (up to three queries check this), two queries read them all. Otherwise one
    query reads a page.
    """
    def asked(database: Database) -> Sequence[Any]:
        conditions = period_conditions(begin, end)
        with database.read() as connection:
            if (parts := _conditions_of_few(connection, begin, end)) is not None:
                rows = (row for part in parts for row in connection.execute(select(*COLUMNS).where(*part, *conditions)))
                return [row for row in rows if project in (None, row.project_id) and (
                    marker is None or (row.project_id, row.id) > marker)]
            project_column: Any = servers.c.project_id
            if database.kind == "postgresql":
                project_column = project_column.collate("C")  # by code points, as in SQLite and Python
            if project is not None:
                conditions.append(project_column == project)
            if marker is not None:
                conditions.append(keyset_condition([(project_column, False), (servers.c.id, False)], marker))
            question = select(*COLUMNS).where(*conditions).order_by(project_column, servers.c.id).limit(limit)
            return connection.execute(question).all()

    server_rows = [row for rows in scatter_gather(store, asked, timeout).values() for row in rows or ()]
    server_rows.sort(key=lambda row: row.leaving is None)  # for a server that changes its cell, the target row counts
    once = {row.id: row for row in server_rows}
    return ServerRow.several(sorted(once.values(), key=lambda row: (row.project_id, row.id))[:limit])


def _conditions_of_few(connection: Connection, begin: str, end: str) -> list[Sequence[ColumnElement[bool]]] | None:
    """Return two sequences of SQL conditions, for live and for deleted servers. Together they select all servers that
    existed at any time between *begin* and *end*, and some others. Each sequence uses an index. Return ``None`` if live
    or deleted servers cannot be limited to ``MOST`` in this way."""
    created = servers.c.created_at < format_moment(datetime.fromisoformat(end) + CLOCK_SKEW)
    kinds: Sequence[Sequence[Sequence[ColumnElement[bool]]]] = (
        [(LIVE, created)], [(GONE, created), (servers.c.terminated_at > begin,)])
    parts = []
    for choices in kinds:
        part = next((choice for choice in choices if not has_more_servers(connection, choice, MOST)), None)
        if part is None:
            return None
        parts.append(part)
    return parts


def count_servers_by_host(store: Store, begin: str, end: str) -> dict[str, dict[str, int] | None]:
    """Return the number of servers that existed at any time between *begin* and *end*, by cell id, then by host name;
    ``None`` for a cell that does not answer. Uses one query for each cell. Terminated servers without a host are
    counted under ``""``; live servers without a host are not counted."""
    def counted(database: Database) -> dict[str, int]:
        counts: Counter[str] = Counter()
        with database.read() as connection:
            for host, count in connection.execute(_BY_HOST, {"begin": begin, "end": end}):
                counts[host] += count
        return counts

    return scatter_gather(store, counted)


def _count_by_host(host: ColumnElement[Any], ended: ColumnElement[bool]) -> Select[Any]:
    return select(host, func.count()).where(ended, servers.c.launched_at < bindparam("end")).group_by(host)


#: The query for two counts by host, each with its own index: servers that run, and servers that ended after the
#: period had begun. Grouped by the column, SQLite would read the ended ones in the order of hosts, and so all servers.
_BY_HOST = union_all(
    _count_by_host(servers.c.host, servers.c.terminated_at.is_(None) & servers.c.deleted_at.is_(None)
                   & servers.c.host.is_not(None)),
    _count_by_host(func.coalesce(servers.c.host, literal_column("''")), servers.c.terminated_at > bindparam("begin")))


def period_conditions(begin: str, end: str) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for servers that existed at any time between *begin* and *end*: servers that were
    launched before *end*, and are not terminated or were terminated after *begin*."""
    return [servers.c.launched_at < end, or_(servers.c.terminated_at.is_(None), servers.c.terminated_at > begin)]


def usage_audit_is_due(connection: Connection, end: str) -> bool:
    """Return whether the usage of some servers in the period that ended at *end* must still be reported."""
    row = connection.execute(select(usage_audits).where(usage_audits.c.name == EXISTS)).first()
    return row is None or row.period_end < end or not row.done


def fetch_next_audited(connection: Connection, begin: str, end: str, most: int) -> list[ServerRow]:
    """Return at most *most* servers that existed at any time between *begin* and *end* and have no usage report for
    this period yet. Record these servers as reported. Return an empty list if reports of a later period have begun."""
    insert_if_absent(connection, usage_audits, name=EXISTS, period_end="", after="", done=False)
    row = connection.execute(select(usage_audits).where(usage_audits.c.name == EXISTS).with_for_update()).one()
    if row.period_end > end or (row.period_end == end and row.done):
        return []
    last_id = row.after if row.period_end == end else ""
    server_rows = ServerRow.several(connection.execute(select(servers).where(
        *period_conditions(begin, end), servers.c.id > last_id).order_by(servers.c.id).limit(most)))
    connection.execute(update(usage_audits).where(usage_audits.c.name == EXISTS).values(
        period_end=end, after=server_rows[-1].id if server_rows else last_id, done=len(server_rows) < most))
    return server_rows
