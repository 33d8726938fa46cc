# SPDX-License-Identifier: GPL-3.0-or-later
"""One question to the databases of all cells at once; a cell that does not answer is no reason for the others to.

A cell that hangs holds threads of its own only, and is waited for once: until it answers again, it is asked in the
background, and nobody waits.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from .database import Database, away
from .hanging import hangs, limit_now, limited
from .store import CELL0, Cell, Store

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds that a cell has where nobody says how many; and between two looks whether it hangs.
PATIENCE, LOOK = 60.0, 0.5


def asked(store: Store, question: Callable[[Database], T], timeout: float | None = None, *, cell0: bool = False) -> \
        dict[str, T | None]:
    """What each cell that is not disabled answers, by its id (with *cell0*, that one too); ``None`` for one that fails
    or takes longer than *timeout* seconds, those of ``limited`` when left out."""
    return of([(cell, database) for cell, database in store.databases()
               if not cell.disabled and (cell0 or cell.id != CELL0)], question, timeout)


def of(cells: Sequence[tuple[Cell, Database]], question: Callable[[Database], T], timeout: float | None = None) -> \
        dict[str, T | None]:
    """What these cells answer. Files are asked one after the other: they answer at once."""
    if all(database.kind == "sqlite" for _cell, database in cells):
        return {cell.id: _answer(cell, lambda database=database: question(database))  # type: ignore[misc]
                for cell, database in cells}
    seconds = min(limit_now(PATIENCE), PATIENCE) if timeout is None else timeout
    deadline = time.monotonic() + seconds
    found = [(cell, _ask(database, question, seconds)) for cell, database in cells]
    return {cell.id: _answer(cell, lambda wait=wait: wait(deadline)) for cell, wait in found}  # type: ignore[misc]


def _ask(database: Database, question: Callable[[Database], T], seconds: float) -> Callable[[float], T]:
    """Begin to ask; returns what waits for the answer, until a deadline."""
    in_vain = database.pulse.hangs
    refused = database.pulse.refuses()
    future: Future[T] | None = None
    if not refused:
        with contextlib.suppress(RuntimeError):  # the process ends
            future = database.threads.submit(_within, seconds, question, database)

    def wait(deadline: float) -> T:
        while future is not None:
            left = 0.0 if in_vain else max(0.0, deadline - time.monotonic())
            try:
                return future.result(min(left, LOOK))
            except Late:
                if in_vain:
                    raise
                if left <= LOOK or database.pulse.hangs:  # others wait in vain, so all do
                    future.cancel()
                    database.pulse.late()
                    raise
        raise hangs(database.name)

    return wait


def _within(seconds: float, question: Callable[[Database], T], database: Database) -> T:
    with limited(seconds, refused=False):
        return question(database)


def _answer(cell: Cell, function: Callable[[], T]) -> T | None:
    try:
        return function()
    except (Late, SQLAlchemyError) as error:
        if not isinstance(error, Late) and not away(error):
            raise
        log.warning("cell %s does not answer: %s", cell.name, type(error).__name__, extra={"cell": cell.name})
        return None
