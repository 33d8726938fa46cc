# SPDX-License-Identifier: GPL-3.0-or-later
"""One database: SQLite (WAL) or PostgreSQL, the same statements on both, and its doorbell."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Insert,
    Row,
    Table,
    Update,
    bindparam,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from . import sqlite
from .bell import Bell, Notifier
from .timeouts import CircuitBreaker, fails_fast, hangs

if TYPE_CHECKING:
    from .postgresql import Listener

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds after which whoever waits for a bell looks again, by engine. On SQLite other processes cannot ring.
LOOK_AGAIN = {"sqlite": 0.05, "postgresql": 2.0}
#: How many threads of a process read and write at once, and for how many seconds the next waits for its turn; then it
#: goes ahead. SQLite's own lock is polled every 0.1 s; whoever waits here is woken at once. More connections to
#: PostgreSQL make nothing faster, since Python runs one thread at a time; but a query may hang.
TURNS = {"sqlite": ((64, 0.0), (1, 30.0)), "postgresql": ((3, 0.1), (3, 0.1))}
#: libpq parameters that notice a PostgreSQL whose machine is gone: seconds, the last one milliseconds. The URL's own
#: come first.
NOTICED = {"connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
           "tcp_user_timeout": "20000"}
#: How long a call is tried again while the database is away, in seconds.
RETRY_FOR = 10.0
#: PostgreSQL's words for a full disk, and for keys that are not there, or there already.
FULL, REFERRED, TWICE = "53100", "23503", "23505"
#: Seconds that a statement may take on PostgreSQL.
LIMIT = 60.0
#: INSERT with ON CONFLICT, by engine.
INSERT: dict[str, Any] = {"sqlite": sqlite_insert, "postgresql": postgresql_insert}
_LOCK = select(func.pg_advisory_xact_lock(bindparam("number", type_=BigInteger)))


def now(plus: float = 0.0) -> str:
    """The moment *plus* seconds from now as the tables keep it: UTC, microseconds, sortable as text."""
    return stored(datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=plus))


def stored(when: datetime) -> str:
    """A moment in UTC, without a zone, in the form of ``now``."""
    return when.isoformat(timespec="microseconds")


def moment(text: str) -> str:
    """A moment or day (ISO 8601, UTC unless it says otherwise) in the form of ``now``. Raises ``ValueError``."""
    try:
        found = datetime.fromisoformat(text)
        return stored(found.astimezone(UTC).replace(tzinfo=None) if found.tzinfo else found)
    except OverflowError as error:
        raise ValueError(f"{text} is beyond the calendar in UTC") from error


def utc(plus: float = 0.0) -> Any:
    """PostgreSQL's own moment, *plus* seconds from now, in the form of ``now``."""
    there = func.timezone("utc", func.clock_timestamp()) + timedelta(seconds=plus)
    return func.to_char(there, 'YYYY-MM-DD"T"HH24:MI:SS.US')


