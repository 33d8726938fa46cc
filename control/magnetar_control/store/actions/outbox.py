# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications that wait for their receivers. They are written in the transaction of what they tell, and removed when
the receiver has taken them. Conductors send them, by lease: one at a time for each receiver and database.

After a crash a notification may be sent again, with the same ``message_id``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, and_, delete, exists, func, or_, select, update

from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import Database, added, now

#: Seconds that a conductor has a receiver for itself: longer than a batch and one receiver's silence may take.
LEASE = 60.0
#: Seconds until a receiver that has failed is tried again: after the first failure, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
#: Seconds for which something waits for a receiver that a conductor's settings do not name: others may have been given
#: new settings, and this one not yet.
UNNAMED = 3600.0
Found = Any


class Outbox(NamedTuple):
    """The tables of one kind of database."""

    waiting: Table
    receivers: Table


CELL = Outbox(tables.notifications, tables.notification_receivers)
API = Outbox(tables.api_notifications, tables.api_notification_receivers)


class Message(NamedTuple):
    """A notification: its envelope as JSON text, and what is looked for in it."""

    message_id: str
    event_type: str
    text: str


def add(connection: Connection, outbox: Outbox, receivers: Collection[str], messages: Sequence[Message]) -> None:
    """Have *messages* sent to *receivers*, in this order, when the transaction is committed. One that waits already is
    not added again."""
    for message in messages:
        for receiver in receivers:
            added(connection, outbox.waiting, receiver=receiver, message_id=message.message_id,
                  event_type=message.event_type, created_at=now(), message=message.text)


def due(database: Database, connection: Connection, outbox: Outbox, receiver: str, holder: str) -> bool:
    """Whether anything waits for *receiver* that *holder* might send now."""
    waiting, clock = outbox.waiting, database.clock()
    mine = outbox.receivers.c
    closed = exists().where(mine.name == receiver, or_(mine.not_before > clock, and_(
        mine.holder != holder, mine.lease_until >= clock)))
    return connection.execute(select(waiting.c.id).where(
        waiting.c.receiver == receiver, ~closed).limit(1)).first() is not None


def hold(database: Database, outbox: Outbox, receiver: str, holder: str) -> bool:
    """Whether *holder* may send to *receiver* now: nobody else does, and the pause after a failure is over."""
    mine, clock = outbox.receivers, database.clock()
    with database.write() as connection:
        added(connection, mine, name=receiver, failures=0)
        return connection.execute(update(mine).where(
            mine.c.name == receiver, or_(mine.c.holder == holder, mine.c.lease_until.is_(None),
                                         mine.c.lease_until < clock),
            or_(mine.c.not_before.is_(None), mine.c.not_before <= clock)).values(
            holder=holder, lease_until=database.clock(LEASE))).rowcount == 1


def batch(connection: Connection, outbox: Outbox, receiver: str, most: int) -> Sequence[Any]:
    """The oldest notifications that wait for *receiver*: id, event_type, message."""
    waiting = outbox.waiting
    return connection.execute(select(waiting.c.id, waiting.c.event_type, waiting.c.message).where(
        waiting.c.receiver == receiver).order_by(waiting.c.id).limit(most)).all()


def settle(database: Database, outbox: Outbox, receiver: str, holder: str, sent: Collection[int],
           problem: str | None = None) -> None:
    """Remove what was *sent* to *receiver*, and give it back to others. *problem*: why it has not taken the next one:
    it is left alone for a while, longer with each failure since something was sent."""
    mine = outbox.receivers
    with database.write() as connection:
        if sent:
            connection.execute(delete(outbox.waiting).where(outbox.waiting.c.id.in_(list(sent))))
        values: dict[str, Any] = {"failures": 0, "not_before": None, "problem": None}
        if problem is not None:
            before = connection.execute(select(mine.c.failures).where(mine.c.name == receiver)).scalar() or 0
            failures = 1 if sent else before + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 20))
            values = {"failures": failures, "not_before": database.clock(pause), "problem": problem[:500]}
        connection.execute(update(mine).where(mine.c.name == receiver, mine.c.holder == holder).values(
            holder=None, lease_until=None, **values))


def drop(database: Database, outbox: Outbox, receivers: Collection[str], before: str, most: int) -> dict[str, int]:
    """Drop what was written *before* a moment, what is more than *most* for one receiver (the oldest first), and what
    waits for others than *receivers* for ``UNNAMED`` seconds; returns how many of whom."""
    waiting, dropped = outbox.waiting, dict[str, int]()
    with database.read() as connection:
        counts = {str(name): int(count) for name, count in connection.execute(
            select(waiting.c.receiver, func.count()).group_by(waiting.c.receiver))}
    for receiver, count in counts.items():
        named = receiver in receivers
        mine, old = waiting.c.receiver == receiver, waiting.c.created_at < (
            before if named else max(before, now(-UNNAMED)))
        with database.write() as connection:
            last = connection.execute(select(waiting.c.id).where(mine).order_by(waiting.c.id.desc()).offset(
                most).limit(1)).scalar() if count > most else None
            gone = connection.execute(delete(waiting).where(
                mine, old if last is None else or_(old, waiting.c.id <= last))).rowcount
            if not named and gone == count:
                connection.execute(delete(outbox.receivers).where(outbox.receivers.c.name == receiver))
        if gone:
            dropped[receiver] = gone
    return dropped
