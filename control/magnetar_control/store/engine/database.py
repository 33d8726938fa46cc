# SPDX-License-Identifier: GPL-3.0-or-later
"""One database, SQLite (WAL) or PostgreSQL, with the same statements on both, and the signals of its changes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import sqlite3
import time
import uuid
from collections import deque
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
from .bell import ChangeSignals, Notifier
from .file_watch import FileWatch
from .timeouts import CircuitBreaker, fails_fast, hanging_database_error

if TYPE_CHECKING:
    from .postgresql import Listener

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds after which a thread that waits for a signal checks the table again, by engine; ``WATCHED``: while a SQLite
#: file is watched.
RECHECK_INTERVAL = {"sqlite": 0.05, "postgresql": 2.0}
WATCHED = 2.0
#: How many threads of a process read and write at the same time, and for how many seconds the next thread waits for its
#: turn before it goes ahead. SQLite's own lock is polled every 0.1 s; a thread that waits here is woken immediately.
#: More connections to PostgreSQL make nothing faster, because Python runs one thread at a time; but a query may hang.
THREAD_LIMITS = {"sqlite": ((64, 0.0), (1, 30.0)), "postgresql": ((3, 0.1), (3, 0.1))}
#: Connections that stay open for the next reader: taking one from the pool, and giving it back, takes longer than a
#: small query.
OPEN = 4
#: libpq parameters that detect a PostgreSQL server whose machine is gone: seconds, the last one milliseconds.
#: Parameters of the URL come first.
NOTICED = {"connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
           "tcp_user_timeout": "20000"}
#: Seconds that a call is retried while the database is away.
RETRY_FOR = 10.0
#: PostgreSQL's error codes for a full disk, a missing referenced key, and a duplicate key.
FULL, REFERRED, TWICE = "53100", "23503", "23505"
#: Seconds that a statement may take on PostgreSQL.
LIMIT = 60.0
#: INSERT with ON CONFLICT, by engine.
INSERT: dict[str, Any] = {"sqlite": sqlite_insert, "postgresql": postgresql_insert}
_LOCK = select(func.pg_advisory_xact_lock(bindparam("number", type_=BigInteger)))


def utc_now(plus: float = 0.0) -> str:
    """Return the time *plus* seconds from now as the tables store it: UTC, microseconds, sortable as text."""
    return format_moment(datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=plus))


def format_moment(when: datetime) -> str:
    """Return *when*, a UTC time without a zone, in the form of ``utc_now`` (text that sorts by time)."""
    return when.isoformat(timespec="microseconds")


def parse_moment(text: str) -> str:
    """Return *text*, a time or day in ISO 8601, as the tables store times: in UTC, with microseconds and without a
    zone. A *text* without a zone counts as UTC. Raises ``ValueError``."""
    try:
        parsed = datetime.fromisoformat(text)
        return format_moment(parsed.astimezone(UTC).replace(tzinfo=None) if parsed.tzinfo else parsed)
    except OverflowError as error:
        raise ValueError(f"{text} is beyond the calendar in UTC") from error


def postgresql_now(plus: float = 0.0) -> Any:
    """Return an SQL expression for the current time of the PostgreSQL server, plus *plus* seconds. Its value is text in
    UTC as the tables store times: ``YYYY-MM-DDTHH:MM:SS.ffffff``."""
    server_time = func.timezone("utc", func.clock_timestamp()) + timedelta(seconds=plus)
    return func.to_char(server_time, 'YYYY-MM-DD"T"HH24:MI:SS.US')


def advisory_lock(connection: Connection, *words: str) -> None:
    """Wait for the PostgreSQL advisory lock that *words* name, and hold it until the transaction ends. Callers that
    count and change the same rows use the same lock, so that their counts are correct. Does nothing on SQLite, where
    only one transaction writes at a time."""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], "big", signed=True)
        connection.execute(_LOCK, {"number": number})


class _ThreadLimit:
    """A semaphore that limits how many threads are in a ``with`` block at the same time. *slots*: a queue with one
    item for each thread that may enter. *patience*: the seconds after which a waiting thread enters anyway."""

    __slots__ = ("entered", "patience", "slots")

    def __init__(self, slots: SimpleQueue[None], patience: float) -> None:
        self.slots, self.patience, self.entered = slots, patience, True

    def __enter__(self) -> None:
        try:
            self.slots.get(timeout=self.patience)
        except Empty:
            self.entered = False

    def __exit__(self, *_error: object) -> None:
        if self.entered:
            self.slots.put(None)


def _thread_limit(count: int, patience: float) -> Callable[[], _ThreadLimit]:
    slots: SimpleQueue[None] = SimpleQueue()  # implemented in C: a semaphore takes three times as long
    for _slot in range(count):
        slots.put(None)
    return partial(_ThreadLimit, slots, patience)


class Database:
    """A database with its connection pools, reached at the SQLAlchemy *url*: ``sqlite:////path`` or
    ``postgresql+psycopg://user@host/name``. *name*: for logs. *limit*: seconds that a statement may take on PostgreSQL;
    0 for no limit. *pool*: the size of each connection pool."""

    def __init__(self, url: str, name: str = "api", pool: int = 16, limit: float = LIMIT) -> None:
        self.name, self.url, self.limit = name, make_url(url), limit
        self.breaker, self._pool = CircuitBreaker(), pool
        self.kind = self.url.get_backend_name()
        if self.kind not in RECHECK_INTERVAL:
            raise ValueError(f"database {name}: the URL must begin with sqlite:// or postgresql+psycopg://")
        if self.kind == "postgresql":
            self.url = self.url.update_query_dict({parameter: NOTICED[parameter]
                                                   for parameter in NOTICED.keys() - self.url.query.keys()})
        make: Callable[..., Engine] = sqlite.create_sqlite_engine
        if self.kind == "postgresql":
            from . import postgresql
            make = partial(postgresql.create_postgresql_engine, limit=limit, breaker=self.breaker)
        #: ``engine`` is for transactions, ``reading`` for single statements (autocommit): changing the isolation level
        #: of a connection and back takes longer than a small query.
        self.engine = make(self.url, pool)
        self.reading = make(self.url, pool, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
        self._open: deque[Connection] = deque()
        self._to_read, self._to_write = (_thread_limit(count, patience) for count, patience in THREAD_LIMITS[self.kind])
        self.signals = ChangeSignals(RECHECK_INTERVAL[self.kind])
        #: Identifies this process's notifications, which its listener ignores: ``notify`` wakes its own threads
        #: directly.
        self.origin = uuid.uuid4().hex[:12]
        self._listener: Listener | FileWatch | None = None
        self._notifier = Notifier(self.name, self.reading, self.origin) if self.kind == "postgresql" else None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection in autocommit mode, for reading; each statement is a separate transaction."""
        self._refuse()
        with self.breaker, self._to_read():
            connection = self.take_open_connection() or self.reading.connect()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self.leave_open(connection)

    def take_open_connection(self) -> Connection | None:
        """Return a working connection for reading that ``leave_open`` has stored; ``None`` if there is none. The caller
        is then its only user. Never waits."""
        while self._open:
            try:
                connection = self._open.pop()
            except IndexError:  # another thread has taken it
                break
            raw: Any = connection.connection.dbapi_connection
            if self.kind == "sqlite" or not raw.is_stale():
                return connection
            connection.invalidate()
            connection.close()
        return None

    def leave_open(self, connection: Connection) -> None:
        """Store an idle connection for the next ``take_open_connection``; close it if ``OPEN`` connections are already
        stored. The connection's last statement must be complete, and must not have failed."""
        if len(self._open) < OPEN:
            self._open.append(connection)
        else:
            connection.close()

    @contextlib.contextmanager
    def single(self) -> Iterator[Connection]:
        """Yield a connection for one writing statement, which is its own transaction. Calls of ``notify`` in the
        ``with`` block take effect after the statement."""
        self._refuse()
        signalled: dict[str, bool] = {}
        with self.breaker, self._to_write(), self.reading.connect() as connection:
            connection.info["signalled"] = signalled
            yield connection
        self._wake_waiters(signalled)

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield the connection of one transaction (``BEGIN IMMEDIATE`` on SQLite). Calls of ``notify`` in the ``with``
        block take effect after the commit."""
        self._refuse()
        with self.breaker, self._to_write(), self.engine.connect() as connection:
            signalled: dict[str, bool] = {}
            connection.info["signalled"] = signalled
            with connection.begin():
                yield connection
        self._wake_waiters(signalled)

    def _wake_waiters(self, signalled: Mapping[str, bool]) -> None:
        """Wake the threads that wait (``ChangeSignals.wait``) for one of the names in *signalled*. A name that maps to
        true also wakes the threads of other processes."""
        for name in signalled:
            self.signals.notify(name)
        if self._notifier and (remote_names := [name for name, remote in signalled.items() if remote]):
            self._notifier.send(remote_names)

    def _refuse(self) -> None:
        """Raise ``OperationalError`` while the circuit breaker of this PostgreSQL database refuses queries, because the
        database hangs. Do this only in a ``statement_timeout`` block with *refused*; otherwise do nothing."""
        if fails_fast() and self.kind == "postgresql" and self.breaker.refuses():
            raise hanging_database_error(self.name)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """The thread pool for queries that a caller sends to several cells' databases at the same time. Each database
        has a separate pool, so a database that hangs does not block the others."""
        return ThreadPoolExecutor(self._pool, thread_name_prefix=f"ask {self.name}")

    def clock(self, plus: float = 0.0) -> Any:
        """Return the time *plus* seconds from now, for use in SQL statements: a text on SQLite, an SQL expression for
        the server's own time on PostgreSQL. Leases use this clock, because the clocks of the machines may differ."""
        return utc_now(plus) if self.kind == "sqlite" else postgresql_now(plus)

    def notify(self, connection: Connection, name: str, *, remote: bool = True) -> None:
        """When the transaction of *connection* (from ``write`` or ``single``) is committed, wake the threads that wait
        for *name* (``ChangeSignals.wait``). *remote*: also in other processes."""
        signalled: dict[str, bool] = connection.info["signalled"]
        signalled[name] = remote or signalled.get(name, False)

    def retried(self, function: Callable[[], T], when: Callable[[DBAPIError], bool] | None = None) -> T:
        """Call *function* again and again until it succeeds, for at most ``RETRY_FOR`` seconds, and return its result.
        The function must be idempotent. *when*: returns whether to retry after an error; by default, after transient
        errors (``is_transient_error``)."""
        again = when or is_transient_error
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
        """Start to receive the signals (``notify``) of other processes: from PostgreSQL, or by watching the SQLite
        file.
        """
        if self._listener is not None:
            return
        if self.kind == "postgresql":
            from .postgresql import Listener
            self._listener = Listener(self.name, self.url, self.signals, self.origin)
        elif (path := self.url.database) and path != ":memory:":
            try:
                self._listener = FileWatch(self.name, path, self.signals)
            except OSError as error:
                log.warning("database %s: %s; changes by other processes are looked for every %g s. Raise "
                            "fs.inotify.max_user_instances to have them reported", self.name, error,
                            self.signals.recheck_interval)
                return
            self.signals.recheck_interval = WATCHED
        if self._listener is not None:
            self._listener.start()

    def close(self) -> None:
        """Stop the threads of the database and close all its connections."""
        if self._listener:
            self._listener.stop()
        if self._notifier:
            self._notifier.stop()
        if "threads" in self.__dict__:
            self.threads.shutdown(wait=False, cancel_futures=True)
        while self._open:
            self._open.pop().close()
        self.reading.dispose()
        self.engine.dispose()


