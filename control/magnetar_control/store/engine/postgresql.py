# SPDX-License-Identifier: GPL-3.0-or-later
"""PostgreSQL through psycopg: the engine, connections with a time limit, and notifications. A process that uses only
SQLite does not import this module: psycopg takes 10 MiB."""

from __future__ import annotations

import logging
import math
import select
import threading
import time
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

import psycopg
from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import InvalidatePoolError

from .bell import ALL, CHANNEL, ChangeSignals
from .timeouts import SILENT, CircuitBreaker, timeout_around

log = logging.getLogger(__name__)
T = TypeVar("T")
#: ``MORE``: seconds after which the client drops the connection, when PostgreSQL does not end a statement at its limit.
#: ``IDLE``: seconds that a transaction may stay idle.
MORE, IDLE = 2.0, 60.0
#: Seconds after which a connection is replaced.
OLD = 1800


class Hangs(psycopg.OperationalError):
    """The error for a database that has not answered within the time limit."""


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that closes itself when a statement exceeds its time limit. TCP alone does not notice a server
    process that hangs, because the server's kernel keeps the connection alive."""

    limit = math.inf
    breaker: CircuitBreaker
    #: When the connection was opened.
    opened = math.inf
    #: Whether ``wait`` returns after sending the query; and the rest of the wait, which ``receive`` continues.
    _sends = False
    _rest: Generator[Any, Any, Any] | None = None

    @cached_property
    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return poll

    def is_closing(self) -> bool:
        """Return whether the server has closed this idle connection, or has announced that it will. Only polls the
        socket, which takes a few microseconds; a query would take a hundred."""
        return bool(self._poll.poll(0))

    def is_stale(self) -> bool:
        """Return whether the idle connection must be replaced: the server has closed it, or the connection is old."""
        return time.monotonic() - self.opened > OLD or self.is_closing()

    def wait(self, gen: Generator[Any, Any, T], *how: Any, **more: Any) -> T:
        """Override psycopg's ``wait``, and limit the waiting time: to the seconds of the caller's ``statement_timeout``
        block, or by default to the limit of the connection."""
        if self._sends:
            self._rest = _resume(gen, next(gen))
            return cast("T", None)
        seconds, refused = timeout_around(self.limit)
        return super().wait(gen if seconds == math.inf else self._until(gen, seconds, refused), *how, **more)

    def send(self, query: Any, parameters: Any) -> psycopg.Cursor[Any]:
        """Send a query as ``execute`` does, and return its cursor without waiting for the answer. Do not use the
        connection for anything else until ``receive`` has returned."""
        self._sends = True
        try:
            return self.execute(query, parameters)
        finally:
            self._sends = False

    def receive(self) -> None:
        """Wait for the answer to the query of ``send``. Raises the errors of ``execute``."""
        rest, self._rest = self._rest, None
        if rest is not None:
            self.wait(rest)

    def _until(self, gen: Generator[Any, Any, T], seconds: float, refused: bool) -> Generator[Any, Any, T]:
        """Run psycopg's generator *gen* and return its result. Raise ``Hangs`` and close the connection if there is no
        answer after *seconds*; with *refused*, raise ``Hangs`` earlier if the circuit breaker says that the database
        hangs. psycopg must resume the generator at least every 0.1 s."""
        began = time.monotonic()
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                waited = 0.0 if ready else time.monotonic() - began
                if waited > seconds or (refused and waited > SILENT and self.breaker.hangs):
                    self.breaker.late()
                    gen.close()
                    self.pgconn.finish()
                    raise Hangs(f"no answer within {min(seconds, waited):.1f} s")
                awaited = gen.send(ready)
        except StopIteration as end:
            return cast("T", end.value)


def _resume(gen: Generator[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Continue psycopg's generator *gen* and return its result. *awaited*: the value that *gen* yielded last."""
    try:
        while True:
            awaited = gen.send((yield awaited))
    except StopIteration as end:
        return cast("T", end.value)


class _Columns(Sequence[Any]):
    """The description of a cursor (PEP 249), built only when it is read."""

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
    """A cursor whose description is built only when it is read. SQLAlchemy gets the description of every result, but
    reads only the description of a statement's first result. Building a description takes a third of the time that a
    query for a server takes."""

    @property
    def description(self) -> Any:
        """Override psycopg's ``description``: return the descriptions of the columns (PEP 249), built on demand."""
        return _Columns(self) if self.pgresult and self.pgresult.nfields else super().description


def create_postgresql_engine(url: URL, pool: int, limit: float, breaker: CircuitBreaker, **how: Any) -> Engine:
    """Create SQLAlchemy's engine for the database at *url*. *pool*: the number of pooled connections. *limit*: seconds
    for a statement. *breaker*: is informed of timeouts. *how*: further arguments of ``create_engine``. The pool is
    LIFO, because the connection that was used last has most statements prepared."""
    made = create_engine(url, pool_size=pool, max_overflow=pool, pool_recycle=OLD, pool_use_lifo=True,
                         hide_parameters=True,  # passwords and keys are among them, and errors are logged
                         connect_args={"prepare_threshold": 1, "cursor_factory": _Cursor}, **how)

    @event.listens_for(made, "do_connect")
    def connecting(_dialect: Any, _record: Any, arguments: Any, named: dict[str, Any]) -> Any:
        if limit and "options" not in named:  # options of the URL come first
            named["options"] = f"-c statement_timeout={limit * 1000:.0f} " \
                               f"-c idle_in_transaction_session_timeout={IDLE * 1000:.0f}"
        try:
            connection = LimitedConnection.connect(*arguments, **named)
        except psycopg.errors.ConnectionTimeout:
            breaker.late()
            raise
        connection.breaker, connection.limit = breaker, limit + MORE if limit else math.inf
        connection.opened = time.monotonic()
        return connection

    event.listen(made, "checkout", _still_there)
    return made


def _still_there(raw: Any, _record: Any, _proxy: Any) -> None:
    """Raise ``InvalidatePoolError`` if the server has closed the pooled connection *raw*: SQLAlchemy then replaces all
    connections of the pool."""
    if raw.is_closing():
        raise InvalidatePoolError("the database has closed the connection")


class Listener(threading.Thread):
    """A thread that receives notifications from PostgreSQL, and wakes the threads of this process that wait for the
    name in a notification. *signals*: a set of condition variables by name, for these threads. *origin*: a text that
    identifies this process; notifications with this text, which the process itself has sent, are ignored. After a lost
    connection the thread connects again, and wakes all waiting threads once, because notifications may have been lost.
    """

    def __init__(self, name: str, url: URL, signals: ChangeSignals, origin: str) -> None:
        super().__init__(name=f"listen {name}", daemon=True)
        self.database_name, self.url, self.signals, self.origin = name, url, signals, origin
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                log.warning("database %s: no notifications (%s); connecting again", self.database_name, error)
                self.over.wait(1.0)

    def _listen(self) -> None:
        url = self.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            for name in ALL:
                self.signals.notify(name)
            while not self.over.is_set():
                for heard in connection.notifies(timeout=1.0):
                    name, _space, origin = heard.payload.partition(" ")
                    if origin != self.origin:
                        self.signals.notify(name)

    def stop(self) -> None:
        """Stop the thread within a second."""
        self.over.set()
