# SPDX-License-Identifier: GPL-3.0-or-later
"""What servers were there in a period: running, stopped, or deleted since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, func, or_, select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.paging import beyond
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import Store

COLUMNS = (servers.c.id, servers.c.project_id, servers.c.name, servers.c.vm_state, servers.c.flavor,
           servers.c.launched_at, servers.c.terminated_at, servers.c.leaving)
#: Project and uuid of the last server of the page before.
After = tuple[str, str]


def of_period(store: Store, begin: str, end: str, *, project: str | None, limit: int, after: After | None,
              timeout: float) -> list[Row[Any]]:
    """The servers (``COLUMNS``) of a *project*, or of all, that there were between two moments, deleted ones too: at
    most *limit*, by project and uuid. One query for each cell. What is in cell0 never ran."""
    def asked(database: Database) -> Sequence[Any]:
        conditions = there(begin, end)
        whose: Any = servers.c.project_id
        if database.kind == "postgresql":
            whose = whose.collate("C")  # by code points, as SQLite and Python sort
        if project is not None:
            conditions.append(servers.c.project_id == project)
        if after is not None:
            conditions.append(beyond([(whose, False), (servers.c.id, False)], after))
        question = select(*COLUMNS).where(*conditions).order_by(whose, servers.c.id).limit(limit)
        with database.read() as connection:
            return connection.execute(question).all()

    found = [row for rows in scatter_gather(store, asked, timeout).values() for row in rows or ()]
    found.sort(key=lambda row: row.leaving is None)  # of a server that goes to another cell, the row there counts
    once = {row.id: row for row in found}
    return sorted(once.values(), key=lambda row: (row.project_id, row.id))[:limit]


def of_hosts(store: Store, begin: str, end: str) -> dict[str, dict[str, int] | None]:
    """How many servers there were on each host between two moments, by cell; ``None`` for a cell that does not
    answer. One query for each cell."""
    question = select(servers.c.host, func.count()).where(
        *there(begin, end), servers.c.host.is_not(None)).group_by(servers.c.host)

    def counted(database: Database) -> dict[str, int]:
        with database.read() as connection:
            return dict(connection.execute(question).all())

    return scatter_gather(store, counted)


def there(begin: str, end: str) -> list[ColumnElement[bool]]:
    """A server counts from its start to its end."""
    return [servers.c.launched_at < end, or_(servers.c.terminated_at.is_(None), servers.c.terminated_at > begin)]