class ChangeCheck:
    """A cheap check whether a database may have changed since the last check, to avoid needless queries. On SQLite it
    compares the files' modification times, and also reports a change every *most* seconds. On PostgreSQL it always
    reports a change."""

    def __init__(self, database: Database, most: float) -> None:
        self.database, self._most = database, most
        self._mark: tuple[float, ...] | None = None
        self._until = 0.0

    def may_have_changed(self) -> bool:
        """Return whether the database may have changed since the last call that returned true."""
        path = self.database.url.database if self.database.kind == "sqlite" else None
        mark = sqlite.commit_mark(path) if path else None
        if mark is not None and mark == self._mark and time.monotonic() < self._until:
            return False
        self._mark, self._until = mark, time.monotonic() + self._most
        return True


def insert_if_absent(connection: Connection, table: Table, **row: Any) -> bool:
    """Insert *row* into *table* unless it violates a unique constraint; return whether it was inserted. PostgreSQL
    waits for a concurrent transaction that inserts the same row, so exactly one of several competing callers gets
    true."""
    return connection.execute(_insert_statement(connection.dialect.name, table), row).rowcount == 1


def insert_if_absent_returning(connection: Connection, table: Table, **row: Any) -> Row[Any] | None:
    """Insert *row* into *table* and return it; ``None``, with nothing inserted, if it violates a unique constraint."""
    return connection.execute(returning_rows(_insert_statement(connection.dialect.name, table)), row).one_or_none()


