# SPDX-License-Identifier: GPL-3.0-or-later
"""The reading of events from all databases, for the clients of ``/v1/events`` of one process.

Clients have no threads and no queues: each has a position, and reads the next page after it when there is one. A thread
for each database looks for new events while there are clients. Pages are shared, so clients at the same position cost
one query.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import orjson
from sqlalchemy.exc import DBAPIError

from magnetar_control.store.actions import outbox
from magnetar_control.store.actions.event_rows import Horizon, fetch_stream_rows, write_first_row
from magnetar_control.store.actions.outbox import Outbox
from magnetar_control.store.engine.database import ChangeCheck, Database
from magnetar_control.store.engine.timeouts import hanging_database_error, statement_timeout
from magnetar_control.store.store import Store
from magnetar_core.document import Document
from magnetar_core.errors import CursorExpired

from .event_cursor import API, database_key

log = logging.getLogger(__name__)
#: Seconds between two looks at a database, and after a failed one.
LOOK, AFTER_FAILURE = 0.25, 2.0
#: Events in a page; pages that are kept for other clients.
PAGE, PAGES = 100, 16
#: Seconds until a file of SQLite is read even if it seems unchanged.
UNSURE = 5.0
#: Looks, and seconds between them, until a request is answered without the events of unfinished transactions.
LOOKS, BETWEEN = 5, 0.05
#: Seconds that a statement may take on PostgreSQL, and that a look waits for another one of the same database; and that
#: it waits when too many requests wait.
PATIENCE, BRIEFLY = 5.0, 0.5


class StoredEvent(NamedTuple):
    """A stored event. *id*: the id of the event in its database. *document*: the event as a JSON object."""

    id: int
    document: Document


class EventSource:
    """The stored events of one database. *name*: the name of the database in cursors. *tables*: the tables with the
    events. *notify*: a function that is called when ``newest`` has changed."""

    def __init__(self, name: str, database: Database, tables: Outbox, notify: Callable[[], None]) -> None:
        self.name, self.database, self.tables, self._notify = name, database, tables, notify
        self.horizon, self._lock, self._pages_lock = Horizon(tables), threading.Lock(), threading.Lock()
        self._pages: OrderedDict[int, list[StoredEvent]] = OrderedDict()
        self._failing = False
        self._check = ChangeCheck(database, UNSURE)

    @property
    def newest(self) -> int | None:
        """The id of the newest event that clients may see; ``None`` if this id is not known yet, or the database has no
        event."""
        return self.horizon.newest

    def look(self, slots: threading.Semaphore | None = None) -> bool:
        """Read from the database which events are new, and update ``newest``. Return ``False`` while open transactions
        may still add events with lower ids than the newest event. *slots*: a semaphore that limits how many requests
        wait. Raises ``DBAPIError`` if the database does not answer, or another thread waits for it."""
        with self._locked(slots):
            earlier = self.horizon.newest
            with self.database.read() as connection:
                complete = self.horizon.look(connection)
            if self.horizon.newest is None and complete:
                write_first_row(self.database, self.tables)
                with self.database.read() as connection:
                    complete = self.horizon.look(connection)
        if self.horizon.newest != earlier:
            self._notify()
        return complete

    @contextlib.contextmanager
    def _locked(self, slots: threading.Semaphore | None) -> Iterator[None]:
        """Hold the lock during the ``with`` block. Raises ``OperationalError`` if the lock stays taken, because the
        thread that holds it waits for the database. *slots*: see ``look``."""
        if not self._lock.acquire(blocking=False) and not self._wait_for_lock(slots):
            raise hanging_database_error(self.database.name)
        try:
            yield
        finally:
            self._lock.release()

    def _wait_for_lock(self, slots: threading.Semaphore | None) -> bool:
        """Return whether the lock was acquired. Waits only ``BRIEFLY`` when *slots* has none free, and not at all for a
        database that hangs."""
        if self.database.breaker.hangs:
            return False
        if slots is None:
            return self._lock.acquire(timeout=PATIENCE)
        if not slots.acquire(blocking=False):
            return self._lock.acquire(timeout=BRIEFLY)
        try:
            return self._lock.acquire(timeout=PATIENCE)
        finally:
            slots.release()

    def page(self, after: int) -> list[StoredEvent]:
        """Return the events that clients may see after the event *after* (an id; 0: from the oldest event), at most
        ``PAGE``. Raises ``CursorExpired`` if the event *after* is not stored any more, and ``DBAPIError`` if the
        database does not answer."""
        newest = self.newest or 0
        if newest < after:  # of a database that was restored from an older copy
            raise CursorExpired
        with self._pages_lock:
            page = self._pages.get(after)
        if page:
            return page
        with statement_timeout(PATIENCE), self.database.read() as connection:
            rows = fetch_stream_rows(connection, self.tables, after, newest, PAGE)
        if rows is None:
            raise CursorExpired
        page = [StoredEvent(row.id, orjson.loads(row.message)) for row in rows]
        with self._pages_lock:
            self._pages[after] = page
            while len(self._pages) > PAGES:
                self._pages.popitem(last=False)
        return page

    def follow(self, over: Callable[[], bool]) -> None:
        """Look for new events again and again until *over* returns true. This function runs in a thread of its own.
        After a database error it tries again later."""
        complete = False
        while not over():
            pause = LOOK
            try:
                if not complete or self._check.may_have_changed():
                    with statement_timeout(PATIENCE, refused=False):  # asks a database that hangs until it answers
                        complete = self.look()
                self._failing = False
            except DBAPIError as error:
                if not self._failing:
                    log.warning("database %s: its events come later: %s", self.database.name, error.orig)
                self._failing, complete, pause = True, False, AFTER_FAILURE
            time.sleep(pause)


class EventFeed:
    """The stored events of all databases of *store*, for the clients of one process. Waiting clients are woken when one
    of the databases has new events. *slots*: a semaphore that limits how many requests wait."""

    def __init__(self, store: Store, slots: threading.Semaphore) -> None:
        self.store, self._slots = store, slots
        self._lock = threading.Lock()
        self._sources: dict[str, EventSource] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._followers = 0
        #: The clients that wait, each with its event loop.
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def sources(self) -> dict[str, EventSource]:
        """Return the sources of events, one for each database, by name of the database in cursors. Databases of cells
        that were added since the last call are included."""
        places = [(API, self.store.api, outbox.API), *(
            (database_key(cell), database, outbox.CELL) for cell, database in self.store.databases())]
        with self._lock:
            for name, database, tables in places:
                if name not in self._sources or self._sources[name].database is not database:
                    self._sources[name] = EventSource(name, database, tables, self._wake)
            return {name: self._sources[name] for name, _database, _tables in places}

    def look(self) -> dict[str, EventSource]:
        """Look for new events in all databases now, and return the sources of events by name of the database in
        cursors. Wait a moment for open transactions; the events of transactions that are still open then are left out.
        Raises ``DBAPIError`` if a database does not answer."""
        with statement_timeout(PATIENCE):
            sources = self.sources()
            for source in sources.values():
                for _look in range(LOOKS):
                    if source.look(self._slots):
                        break
                    time.sleep(BETWEEN)
        return sources

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Return a context manager. During the ``with`` block, the threads that ``refresh`` starts look for new events.
        """
        with self._lock:
            self._followers += 1
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1

    def refresh(self) -> dict[str, EventSource]:
        """Return the sources of events by name of the database in cursors. First start a thread that looks for new
        events, for each source without such a thread. Call this only within ``followed``, because the threads end
        without it."""
        sources = self.sources()
        with self._lock:
            for name, source in sources.items():
                thread = self._threads.get(name)
                if thread is None or not thread.is_alive():
                    self._threads[name] = threading.Thread(target=source.follow, args=(self._over,),
                                                           name=f"events {name}", daemon=True)
                    self._threads[name].start()
        return sources

    def _over(self) -> bool:
        return self._followers <= 0

    async def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Wait until there are new events, at most *seconds*. Return immediately if *ready* returns true."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters.add(waiter)
        try:
            if not ready():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiter[1].wait(), seconds)
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for loop, event in waiters:
            with contextlib.suppress(RuntimeError):  # the loop has closed, and the client with it
                loop.call_soon_threadsafe(event.set)
