# SPDX-License-Identifier: GPL-3.0-or-later
"""SQLAlchemy engines for SQLite (WAL) and PostgreSQL, as ``Database`` needs them."""

from __future__ import annotations

import math
import os
import select
import sqlite3
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, PoolProxiedConnection, create_engine, event
from sqlalchemy.exc import InvalidatePoolError

from . import regex
from .timeouts import CircuitBreaker, LimitedConnection

#: Bytes that SQLite takes of a process for all its connections, of which there may be some hundred; each by itself may
#: have 16 MB of pages. When there are more it uses pages again, which are in the kernel's cache.
SQLITE_MEMORY = 64 << 20
SQLITE_PRAGMAS = ("synchronous=NORMAL", "busy_timeout=30000", "foreign_keys=ON", "cache_size=-16000",
                  f"soft_heap_limit={SQLITE_MEMORY}", "temp_store=MEMORY")
#: PostgreSQL ends a statement after its limit. When it does not, the client gives the connection up so many seconds
#: later. Seconds of a transaction in which nothing is asked.
MORE, IDLE = 2.0, 60.0
#: Seconds for which the switch to WAL is tried.
WAL_WITHIN = 10.0


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


def postgresql(url: URL, pool: int, limit: float, breaker: CircuitBreaker, **how: Any) -> Engine:
    """The pool is LIFO: the connection that was used last has most statements prepared."""
    engine = create_engine(url, pool_size=pool, max_overflow=pool, pool_recycle=1800, pool_use_lifo=True,
                           hide_parameters=True,  # passwords and keys are among them, and errors are logged
                           connect_args={"prepare_threshold": 1, "cursor_factory": _Cursor}, **how)

    @event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, _record: Any, given: Any, named: dict[str, Any]) -> Any:
        if limit and "options" not in named:  # what the URL says itself goes before
            named["options"] = f"-c statement_timeout={limit * 1000:.0f} " \
                               f"-c idle_in_transaction_session_timeout={IDLE * 1000:.0f}"
        try:
            made = LimitedConnection.connect(*given, **named)
        except psycopg.errors.ConnectionTimeout:
            breaker.late()
            raise
        made.breaker, made.limit = breaker, limit + MORE if limit else math.inf
        return made

    event.listen(engine, "checkout", _still_there)
    return engine


def _still_there(raw: Any, record: Any, _proxy: Any) -> None:
    """A server that has ended or restarted has closed its connections, or said why it will: then all of before are
    given up, and a new one is made. To look costs a few millionths of a second, to ask the server a hundred."""
    poll = record.info.get("poll")
    if poll is None:
        poll = record.info["poll"] = select.poll()
        poll.register(raw.pgconn.socket, select.POLLIN)
    if poll.poll(0):
        raise InvalidatePoolError("the database has closed the connection")


def sqlite(url: URL, pool: int, **how: Any) -> Engine:
    path = url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # keys and hashes of passwords are in it
    engine = create_engine(url, pool_size=pool, max_overflow=pool, pool_use_lifo=True, hide_parameters=True,
                           connect_args={"check_same_thread": False, "timeout": 30.0}, **how)

    @event.listens_for(engine, "connect")
    def connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # transactions are begun by _begin
        raw.create_function("regexp", 2, regex.regexp, deterministic=True)  # SQLAlchemy's is Python's
        _with_log(raw)
        for pragma in SQLITE_PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")

    if "isolation_level" not in how:  # in the other engine each statement is a transaction
        # No event of the engine: where it has one, SQLAlchemy looks for listeners at each step of each statement.
        engine.dialect.do_begin = _begin  # type: ignore[method-assign]
    return engine


def _begin(dbapi_connection: PoolProxiedConnection) -> None:
    """Begin a transaction that may write; SQLAlchemy calls it, and turns errors into its own."""
    raw: Any = dbapi_connection.dbapi_connection
    raw.execute("BEGIN IMMEDIATE")


def _with_log(raw: Any) -> None:
    """Switch the file to WAL. The first to do so locks the whole file, and SQLite does not wait for that lock."""
    deadline = time.monotonic() + WAL_WITHIN
    while True:
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)
