# SPDX-License-Identifier: GPL-3.0-or-later
"""One database: SQLite (WAL) or PostgreSQL, the same statements on both, and a doorbell.

A doorbell that is lost never matters: whoever waits looks again after a while (``Bell.wait``). It crosses processes by
LISTEN/NOTIFY on PostgreSQL; on SQLite it rings in its own process, and others look every 50 ms.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Insert,
    Row,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from . import patterns
from .hanging import LimitedConnection, Pulse, hangs, in_haste

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Name of PostgreSQL's notifications.
CHANNEL = "magnetar"
NOTIFY = text("SELECT pg_notify(:channel, :name)")
#: Seconds after which somebody who waits looks again, by engine: (somebody else may have written; nobody rang).
LOOK_AGAIN = {"sqlite": 0.05, "postgresql": 2.0}
SQLITE_PRAGMAS = ("synchronous=NORMAL", "busy_timeout=30000", "foreign_keys=ON", "cache_size=-16000",
                  "temp_store=MEMORY")
#: How many of a process read and write at once, and how many seconds the next waits for one of them; then it is tried
#: nevertheless. Who waits for SQLite's own lock sleeps up to 0.1 s at a time; who waits here is woken at once. More
#: connections to PostgreSQL answer none sooner, since one thread of Python computes at a time; but a query may hang.
TURNS = {"sqlite": ((64, 0.0), (1, 30.0)), "postgresql": ((3, 0.1), (3, 0.1))}
#: How a PostgreSQL whose machine is gone without a word is noticed: seconds; the last milliseconds. What the URL says
#: itself goes before.
NOTICED = {"connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
           "tcp_user_timeout": "20000"}
#: Seconds between two notifications, in which more is rung. The first is sent at once.
GATHER = 0.02
#: How long a call is tried again while the database is away, in seconds.
RETRY_FOR = 10.0
#: Seconds that a statement may take; the server ends it, and when that does not answer either, after so many more, the
#: client gives the connection up. Seconds of a transaction in which nothing is asked.
LIMIT, MORE, IDLE = 60.0, 2.0, 60.0


def now() -> str:
    """This moment as the tables keep it: UTC, microseconds, sortable as text."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")


def utc(plus: float = 0.0) -> Any:
    """PostgreSQL's own moment, *plus* seconds from now, in the form of ``now``."""
    moment = func.timezone("utc", func.clock_timestamp()) + timedelta(seconds=plus)
    return func.to_char(moment, 'YYYY-MM-DD"T"HH24:MI:SS.US')


class Bell:
    """Rings by name; whoever waits for the name wakes up."""

    def __init__(self, look_again: float) -> None:
        self.look_again = look_again
        self._condition = threading.Condition()
        self._rung: dict[str, int] = {}

    def count(self, name: str) -> int:
        """How often *name* was rung; take it before looking at the table, and give it to ``wait``."""
        with self._condition:
            return self._rung.get(name, 0)

    def ring(self, name: str) -> None:
        """Wake who waits for *name*."""
        with self._condition:
            self._rung[name] = self._rung.get(name, 0) + 1
            self._condition.notify_all()

    def wait(self, name: str, seen: int, limit: float | None = None) -> None:
        """Wait until *name* was rung more often than *seen*, or it is time to look again."""
        limit = self.look_again if limit is None else min(limit, self.look_again)
        with self._condition:
            self._condition.wait_for(lambda: self._rung.get(name, 0) != seen, limit)


class _Turns:
    """A few at a time; see ``TURNS``."""

    def __init__(self, count: int, patience: float) -> None:
        self._free, self._patience = threading.Semaphore(count), patience

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        mine = self._free.acquire(timeout=self._patience)
        try:
            yield
        finally:
            if mine:
                self._free.release()


