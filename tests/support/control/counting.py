# SPDX-License-Identifier: GPL-3.0-or-later
"""What databases are asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import event

from magnetar_control.store.engine.database import Database

#: Not counted: what SQLite does alone, and what a thread tells other processes, at whatever moment it does.
ASIDE = ("BEGIN", "COMMIT", "PRAGMA", "SELECT pg_notify")


@contextlib.contextmanager
def listening(*listeners: tuple[Database, Any]) -> Iterator[None]:
    """Call a listener of each database before each statement that is sent to it within."""
    notes = [(engine, note) for database, note in listeners for engine in (database.engine, database.reading)]
    for engine, note in notes:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        for engine, note in notes:
            event.remove(engine, "before_cursor_execute", note)


@contextlib.contextmanager
def counted(*, here: bool = False, **databases: Database) -> Iterator[list[tuple[str, str]]]:
    """The name of the database and the statement, of each that is sent within; *here*: by this thread."""
    seen: list[tuple[str, str]] = []
    thread = threading.get_ident()

    def noting(name: str) -> Any:
        def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if not statement.startswith(ASIDE) and (not here or threading.get_ident() == thread):
                seen.append((name, statement))
        return note

    with listening(*((database, noting(name)) for name, database in databases.items())):
        yield seen