def advisory_lock(connection: Connection, *words: str) -> None:
    """Wait for everybody else who holds the lock of these *words*, and hold it until the transaction ends: what is
    counted under it stays true. SQLite needs none: only one transaction writes."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big", signed=True)
        connection.execute(_LOCK, {"number": number})


class _Turn:
    """Lets a few threads into its block at a time; see ``TURNS``. *places*: has an item for each that may come in."""

    __slots__ = ("mine", "patience", "places")

    def __init__(self, places: SimpleQueue[None], patience: float) -> None:
        self.places, self.patience, self.mine = places, patience, True

    def __enter__(self) -> None:
        try:
            self.places.get(timeout=self.patience)
        except Empty:
            self.mine = False

    def __exit__(self, *_error: object) -> None:
        if self.mine:
            self.places.put(None)


def _turns(count: int, patience: float) -> Callable[[], _Turn]:
    places: SimpleQueue[None] = SimpleQueue()  # of the interpreter: a semaphore takes three times as long
    for _place in range(count):
        places.put(None)
    return partial(_Turn, places, patience)


class Database:
    """A database by SQLAlchemy *url*: ``sqlite:////path`` or ``postgresql+psycopg://user@host/name``. *limit*: seconds
    that a statement may take on PostgreSQL; 0 for no limit."""

    def __init__(self, url: str, name: str = "api", pool: int = 16, limit: float = LIMIT) -> None:
        self.name, self.url, self.limit = name, make_url(url), limit
        self.breaker, self._pool = CircuitBreaker(), pool
        self.kind = self.url.get_backend_name()
        if self.kind not in LOOK_AGAIN:
            raise ValueError(f"database {name}: the URL must begin with sqlite:// or postgresql+psycopg://")
        if self.kind == "postgresql":
            self.url = self.url.update_query_dict({one: NOTICED[one] for one in NOTICED.keys() - self.url.query.keys()})
        make: Callable[..., Engine] = sqlite.engine
        if self.kind == "postgresql":
            from . import postgresql
            make = partial(postgresql.engine, limit=limit, breaker=self.breaker)
        #: One for transactions, one for single statements (autocommit): to change the isolation level of a connection
        #: and back takes longer than a small query.
        self.engine = make(self.url, pool)
        self.reading = make(self.url, pool, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
        self._to_read, self._to_write = (_turns(count, patience) for count, patience in TURNS[self.kind])
        self.bell = Bell(LOOK_AGAIN[self.kind])
        #: Marks our own notifications: what is rung here wakes waiters here at once.
        self.origin = uuid.uuid4().hex[:12]
        self._listener: Listener | None = None
        self._notifier = Notifier(self.name, self.reading, self.origin) if self.kind == "postgresql" else None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading; each statement is a transaction of its own."""
        self._refuse()
        with self.breaker, self._to_read(), self.reading.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def single(self) -> Iterator[Connection]:
        """A connection for one statement that writes, and is a transaction of its own; ``ring`` takes effect after
        it."""
        self._refuse()
        rung: dict[str, bool] = {}
        with self.breaker, self._to_write(), self.reading.connect() as connection:
            connection.info["rung"] = rung
            yield connection
        self._rung(rung)

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction (``BEGIN IMMEDIATE`` on SQLite); ``ring`` in it takes effect after the commit."""
        self._refuse()
        with self.breaker, self._to_write(), self.engine.connect() as connection:
            rung: dict[str, bool] = {}
            connection.info["rung"] = rung
            with connection.begin():
                yield connection
        self._rung(rung)

    def _rung(self, rung: Mapping[str, bool]) -> None:
        """Ring these names, in other processes those that are true."""
        for name in rung:
            self.bell.ring(name)
        if self._notifier and (told := [name for name, others in rung.items() if others]):
            self._notifier.ring(told)

    def _refuse(self) -> None:
        """Raise ``OperationalError`` when the caller fails fast (``statement_timeout``) and the database hangs."""
        if fails_fast() and self.kind == "postgresql" and self.breaker.refuses():
            raise hangs(self.name)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads for queries of all cells: a database that hangs holds only its own threads."""
        return ThreadPoolExecutor(self._pool, thread_name_prefix=f"ask {self.name}")

    def clock(self, plus: float = 0.0) -> Any:
        """The moment *plus* seconds from now by the database's clock, for leases: clocks of machines may differ."""
        return now(plus) if self.kind == "sqlite" else utc(plus)

    def ring(self, connection: Connection, name: str, *, others: bool = True) -> None:
        """Have *name* rung when the transaction of *connection* (from ``write``) is committed. *others*: in other
        processes too."""
        rung: dict[str, bool] = connection.info["rung"]
        rung[name] = others or rung.get(name, False)

    def retried(self, function: Callable[[], T], when: Callable[[DBAPIError], bool] | None = None) -> T:
        """Call *function* (idempotent) until it succeeds, while the database is away or transactions collide
        (``passing``), or *when* says."""
        again = when or passing
        deadline, pause = time.monotonic() + RETRY_FOR, 0.02
        while True:
            try:
                return function()
            except DBAPIError as error:
                if not again(error) or time.monotonic() + pause > deadline:
                    raise
                log.warning("database %s: %s; trying again", self.name, type(error.orig).__name__)
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def listen(self) -> None:
        """Receive what other processes ring (PostgreSQL only)."""
        if self.kind == "postgresql" and self._listener is None:
            from .postgresql import Listener
            self._listener = Listener(self.name, self.url, self.bell, self.origin)
            self._listener.start()

    def close(self) -> None:
        """Close all connections."""
        if self._listener:
            self._listener.stop()
        if self._notifier:
            self._notifier.stop()
        if "threads" in self.__dict__:
            self.threads.shutdown(wait=False, cancel_futures=True)
        self.reading.dispose()
        self.engine.dispose()


def added(connection: Connection, table: Table, **row: Any) -> bool:
    """Add *row* to *table*, unless that would break a unique constraint. On PostgreSQL this waits for a transaction
    that adds the same, and then tells how it ended; so whoever races, one of them is told true."""
    return connection.execute(_adding(connection.dialect.name, table), row).rowcount == 1


def added_row(connection: Connection, table: Table, **row: Any) -> Row[Any] | None:
    """As ``added``; returns the row as it is then, ``None`` when there was one."""
    return connection.execute(returning(_adding(connection.dialect.name, table)), row).one_or_none()


def filled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*rows*, to be inserted, without the columns that are ``None`` in all of them. Of more than 50 parameters psycopg
    keeps no statement: it reads the text anew each time, which takes longer than to send it."""
    names = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in names} for row in rows]


def written(connection: Connection, statement: Insert, key: Column[Any],
            rows: Sequence[Mapping[str, Any]]) -> Sequence[Row[Any]]:
    """Add rows, and return all that there are then of the same *key*. Of several SQLAlchemy would make a RETURNING
    anew each time, which takes longer than to ask for them."""
    if len(rows) == 1:
        return connection.execute(returning(statement), rows[0]).all()
    connection.execute(statement, rows)
    return connection.execute(_of_keys(key), {"keys": [row[key.name] for row in rows]}).all()


@cache
def returning(statement: Insert | Update) -> Any:
    """*statement*, made once, which returns the rows as they are then."""
    return statement.returning(statement.table)


@cache
def _of_keys(key: Column[Any]) -> Any:
    return select(key.table).where(key.in_(bindparam("keys", expanding=True)))


@cache
def _adding(kind: str, table: Table) -> Any:
    """The statement of ``added``, made once. Without the option SQLAlchemy does not keep psycopg's count of an INSERT:
    it would be -1."""
    return INSERT[kind](table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


def passing(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed in a moment: no connection, a deadlock, a busy file."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or isinstance(error, OperationalError) or state[:2] in ("08", "40", "57")


def collided(error: DBAPIError) -> bool:
    """Whether PostgreSQL has ended the transaction because of another, so that nothing of it stays: both waited for
    each other, or a row that one refers to went meanwhile, or the other has added the same."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return state[:2] == "40" or state in (REFERRED, TWICE)


def full(error: BaseException) -> bool:
    """Whether *error* says that a disk has no room left: that of a database, or another."""
    if isinstance(error, DBAPIError):
        cause = error.orig
        return getattr(cause, "sqlstate", None) == FULL or getattr(cause, "sqlite_errorcode", 0) in (
            sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def away(error: BaseException) -> bool:
    """Whether *error* says that the database does not answer: it is gone, or so slow that no connection was free. What
    it refuses is something else."""
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # SQLite understood the statement, and cannot do it
    return isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and passing(error))