class Database:
    """A database by SQLAlchemy *url*: ``sqlite:////path`` or ``postgresql+psycopg://user@host/name``. *limit*: seconds
    that a statement may take on PostgreSQL; 0 for as long as it likes."""

    def __init__(self, url: str, name: str = "api", pool: int = 16, limit: float = LIMIT) -> None:
        self.name, self.url, self.limit = name, make_url(url), limit
        self.pulse, self._pool = Pulse(), pool
        self.kind = self.url.get_backend_name()
        if self.kind not in LOOK_AGAIN:
            raise ValueError(f"database {name}: the URL must begin with sqlite:// or postgresql+psycopg://")
        if self.kind == "postgresql":
            self.url = self.url.update_query_dict({one: NOTICED[one] for one in NOTICED.keys() - self.url.query.keys()})
        make = _sqlite if self.kind == "sqlite" else partial(_postgresql, limit=limit, pulse=self.pulse)
        #: Of transactions, and of statements that are read one by one. To take a connection from the pool and change
        #: how it works, there and back, takes longer than a small query.
        self.engine = make(self.url, pool)
        self.reading = make(self.url, pool, isolation_level="AUTOCOMMIT", skip_autocommit_rollback=True)
        self._to_read, self._to_write = (_Turns(*one) for one in TURNS[self.kind])
        self.bell = Bell(LOOK_AGAIN[self.kind])
        #: Who rings: what is rung here is heard here at once, and need not be heard again from PostgreSQL.
        self.origin = uuid.uuid4().hex[:12]
        self._listener: _Listener | None = None
        self._ringer = _Ringer(self) if self.kind == "postgresql" else None

    def read(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection for reading; each statement is a transaction of its own."""
        return self._asked(self._to_read)

    def write_one(self) -> contextlib.AbstractContextManager[Connection]:
        """A connection for one statement that changes something, and is a transaction by itself. Nothing is rung."""
        return self._asked(self._to_write)

    @contextlib.contextmanager
    def _asked(self, turns: _Turns) -> Iterator[Connection]:
        self._refuse()
        with self.pulse.felt(), turns.taken(), self.reading.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction (``BEGIN IMMEDIATE`` on SQLite); what was ``ring``ed in it is heard after the commit."""
        self._refuse()
        with self.pulse.felt(), self._to_write.taken(), self.engine.connect() as connection:
            rung: set[str] = set()
            connection.info["rung"] = rung
            with connection.begin():
                yield connection
        for name in rung:
            self.bell.ring(name)
        if rung and self._ringer:
            self._ringer.ring(rung)

    def _refuse(self) -> None:
        """Raise ``OperationalError`` where ``limited`` says so and the database hangs."""
        if in_haste() and self.kind == "postgresql" and self.pulse.refuses():
            raise hangs(self.name)

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        """Threads for those who wait for this database with a limit: when it hangs, nobody else's are held."""
        return ThreadPoolExecutor(self._pool, thread_name_prefix=f"ask {self.name}")

    def clock(self, plus: float = 0.0) -> Any:
        """The moment *plus* seconds from now by the database's clock, for leases: those of machines may differ."""
        if self.kind == "sqlite":
            return (datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=plus)).isoformat(timespec="microseconds")
        return utc(plus)

    def ring(self, connection: Connection, name: str) -> None:
        """Have *name* rung when the transaction of *connection* (from ``write``) is committed."""
        connection.info["rung"].add(name)

    def retried(self, function: Callable[[], T], limit: float = RETRY_FOR) -> T:
        """*function*, which may be done twice, again while the database is away or two transactions collide."""
        deadline, pause = time.monotonic() + limit, 0.02
        while True:
            try:
                return function()
            except DBAPIError as error:
                if not passing(error) or time.monotonic() + pause > deadline:
                    raise
                log.warning("database %s: %s; trying again", self.name, type(error.orig).__name__)
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def listen(self) -> None:
        """Hear what other processes ring (PostgreSQL); on SQLite there is nothing to hear."""
        if self.kind == "postgresql" and self._listener is None:
            self._listener = _Listener(self)
            self._listener.start()

    def close(self) -> None:
        """Give all connections back."""
        if self._listener:
            self._listener.stop()
        if self._ringer:
            self._ringer.stop()
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
    return connection.execute(_adding_whole(connection.dialect.name, table), row).one_or_none()


def written(connection: Connection, statement: Insert, key: Column[Any],
            rows: Sequence[Mapping[str, Any]]) -> Sequence[Row[Any]]:
    """Add rows, and return all that there are then of the same *key*. Of several SQLAlchemy would make a RETURNING
    anew each time, which takes longer than to ask for them."""
    if len(rows) == 1:
        return connection.execute(_returning(statement), rows[0]).all()
    connection.execute(statement, rows)
    return connection.execute(_of_keys(key), {"keys": [row[key.name] for row in rows]}).all()


@cache
def _returning(statement: Insert) -> Any:
    return statement.returning(statement.table)


@cache
def _of_keys(key: Column[Any]) -> Any:
    return select(key.table).where(key.in_(bindparam("keys", expanding=True)))


@cache
def _adding(kind: str, table: Table) -> Any:
    """The statement of ``added``, made once. Without the option SQLAlchemy does not keep psycopg's count of an INSERT:
    it would be -1."""
    insert = postgresql.insert if kind == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


@cache
def _adding_whole(kind: str, table: Table) -> Any:
    return _adding(kind, table).returning(table)


def passing(error: DBAPIError) -> bool:
    """Whether the same transaction may succeed in a moment: no connection, a deadlock, a busy file."""
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or isinstance(error, OperationalError) or state[:2] in ("08", "40", "57")


