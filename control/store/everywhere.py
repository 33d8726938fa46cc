# SPDX-License-Identifier: GPL-3.0-or-later
"""One question to the databases of all cells at once; a cell that does not answer is no reason for the others to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from .database import Database
from .store import CELL0, Cell, Store

T = TypeVar("T")
log = logging.getLogger(__name__)
_THREADS = ThreadPoolExecutor(32, thread_name_prefix="everywhere")


def asked(store: Store, question: Callable[[Database], T], timeout: float = 60.0, *, cell0: bool = False) -> \
        dict[str, T | None]:
    """What each cell that is not disabled answers, by its id (with *cell0*, that one too); ``None`` for one that fails
    or takes longer than *timeout* seconds. Files are asked one after the other: they answer at once."""
    cells = [(cell, database) for cell, database in store.databases()
             if not cell.disabled and (cell0 or cell.id != CELL0)]
    if all(database.kind == "sqlite" for _cell, database in cells):
        return {cell.id: _answer(cell, lambda database=database: question(database))  # type: ignore[misc]
                for cell, database in cells}
    deadline = time.monotonic() + timeout
    futures = [(cell, _THREADS.submit(question, database)) for cell, database in cells]
    return {cell.id: _answer(cell, lambda future=future: future.result(  # type: ignore[misc]
        max(0.0, deadline - time.monotonic()))) for cell, future in futures}


def _answer(cell: Cell, function: Callable[[], T]) -> T | None:
    try:
        return function()
    except (Late, SQLAlchemyError) as error:
        log.warning("cell %s does not answer: %s", cell.name, type(error).__name__, extra={"cell": cell.name})
        return None
