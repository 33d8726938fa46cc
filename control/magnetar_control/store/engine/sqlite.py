# SPDX-License-Identifier: GPL-3.0-or-later
"""SQLAlchemy's engine for SQLite (WAL), as ``Database`` needs it; the one for PostgreSQL is in ``postgresql``."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, PoolProxiedConnection, create_engine, event

from . import regex
from .ownership import give_to_owner_of_folder, make_private_folders

#: Bytes that SQLite may use in a process for all its connections, of which some hundred may exist; each connection may
#: have 16 MB of pages. Beyond the limit SQLite reuses pages, which are in the kernel's cache.
SQLITE_MEMORY = 16 << 20
#: Milliseconds that a statement waits for locks of others; and that ``empty_log`` waits, while others must wait.
BUSY, EMPTY_WITHIN = 30000, 500
SQLITE_PRAGMAS = ("synchronous=NORMAL", f"busy_timeout={BUSY}", "foreign_keys=ON", "cache_size=-16000",
                  f"soft_heap_limit={SQLITE_MEMORY}", "temp_store=MEMORY",
                  "secure_delete=ON")  # overwrites deleted data with zeros: actions contain passwords
#: Seconds after a write to a file, in which its time does not tell whether there was another commit.
UNCERTAIN = 2.0
#: Seconds for which the switch to WAL is retried.
WAL_WITHIN = 10.0


def create_sqlite_engine(url: URL, pool: int, **how: Any) -> Engine:
    path = url.database
    if path and path != ":memory:":
        make_private_folders(Path(path).parent)
        is_new = not Path(path).exists()
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # the file contains keys and password hashes
        if is_new:
            give_to_owner_of_folder(Path(path))
    made = create_engine(url, pool_size=pool, max_overflow=pool, pool_use_lifo=True, hide_parameters=True,
                         connect_args={"check_same_thread": False, "timeout": 30.0}, **how)

    @event.listens_for(made, "connect")
    def connected(raw: Any, _record: Any) -> None:
        raw.isolation_level = None  # _begin starts transactions
        raw.create_function("regexp", 2, regex.sqlite_regexp, deterministic=True)  # SQLAlchemy's own uses Python's re
        _with_log(raw)
        for pragma in SQLITE_PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")

    if "isolation_level" not in how:  # in the autocommit engine each statement is a transaction
        # Not an event of the engine: with one, SQLAlchemy looks for listeners at each step of each statement.
        made.dialect.do_begin = _begin  # type: ignore[method-assign]
    return made


def commit_mark(path: str) -> tuple[float, ...] | None:
    """Return a tuple (modification times, sizes and inodes) that changes with every commit to the SQLite file at
    *path*. Return ``None`` shortly after a write, because its commit may not be readable yet."""
    marks: list[float] = []
    for name in (path, f"{path}-wal"):
        try:
            status = Path(name).stat()
        except OSError:
            return None
        if abs(time.time() - status.st_mtime) < UNCERTAIN:
            return None
        marks += (status.st_mtime_ns, status.st_size, status.st_ino)
    return tuple(marks)


def empty_log(connection: Connection) -> bool:
    """Truncate the write-ahead log, which still contains deleted data. Return whether the log was truncated; another
    connection may prevent this."""
    connection.exec_driver_sql(f"PRAGMA busy_timeout={EMPTY_WITHIN}")
    try:
        busy: int = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY}")
    return not busy


def _begin(dbapi_connection: PoolProxiedConnection) -> None:
    """Begin a transaction that may write (``BEGIN IMMEDIATE``). Registered with SQLAlchemy, which calls this and
    converts the errors."""
    raw: Any = dbapi_connection.dbapi_connection
    raw.execute("BEGIN IMMEDIATE")


def _with_log(raw: Any) -> None:
    """Switch the SQLite file of the connection *raw* to a write-ahead log (WAL). The first switch locks the whole file,
    and SQLite does not wait for that lock, so this function retries for ``WAL_WITHIN`` seconds."""
    deadline = time.monotonic() + WAL_WITHIN
    while True:
        try:
            raw.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)