def away(error: BaseException) -> bool:
    """Whether *error* says that the database does not answer: it is gone, or so slow that no connection was free. What
    it refuses is something else."""
    if getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # SQLite understood the statement, and cannot do it
    return isinstance(error, PoolTimeout) or (isinstance(error, DBAPIError) and passing(error))


class _Columns(Sequence[Any]):
    """What a cursor says of its columns, made when somebody looks."""

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    @cached_property
    def _made(self) -> list[Any]:
        return psycopg.Cursor.description.fget(self._cursor) or []  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._made)

    def __getitem__(self, at: Any) -> Any:
        return self._made[at]


class _Cursor(psycopg.Cursor[Any]):
    """SQLAlchemy asks of each result what its columns are, and looks at it at the first of each statement only. To make
    it takes a third of reading a server."""

    @property
    def description(self) -> Any:
        """See PEP 249."""
        return _Columns(self) if self.pgresult and self.pgresult.nfields else super().description


def _postgresql(url: URL, pool: int, limit: float, pulse: Pulse, **how: Any) -> Engine:
    """The connection given back last is taken first: it has most statements prepared."""
    engine = create_engine(url, pool_size=pool, max_overflow=pool, pool_recycle=1800, pool_use_lifo=True,
                           connect_args={"prepare_threshold": 1, "cursor_factory": _Cursor}, **how)

    @event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, _record: Any, given: Any, named: dict[str, Any]) -> Any:
        if limit and "options" not in named:  # what the URL says itself goes before
            named["options"] = f"-c statement_timeout={limit * 1000:.0f} " \
                               f"-c idle_in_transaction_session_timeout={IDLE * 1000:.0f}"
        try:
            made = LimitedConnection.connect(*given, **named)
        except psycopg.errors.ConnectionTimeout:
            pulse.late()
            raise
        made.pulse, made.limit = pulse, limit + MORE if limit else math.inf
        return made

    return engine


def _sqlite(url: URL, pool: int, **how: Any) -> Engine:
    path = url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # keys and hashes of passwords are in it
    engine = create_engine(url, pool_size=pool, max_overflow=pool, pool_use_lifo=True, connect_args={
        "check_same_thread": False, "timeout": 30.0}, **how)

    @event.listens_for(engine, "connect")
    def connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # transactions are begun below
        raw.create_function("regexp", 2, patterns.regexp, deterministic=True)  # SQLAlchemy's is Python's
        _with_log(raw)
        for pragma in SQLITE_PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")

    if "isolation_level" not in how:  # in the other engine each statement is a transaction
        @event.listens_for(engine, "begin")
        def begun(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _with_log(raw: Any) -> None:
    """Have the file keep a log. The first who does needs the whole file, and SQLite does not wait for those who open it
    at the same moment."""
    deadline = time.monotonic() + RETRY_FOR
    while True:
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class _Ringer:
    """Tells other processes, in a thread of its own, what was rung. Not in the transaction: PostgreSQL commits those
    that notify one after the other, whichever database they are of. When it fails, nobody is told: a lost doorbell
    never matters."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._names: set[str] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._over = False

    def ring(self, names: Collection[str]) -> None:
        """Have *names* told soon."""
        with self._condition:
            self._names.update(names)
            if not self._thread and not self._over:
                self._thread = threading.Thread(target=self._run, name=f"ring {self.database.name}", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._names or self._over)
                names, self._names = self._names, set()
            if not names:
                return
            try:
                with self.database.reading.connect() as connection:
                    for name in names:
                        connection.execute(NOTIFY, {"channel": CHANNEL, "name": f"{name} {self.database.origin}"})
            except SQLAlchemyError as error:
                log.warning("database %s: others are not told (%s)", self.database.name, type(error).__name__)
            time.sleep(GATHER)

    def stop(self) -> None:
        """Tell what is left, and end."""
        with self._condition:
            thread, self._over = self._thread, True
            self._condition.notify()
        if thread:
            thread.join(RETRY_FOR)


class _Listener(threading.Thread):
    """Turns PostgreSQL's notifications into rings. A lost connection is made anew, and everything rung once."""

    def __init__(self, database: Database) -> None:
        super().__init__(name=f"listen {database.name}", daemon=True)
        self.database, self.over = database, threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self._hear()
            except psycopg.Error as error:
                log.warning("database %s: no notifications (%s); connecting again", self.database.name, error)
                self.over.wait(1.0)

    def _hear(self) -> None:
        url = self.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            for name in ("actions", "servers"):
                self.database.bell.ring(name)
            while not self.over.is_set():
                for heard in connection.notifies(timeout=1.0):
                    name, _space, origin = heard.payload.partition(" ")
                    if origin != self.database.origin:
                        self.database.bell.ring(name)

    def stop(self) -> None:
        """End within a second."""
        self.over.set()
