# SPDX-License-Identifier: GPL-3.0-or-later
"""PostgreSQL by psycopg: its engine, connections with a time limit, and notifications. A process whose databases are
SQLite's does not load it: psycopg takes 10 MiB."""

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

from .bell import ALL, CHANNEL, Bell
from .timeouts import SILENT, CircuitBreaker, timeout_around

log = logging.getLogger(__name__)
T = TypeVar("T")
#: PostgreSQL ends a statement after its limit. When it does not, the client gives the connection up so many seconds
#: later. Seconds of a transaction in which nothing is asked.
MORE, IDLE = 2.0, 60.0


class Hangs(psycopg.OperationalError):
    """The database has not answered in time."""


class LimitedConnection(psycopg.Connection[Any]):
    """Closes itself when a statement takes longer than its limit: a stopped server's kernel keeps connections alive."""

    limit = math.inf
    breaker: CircuitBreaker

    def wait(self, gen: Generator[Any, Any, T], *how: Any, **more: Any) -> T:
        """See psycopg."""
        seconds, refused = timeout_around(self.limit)
        return super().wait(gen if seconds == math.inf else self._until(gen, seconds, refused), *how, **more)

    def _until(self, gen: Generator[Any, Any, T], seconds: float, refused: bool) -> Generator[Any, Any, T]:
        """*gen*, which psycopg wakes every 0.1 s. With *refused*, stop waiting when the database hangs."""
        began = time.monotonic()
        try:
            asked = next(gen)
            while True:
                ready = yield asked
                waited = 0.0 if ready else time.monotonic() - began
                if waited > seconds or (refused and waited > SILENT and self.breaker.hangs):
                    self.breaker.late()
                    gen.close()
                    self.pgconn.finish()
                    raise Hangs(f"no answer within {min(seconds, waited):.1f} s")
                asked = gen.send(ready)
        except StopIteration as end:
            return cast("T", end.value)


class _Columns(Sequence[Any]):
    """A cursor's description, made when it is read."""

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
    """SQLAlchemy asks each result for its description and uses that of the first result of a statement only. Making it
    takes a third of the time of reading a server."""

    @property
    def description(self) -> Any:
        """See PEP 249."""
        return _Columns(self) if self.pgresult and self.pgresult.nfields else super().description


def engine(url: URL, pool: int, limit: float, breaker: CircuitBreaker, **how: Any) -> Engine:
    """The pool is LIFO: the connection that was used last has most statements prepared."""
    made = create_engine(url, pool_size=pool, max_overflow=pool, pool_recycle=1800, pool_use_lifo=True,
                         hide_parameters=True,  # passwords and keys are among them, and errors are logged
                         connect_args={"prepare_threshold": 1, "cursor_factory": _Cursor}, **how)

    @event.listens_for(made, "do_connect")
    def connecting(_dialect: Any, _record: Any, given: Any, named: dict[str, Any]) -> Any:
        if limit and "options" not in named:  # what the URL says itself goes before
            named["options"] = f"-c statement_timeout={limit * 1000:.0f} " \
                               f"-c idle_in_transaction_session_timeout={IDLE * 1000:.0f}"
        try:
            connection = LimitedConnection.connect(*given, **named)
        except psycopg.errors.ConnectionTimeout:
            breaker.late()
            raise
        connection.breaker, connection.limit = breaker, limit + MORE if limit else math.inf
        return connection

    event.listen(made, "checkout", _still_there)
    return made


def _still_there(raw: Any, record: Any, _proxy: Any) -> None:
    """A server that has ended or restarted has closed its connections, or said why it will: then all of before are
    given up, and a new one is made. To look costs a few millionths of a second, to ask the server a hundred."""
    poll = record.info.get("poll")
    if poll is None:
        poll = record.info["poll"] = select.poll()
        poll.register(raw.pgconn.socket, select.POLLIN)
    if poll.poll(0):
        raise InvalidatePoolError("the database has closed the connection")


class Listener(threading.Thread):
    """Rings *bell* for PostgreSQL's notifications. It connects again after a lost connection, and rings everything
    once then."""

    def __init__(self, name: str, url: URL, bell: Bell, origin: str) -> None:
        super().__init__(name=f"listen {name}", daemon=True)
        self.database_name, self.url, self.bell, self.origin = name, url, bell, origin
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
                self.bell.ring(name)
            while not self.over.is_set():
                for heard in connection.notifies(timeout=1.0):
                    name, _space, origin = heard.payload.partition(" ")
                    if origin != self.origin:
                        self.bell.ring(name)

    def stop(self) -> None:
        """End within a second."""
        self.over.set()
