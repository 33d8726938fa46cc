# SPDX-License-Identifier: GPL-3.0-or-later
"""SQLAlchemy's engine for SQLite (WAL), as ``Database`` needs it; PostgreSQL's is in ``postgresql``."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, PoolProxiedConnection, create_engine, event

from . import regex

#: Bytes that SQLite takes of a process for all its connections, of which there may be some hundred; each by itself may
#: have 16 MB of pages. When there are more it uses pages again, which are in the kernel's cache.
SQLITE_MEMORY = 64 << 20
#: Milliseconds for which a statement waits for others, and for which ``empty_log`` keeps others waiting.
BUSY, EMPTY_WITHIN = 30000, 500
SQLITE_PRAGMAS = ("synchronous=NORMAL", f"busy_timeout={BUSY}", "foreign_keys=ON", "cache_size=-16000",
                  f"soft_heap_limit={SQLITE_MEMORY}", "temp_store=MEMORY",
                  "secure_delete=ON")  # zeros are written over what is deleted: passwords wait in actions
#: Seconds for which the switch to WAL is tried.
WAL_WITHIN = 10.0


def engine(url: URL, pool: int, **how: Any) -> Engine:
    path = url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # keys and hashes of passwords are in it
    made = create_engine(url, pool_size=pool, max_overflow=pool, pool_use_lifo=True, hide_parameters=True,
                         connect_args={"check_same_thread": False, "timeout": 30.0}, **how)

    @event.listens_for(made, "connect")
    def connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # transactions are begun by _begin
        raw.create_function("regexp", 2, regex.regexp, deterministic=True)  # SQLAlchemy's is Python's
        _with_log(raw)
        for pragma in SQLITE_PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")

    if "isolation_level" not in how:  # in the other engine each statement is a transaction
        # No event of the engine: where it has one, SQLAlchemy looks for listeners at each step of each statement.
        made.dialect.do_begin = _begin  # type: ignore[method-assign]
    return made


def empty_log(connection: Connection) -> bool:
    """Empty the write-ahead log, which still has what was deleted since; return whether nobody was in the way."""
    connection.exec_driver_sql(f"PRAGMA busy_timeout={EMPTY_WITHIN}")
    try:
        busy: int = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY}")
    return not busy


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
