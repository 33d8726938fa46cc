# SPDX-License-Identifier: GPL-3.0-or-later
"""How far notifications have told the servers of an audit period, in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, update

from magnetar_control.store.engine.database import added
from magnetar_control.store.engine.tables import servers, usage_audits

from .usage import there

#: The name of the row.
EXISTS = "exists"


def due(connection: Connection, end: str) -> bool:
    """Whether some of the period that ended at a moment are to be told."""
    row = connection.execute(select(usage_audits).where(usage_audits.c.name == EXISTS)).first()
    return row is None or row.period_end < end or not row.done


def following(connection: Connection, begin: str, end: str, most: int) -> Sequence[Row[Any]]:
    """The next servers of the period, whole rows, at most so many; they are told when the transaction is committed. A
    period that came before the last one that was told has none."""
    added(connection, usage_audits, name=EXISTS, period_end="", after="", done=False)
    row = connection.execute(select(usage_audits).where(usage_audits.c.name == EXISTS).with_for_update()).one()
    if row.period_end > end or (row.period_end == end and row.done):
        return []
    after = row.after if row.period_end == end else ""
    found = connection.execute(select(servers).where(
        *there(begin, end), servers.c.id > after).order_by(servers.c.id).limit(most)).all()
    connection.execute(update(usage_audits).where(usage_audits.c.name == EXISTS).values(
        period_end=end, after=found[-1].id if found else after, done=len(found) < most))
    return found
