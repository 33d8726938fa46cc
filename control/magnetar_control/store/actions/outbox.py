# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications that wait for their receivers.

A notification is written in the same transaction as the change that it reports, and removed when the receiver has
accepted it. Conductors send notifications by lease: one conductor at a time for each receiver and database. After a
crash a notification may be sent again, with the same ``message_id``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, and_, delete, exists, func, or_, select, update

from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now

#: Seconds of a conductor's lease of a receiver: more than sending a batch takes, even to a receiver that does not
#: answer.
LEASE = 60.0
#: Seconds until a failed receiver is tried again: after the first failure, and at most after further ones.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
#: Seconds that notifications wait for a receiver that is missing in a conductor's settings: other conductors may have
#: new settings already.
UNNAMED = 3600.0
Found = Any


class Outbox(NamedTuple):
    """The two tables for sending notifications to receivers (URLs in the settings). *waiting*: the notifications that
    are not sent yet. *receivers*: the receivers, with leases and failures. The API database and the cell databases have
    such tables."""

    waiting: Table
    receivers: Table


CELL = Outbox(tables.notifications, tables.notification_receivers)
API = Outbox(tables.api_notifications, tables.api_notification_receivers)


class Message(NamedTuple):
    """A notification to send. *message_id*: its uuid. *event_type*: such as instance.create.end. *text*: the complete
    notification as JSON text."""

    message_id: str
    event_type: str
    text: str


def insert_notification_rows(connection: Connection, outbox: Outbox, receivers: Collection[str],
                             messages: Sequence[Message]) -> None:
    """Queue *messages* in the tables *outbox*, for each of *receivers*, in the given order. The messages are sent after
    the commit. A message that is already queued for a receiver is not added again."""
    for message in messages:
        for receiver in receivers:
            insert_if_absent(connection, outbox.waiting, receiver=receiver, message_id=message.message_id,
                             event_type=message.event_type, created_at=utc_now(), message=message.text)


def has_due_notifications(database: Database, connection: Connection, outbox: Outbox, receiver: str,
                          holder: str) -> bool:
    """Return whether the conductor *holder* can send notifications to *receiver* now: some are queued, no other
    conductor has the lease of the receiver, and there is no pause after a failure."""
    waiting, clock = outbox.waiting, database.clock()
    mine = outbox.receivers.c
    closed = exists().where(mine.name == receiver, or_(mine.not_before > clock, and_(
        mine.holder != holder, mine.lease_until >= clock)))
    return connection.execute(select(waiting.c.id).where(
        waiting.c.receiver == receiver, ~closed).limit(1)).first() is not None


def lease_receiver(database: Database, outbox: Outbox, receiver: str, holder: str) -> bool:
    """Lease *receiver* for the conductor *holder*, which then sends the notifications to it. Return false if another
    conductor has the lease, or during the pause after a failure."""
    mine, clock = outbox.receivers, database.clock()
    with database.write() as connection:
        insert_if_absent(connection, mine, name=receiver, failures=0)
        return connection.execute(update(mine).where(
            mine.c.name == receiver, or_(mine.c.holder == holder, mine.c.lease_until.is_(None),
                                         mine.c.lease_until < clock),
            or_(mine.c.not_before.is_(None), mine.c.not_before <= clock)).values(
            holder=holder, lease_until=database.clock(LEASE))).rowcount == 1


def fetch_notification_rows(connection: Connection, outbox: Outbox, receiver: str, most: int) -> Sequence[Any]:
    """Return the oldest notifications that are queued for *receiver*, at most *most*, as rows (id, event_type,
    message)."""
    waiting = outbox.waiting
    return connection.execute(select(waiting.c.id, waiting.c.event_type, waiting.c.message).where(
        waiting.c.receiver == receiver).order_by(waiting.c.id).limit(most)).all()


def complete_notification_batch(database: Database, outbox: Outbox, receiver: str, holder: str, sent: Collection[int],
                                problem: str | None = None) -> None:
    """Delete the *sent* notifications (ids) to *receiver* from the queue, and end the lease of the conductor *holder*.

    *problem*: why the receiver did not accept the next notification; ``None`` when it accepted all. After a problem,
    nothing is sent to the receiver during a pause, which gets longer with each failure in a row.
    """
    mine = outbox.receivers
    with database.write() as connection:
        if sent:
            connection.execute(delete(outbox.waiting).where(outbox.waiting.c.id.in_(list(sent))))
        values: dict[str, Any] = {"failures": 0, "not_before": None, "problem": None}
        if problem is not None:
            earlier_failures = connection.execute(select(mine.c.failures).where(mine.c.name == receiver)).scalar() or 0
            failures = 1 if sent else earlier_failures + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 20))
            values = {"failures": failures, "not_before": database.clock(pause), "problem": problem[:500]}
        connection.execute(update(mine).where(mine.c.name == receiver, mine.c.holder == holder).values(
            holder=None, lease_until=None, **values))


def drop_stale_notifications(database: Database, outbox: Outbox, receivers: Collection[str], cutoff: str,
                             most: int, but: Collection[str] = ()) -> dict[str, int]:
    """Delete old notifications from the queue, and return how many: {receiver: number}.

    These are: notifications from before *cutoff*; for each receiver the oldest ones, if more than *most* are queued;
    and after ``UNNAMED`` seconds all notifications to a receiver that is not in *receivers* any more. *but*: receivers
    whose notifications stay.
    """
    waiting, dropped = outbox.waiting, dict[str, int]()
    with database.read() as connection:
        counts = {str(name): int(count) for name, count in connection.execute(
            select(waiting.c.receiver, func.count()).group_by(waiting.c.receiver)) if name not in but}
    for receiver, count in counts.items():
        named = receiver in receivers
        mine, old = waiting.c.receiver == receiver, waiting.c.created_at < (
            cutoff if named else max(cutoff, utc_now(-UNNAMED)))
        with database.write() as connection:
            last = connection.execute(select(waiting.c.id).where(mine).order_by(waiting.c.id.desc()).offset(
                most).limit(1)).scalar() if count > most else None
            deleted_count = connection.execute(delete(waiting).where(
                mine, old if last is None else or_(old, waiting.c.id <= last))).rowcount
            if not named and deleted_count == count:
                connection.execute(delete(outbox.receivers).where(outbox.receivers.c.name == receiver))
        if deleted_count:
            dropped[receiver] = deleted_count
    return dropped
