# SPDX-License-Identifier: GPL-3.0-or-later
"""Recording of the statements that are sent to databases."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import event

from magnetar_control.store.engine.database import Database

#: Beginnings of statements that are not counted: those of SQLite alone, and notifications to other processes.
ASIDE = ("BEGIN", "COMMIT", "PRAGMA", "SELECT pg_notify")


@contextlib.contextmanager
def listening(*listeners: tuple[Database, Any]) -> Iterator[None]:
    """Within the context, call each database's listener before each statement that is sent to the database."""
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
    """Yield a list that gets the name of the database and the statement, for each statement sent within the context.
    *here*: only those of this thread."""
    seen: list[tuple[str, str]] = []
    thread = threading.get_ident()

    def noting(name: str) -> Any:
        def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            if not statement.startswith(ASIDE) and (not here or threading.get_ident() == thread):
                seen.append((name, statement))
        return note

    with listening(*((database, noting(name)) for name, database in databases.items())):
        yield seen