def drop_null_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *rows*, for an insert, without the columns that are ``None`` in all of them. This keeps most inserts below
    50 parameters. psycopg does not cache statements with more parameters, and parsing them takes longer than sending
    them."""
    names = {name for row in rows for name, value in row.items() if value is not None}
    return [{name: value for name, value in row.items() if name in names} for row in rows]


def insert_returning_rows(connection: Connection, statement: Insert, key: Column[Any],
                          rows: Sequence[Mapping[str, Any]]) -> Sequence[Row[Any]]:
    """Insert *rows* by *statement*, and return all rows of the table whose *key* column has one of the inserted values.
    For several *rows*, a second query reads the rows instead of a RETURNING clause, because SQLAlchemy would compile
    that clause each time."""
    if len(rows) == 1:
        return connection.execute(returning_rows(statement), rows[0]).all()
    connection.execute(statement, rows)
    return connection.execute(_select_by_keys(key), {"keys": [row[key.name] for row in rows]}).all()


@cache
def returning_rows(statement: Insert | Update) -> Any:
    """Return *statement* with a RETURNING clause for all columns of its table. The result is cached."""
    return statement.returning(statement.table)


@cache
def _select_by_keys(key: Column[Any]) -> Any:
    return select(key.table).where(key.in_(bindparam("keys", expanding=True)))


@cache
def _insert_statement(kind: str, table: Table) -> Any:
    """Return an INSERT for *table* that does nothing on a conflict, for ``insert_if_absent``. *kind*: ``sqlite`` or
    ``postgresql``. The result is cached. The option ``preserve_rowcount`` is needed because SQLAlchemy would otherwise
    return -1 as the row count."""
    return INSERT[kind](table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


def is_transient_error(error: DBAPIError) -> bool:
    """Return whether the same transaction may succeed if it is repeated soon: the error is a lost connection, a
    deadlock or a busy SQLite file."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or isinstance(error, OperationalError) or state[:2] in ("08", "40", "57")


def is_transaction_conflict(error: DBAPIError) -> bool:
    """Return whether PostgreSQL rolled the transaction back because of a concurrent transaction: by a deadlock or
    serialization failure, or because the concurrent transaction removed a referenced row or inserted the same row."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return state[:2] == "40" or state in (REFERRED, TWICE)


def is_disk_full(error: BaseException) -> bool:
    """Return whether *error* says that a disk is full: the database's disk, or the disk of a local file."""
    if isinstance(error, DBAPIError):
        cause = error.orig
        return getattr(cause, "sqlstate", None) == FULL or getattr(cause, "sqlite_errorcode", 0) in (
            sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_database_unreachable(error: BaseException) -> bool:
    """Return whether *error* says that the database does not answer: it is down, or so slow that no connection became
    free. Return false for a statement that the database rejects."""
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # SQLite understood the statement, and cannot execute it
    return isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and is_transient_error(error))
