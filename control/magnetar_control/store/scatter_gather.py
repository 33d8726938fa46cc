# SPDX-License-Identifier: GPL-3.0-or-later
"""One query to the databases of all cells in parallel, like Nova's scatter_gather_cells.

A cell that hangs blocks only its own threads. Callers wait once for such a cell; until it answers again, it is queried
in the background and no caller waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

from sqlalchemy import Row, Select
from sqlalchemy.exc import SQLAlchemyError

from magnetar_control.store.engine.database import Database, is_database_unreachable
from magnetar_control.store.engine.timeouts import current_timeout, hanging_database_error, statement_timeout

from .store import CELL0, CellMapping, Store

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds that a cell has by default; seconds between two checks whether it hangs.
PATIENCE, LOOK = 60.0, 0.5


def scatter_gather(store: Store, question: Callable[[Database], T], timeout: float | None = None, *,
                   cell0: bool = False) -> dict[str, T | None]:
    """Query every cell (cell0 only with *cell0*), including disabled ones, which only get no new servers.

    Return the answers by cell id: ``None`` for a cell that fails or takes longer than *timeout* seconds (default: the
    limit of ``statement_timeout``).
    """
    cells = [(cell, database) for cell, database in store.databases() if cell0 or cell.id != CELL0]
    return scatter_gather_cells(cells, question, timeout)


def scatter_gather_cells(cells: Sequence[tuple[CellMapping, Database]], question: Callable[[Database], T],
                         timeout: float | None = None) -> dict[str, T | None]:
    """Query these cells as ``scatter_gather`` does. SQLite cells are queried one after the other, in this thread."""
    if all(database.kind == "sqlite" for _cell, database in cells):
        return {cell.id: _answer(cell, lambda database=database: question(database))  # type: ignore[misc]
                for cell, database in cells}
    seconds = min(current_timeout(PATIENCE), PATIENCE) if timeout is None else timeout
    deadline = time.monotonic() + seconds
    pending = [(cell, _ask(database, question, seconds)) for cell, database in cells]
    return {cell.id: _answer(cell, lambda wait=wait: wait(deadline)) for cell, wait in pending}  # type: ignore[misc]


def rows_of_cells(store: Store, question: Select[Any], *, cell0: bool = False) -> list[Sequence[Row[Any]] | None]:
    """Return the rows of each cell; ``None`` for a cell that does not answer."""
    def rows(database: Database) -> Sequence[Row[Any]]:
        with database.read() as connection:
            return connection.execute(question).all()

    return list(scatter_gather(store, rows, cell0=cell0).values())


def _ask(database: Database, question: Callable[[Database], T], seconds: float) -> Callable[[float], T]:
    """Start the query; return a function that waits for its answer until a deadline."""
    in_vain = database.breaker.hangs
    refused = database.breaker.refuses()
    future: Future[T] | None = None
    if not refused:
        with contextlib.suppress(RuntimeError):  # the process is stopping
            future = database.threads.submit(_within, seconds, question, database)

    def wait(deadline: float) -> T:
        while future is not None:
            remaining = 0.0 if in_vain else max(0.0, deadline - time.monotonic())
            try:
                return future.result(min(remaining, LOOK))
            except Late:
                if in_vain:
                    raise
                if remaining <= LOOK or database.breaker.hangs:  # other callers wait without an answer, too
                    future.cancel()
                    database.breaker.late()
                    raise
        raise hanging_database_error(database.name)

    return wait


def _within(seconds: float, question: Callable[[Database], T], database: Database) -> T:
    with statement_timeout(seconds, refused=False):
        return question(database)


def _answer(cell: CellMapping, function: Callable[[], T]) -> T | None:
    try:
        return function()
    except (Late, SQLAlchemyError) as error:
        if not isinstance(error, Late) and not is_database_unreachable(error):
            raise
        log.warning("cell %s does not answer: %s", cell.name, type(error).__name__, extra={"cell": cell.name})
        return None
