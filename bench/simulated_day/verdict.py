# SPDX-License-Identifier: GPL-3.0-or-later
"""The check of a cloud after a simulated day: what is stuck, and what the audit finds. Speed is not judged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from sqlalchemy import func, select

from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import actions, allocations, migrations, servers
from magnetar_control.store.servers.migrations import ENDED, UNCONFIRMED

from .cloud import DayCloud
from .record import DayRecord

#: Maximum number of servers and actions that the text of a problem names.
NAMED = 5
OPEN = actions.c.state.in_(("queued", "running"))


def find_stuck(cloud: DayCloud, bound: float) -> list[str]:
    """Return the servers with a task, queued actions and migrations that have not progressed for *bound* seconds."""
    since = utc_now(-bound)
    return [problem for database in (cloud.cell0, cloud.cell) for problem in _stuck_in(database, since, bound)]


def _stuck_in(database: Database, since: str, bound: float) -> Iterator[str]:
    for noun, query in (
            ("servers with a task", select(servers.c["id", "vm_state", "task_state"]).where(
                servers.c.task_state.is_not(None), servers.c.updated_at < since)),
            ("actions in the queue", select(actions.c["server_id", "action", "state", "attempts", "message"]).where(
                OPEN, actions.c.start_time < since)),
            ("unfinished migrations", select(migrations.c["server_id", "type", "status", "source", "target"]).where(
                migrations.c.status.not_in((*ENDED, *UNCONFIRMED)),
                func.coalesce(migrations.c.updated_at, migrations.c.created_at) < since))):
        with database.read() as connection:
            rows = connection.execute(query).all()
        if rows:
            yield (f"{len(rows)} {noun} for more than {bound:.0f} s in {database.name}: "
                   f"{'; '.join(str(tuple(row)) for row in rows[:NAMED])}")


def find_gone_claims(cloud: DayCloud) -> list[str]:
    """Return the claims of servers that no longer exist."""
    with cloud.api.read() as connection:
        claimed = set(connection.execute(select(allocations.c.server_id).where(
            allocations.c.owner.is_(None))).scalars())
    for database in (cloud.cell0, cloud.cell):
        with database.read() as connection:
            claimed.difference_update(connection.execute(select(servers.c.id).where(
                servers.c.deleted_at.is_(None))).scalars())
    some = ", ".join(sorted(claimed)[:NAMED])
    return [f"{len(claimed)} servers that are gone have claims: {some}"] if claimed else []


def count_states(cloud: DayCloud) -> dict[str, int]:
    """Return the number of live servers in each state."""
    states: Counter[str] = Counter()
    for database in (cloud.cell0, cloud.cell):
        with database.read() as connection:
            states.update(dict(connection.execute(select(servers.c.vm_state, func.count()).where(
                servers.c.deleted_at.is_(None)).group_by(servers.c.vm_state)).all()))  # type: ignore[arg-type]
    return dict(states)


def judge_day(cloud: DayCloud, record: DayRecord, bound: float, patience: float,
              tell: Callable[[str], None]) -> list[str]:
    """Return all problems after the end of the load; *tell* prints the progress. *bound*: as for ``find_stuck``. The
    cloud gets *patience* seconds to finish its work, and as many for repairs by its own audit."""
    problems = [f"{missing} hosts are not up"] if (missing := cloud.wait_for_hosts(patience)) else []
    began = time.monotonic()
    while cloud.busy() and time.monotonic() - began < patience:
        time.sleep(1)
    tell(f"the queue was empty {time.monotonic() - began:.0f} s after the load")
    problems += find_stuck(cloud, 0.0 if cloud.busy() == 0 else bound)
    problems += _judge_audit(cloud, patience, tell)
    problems += find_gone_claims(cloud)
    problems += [f"{count} times {text}" for text, count in record.problems.items()]
    problems += [f"the control plane logged an error {count} times: {text}"
                 for text, count in Counter(cloud.log_errors()).items()]
    return problems + record.judge_memory()


def _judge_audit(cloud: DayCloud, patience: float, tell: Callable[[str], None]) -> list[str]:
    """Return the findings of ``magnetar audit`` that remain after *patience* seconds, in which the conductor's own
    audit may repair them."""
    began, first = time.monotonic(), True
    while findings := cloud.audit():
        if first:
            tell(f"the audit has {len(findings)} findings, which may be repaired: {'; '.join(findings[:NAMED])}")
        first = False
        if time.monotonic() - began > patience:
            return [f"magnetar audit: {finding}" for finding in findings]
        time.sleep(10)
    tell(f"the audit finds nothing{'' if first else f' after {time.monotonic() - began:.0f} s'}")
    return []
