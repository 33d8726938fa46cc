# SPDX-License-Identifier: GPL-3.0-or-later
"""Usage for billing: at the end of each audit period a notification for each server that there was in it."""

from __future__ import annotations

from datetime import datetime, timedelta

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.notifications import EXISTS, ServerEvent
from magnetar_control.notifications.audit_period import last_period
from magnetar_control.store.engine.database import now, stored
from magnetar_control.store.servers import usage_audits

#: Seconds between two looks whether a period is over, and how many servers are told in one transaction.
LOOK, BATCH = 60.0, 100
#: Until then what happened before a period's end is in the database: clocks differ, and transactions take time.
SETTLED = timedelta(seconds=15)


def tell_usage(conductor: Conductor, moment: str | None = None) -> int:
    """Tell of the servers of the cell that there were in the last period that was over, and ``SETTLED``, at a *moment*,
    now where left out; returns how many. Each is told once, also when conductors die; of earlier periods nothing is
    told."""
    settings, count = conductor.settings, 0
    if not (conductor.notifications and settings.instance_usage_audit):
        return 0
    period = last_period(settings.instance_usage_audit_period, datetime.fromisoformat(moment or now()) - SETTLED)
    begin, end = map(stored, period)
    with conductor.database.read() as connection:
        if not usage_audits.due(connection, end):
            return 0
    while not conductor.over.is_set():
        with conductor.database.write() as connection:
            found = usage_audits.following(connection, begin, end, BATCH)
            for row in found:
                conductor.notifications.add_server(connection, row._mapping, ServerEvent(  # noqa: SLF001 - its name
                    EXISTS, args={"audit_period": period}, host=row.host, conductor=conductor.name,
                    key=f"{begin}.{end}"))
        count += len(found)
        if len(found) < BATCH:
            break
    return count
