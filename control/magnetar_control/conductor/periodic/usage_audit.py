# SPDX-License-Identifier: GPL-3.0-or-later
"""Usage for billing: at the end of each audit period, one notification for each server that existed in it."""

from __future__ import annotations

from datetime import datetime, timedelta

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.notifications import EXISTS, ServerEvent
from magnetar_control.notifications.audit_period import last_period
from magnetar_control.store.engine.database import format_moment, utc_now
from magnetar_control.store.servers import usage

#: Seconds between two checks whether a period is over; servers in one transaction.
POLL_INTERVAL, BATCH = 60.0, 100
#: Delay after a period's end until all its changes are in the database: clocks differ, and transactions take time.
SETTLED = timedelta(seconds=15)


def tell_usage(conductor: Conductor, moment: str | None = None) -> int:
    """Write a notification ``instance.exists`` for each of the cell's servers that existed in the last audit period.
    Return the number of notifications written. The last audit period is the latest period that ended at least
    ``SETTLED`` (a ``timedelta``) before *moment*, a time as text (default: now). Earlier periods are skipped. Exactly
    one notification is written for each server and period, even if a conductor crashes during the call."""
    settings, count = conductor.settings, 0
    if not (conductor.notifications and settings.instance_usage_audit):
        return 0
    period = last_period(settings.instance_usage_audit_period, datetime.fromisoformat(moment or utc_now()) - SETTLED)
    begin, end = map(format_moment, period)
    with conductor.database.read() as connection:
        if not usage.usage_audit_is_due(connection, end):
            return 0
    while not conductor.over.is_set():
        with conductor.database.write() as connection:
            server_rows = usage.fetch_next_audited(connection, begin, end, BATCH)
            for server_row in server_rows:
                conductor.notifications.add_server(connection, server_row, ServerEvent(
                    EXISTS, args={"audit_period": period}, host=server_row.host, conductor=conductor.name,
                    key=f"{begin}.{end}"))
        count += len(server_rows)
        if len(server_rows) < BATCH:
            break
    return count
