# SPDX-License-Identifier: GPL-3.0-or-later
"""The events that ``/v1/events`` shows: rows of the outbox tables, under a receiver name of their own. They are never
sent, but kept for a while.

An event is written in the transaction of its change. Readers continue after the id of the last event that they have, so
an id must not become readable after a higher one: ``Horizon`` says up to which id this is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, text

from magnetar_control.store.engine.database import Database, insert_if_absent, utc_now

from .outbox import Message, Outbox, insert_notification_rows

#: The name in the column ``receiver`` of the outbox tables.
STREAM = "/v1/events"
#: The first row of a database, which is no event: readers that wait for the first event continue after it.
FIRST = Message("00000000-0000-0000-0000-000000000001", "first", "{}")
#: PostgreSQL: gives the transaction its number, before an id is taken from the sequence.
_NUMBERED = text("SELECT pg_current_xact_id()")
#: PostgreSQL: the oldest transaction that still writes, and how many numbers were given after it.
_WRITERS = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
                "age(pg_snapshot_xmin(pg_current_snapshot())::xid)")


def insert_event_rows(connection: Connection, outbox: Outbox, messages: Sequence[Message]) -> None:
    """Insert the events *messages*, which ``/v1/events`` shows, into the tables *outbox*, in the caller's transaction.
    An event that was inserted before is not inserted again."""
    if messages and connection.dialect.name == "postgresql":
        connection.execute(_NUMBERED)
    if messages:
        insert_notification_rows(connection, outbox, (STREAM,), messages)


def write_first_row(database: Database, outbox: Outbox) -> None:
    """Insert the row ``FIRST`` into the tables *outbox*, unless it exists. ``FIRST`` is no event: readers that wait for
    the first event begin after the id of this row."""
    with database.write() as connection:
        insert_if_absent(connection, outbox.waiting, receiver=STREAM, message_id=FIRST.message_id,
                         event_type=FIRST.event_type, created_at=utc_now(), message=FIRST.text)


class Horizon:
    """The highest event id (``newest``) that is safe for readers of the tables *outbox* of one database. No event with
    a lower id can appear later.

    On SQLite only one transaction writes at a time, so this is the highest id in the table. On PostgreSQL a transaction
    gets its transaction number before the ids of its events. Therefore ``look`` remembers the highest id and the next
    transaction number. When all transactions with lower numbers have ended, no lower id can appear.
    """

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        #: ``None``: not known yet, or there is no event.
        self.newest: int | None = None
        #: An id, and the number that the writers of lower ids are below.
        self._pending: tuple[int, int] | None = None

    def look(self, connection: Connection) -> bool:
        """Update ``newest`` from the database. Return whether ``newest`` is now the highest id of all events that can
        be read; true if there are no events. False (only on PostgreSQL): running transactions may still insert lower
        ids."""
        waiting = self.outbox.waiting
        last_id = connection.execute(select(func.max(waiting.c.id)).where(waiting.c.receiver == STREAM)).scalar()
        if last_id is None or last_id == self.newest:
            return True
        if connection.dialect.name != "postgresql":
            self.newest = int(last_id)
            return True
        oldest, more = connection.execute(_WRITERS).one()
        if more == 0:
            self.newest, self._pending = int(last_id), None
            return True
        if self._pending is not None and oldest >= self._pending[1]:
            self.newest, self._pending = self._pending[0], None
        if self._pending is None:
            self._pending = (int(last_id), oldest + more)
        return False


def fetch_stream_rows(connection: Connection, outbox: Outbox, after: int, until: int,
                      most: int) -> Sequence[Any] | None:
    """Return the events with ids above *after*, up to *until*, as rows (id, message), at most *most*. *after*: the id
    of the last event that the reader has; 0: begin with the oldest event. Return ``None`` if the event *after* was
    deleted, because the next events may have been deleted too."""
    waiting = outbox.waiting
    rows = connection.execute(select(waiting.c.id, waiting.c.message).where(
        waiting.c.receiver == STREAM, waiting.c.id >= after, waiting.c.id <= max(after, until)).order_by(
        waiting.c.id).limit(most + 1)).all()
    if not after:
        return rows[:most]
    return rows[1:] if rows and rows[0].id == after else None


def drop_old_event_rows(database: Database, outbox: Outbox, cutoff: str, most: int) -> int:
    """Delete the events from before *cutoff* and, if there are more than *most* events, the oldest ones. Return the
    number of deleted events. The newest event is never deleted: readers need its id to continue, and the database must
    not assign this id again."""
    waiting = outbox.waiting
    mine = waiting.c.receiver == STREAM
    with database.read() as connection:
        count, newest = connection.execute(select(func.count(), func.max(waiting.c.id)).where(mine)).one()
        last = None
        if count > most:
            last = connection.execute(select(waiting.c.id).where(mine).order_by(waiting.c.id.desc()).offset(
                most).limit(1)).scalar()
    if newest is None:
        return 0
    old = waiting.c.created_at < cutoff
    with database.write() as connection:
        return int(connection.execute(delete(waiting).where(
            mine, waiting.c.id < newest, old if last is None else or_(old, waiting.c.id <= last))).rowcount)
