# SPDX-License-Identifier: GPL-3.0-or-later
"""One query to the databases of all cells in parallel, like Nova's scatter_gather_cells.

A cell that hangs blocks only its own threads. Callers wait once for such a cell; until it answers again, it is queried
in the background and no caller waits.

One prepared query (``scatter_query``) needs no threads: PostgreSQL's cells get it over connections that are open, and
the caller waits for all sockets together. Passing the query to a thread for each cell would take longer than the query.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select
from sqlalchemy.exc import SQLAlchemyError

from magnetar_control.store.engine.database import Database, is_database_unreachable
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.timeouts import current_timeout, hanging_database_error, statement_timeout

from .store import CELL0, CellMapping, Store

T = TypeVar("T")
log = logging.getLogger(__name__)
#: Seconds that a cell has by default; seconds between two checks whether it hangs.
PATIENCE, POLL_INTERVAL = 60.0, 0.5
#: A query that was sent to a cell: the generator waits for its answer and returns its rows.
Sent = Generator[None, None, list[Any]]


def scatter_gather(store: Store, question: Callable[[Database], T], timeout: float | None = None, *,
                   cell0: bool = False) -> dict[str, T | None]:
    """Call *question* with the database of each cell, including disabled cells, in parallel.

    Return the results by cell id; ``None`` for a cell that does not answer within *timeout* seconds (default: the limit
    of the caller's ``statement_timeout`` block, at most ``PATIENCE``). Other errors of *question* are raised. *cell0*:
    whether to include cell0.
    """
    cells = [(cell, database) for cell, database in store.databases() if cell0 or cell.id != CELL0]
    return scatter_gather_cells(cells, question, timeout)


def scatter_gather_cells(cells: Sequence[tuple[CellMapping, Database]], question: Callable[[Database], T],
                         timeout: float | None = None) -> dict[str, T | None]:
    """Call *question* with the database of each of these *cells*, in parallel. If all cells use SQLite, call it for one
    cell after the other, without a timeout. Return the results by cell id; ``None`` for a cell that does not answer
    within *timeout* seconds. Other errors of *question* are raised. *timeout*: by default the limit of the caller's
    ``statement_timeout`` block, but at most ``PATIENCE``."""
    if all(database.kind == "sqlite" for _cell, database in cells):
        return {cell.id: _answer(cell, lambda database=database: question(database))  # type: ignore[misc]
                for cell, database in cells}
    seconds = _seconds(timeout)
    deadline = time.monotonic() + seconds
    pending = [(cell, _ask(database, question, seconds)) for cell, database in cells]
    return {cell.id: _answer(cell, lambda wait=wait: wait(deadline)) for cell, wait in pending}  # type: ignore[misc]


def _seconds(timeout: float | None) -> float:
    return min(current_timeout(PATIENCE), PATIENCE) if timeout is None else timeout


def scatter_query(cells: Sequence[tuple[CellMapping, Database]], prepare: Callable[[str], PreparedQuery],
                  parameters: Mapping[str, Any], timeout: float | None = None) -> dict[str, list[Any] | None]:
    """Execute a query in each of these *cells*, in parallel. Return the rows by cell id; ``None`` for a cell that does
    not answer within *timeout* seconds. Other errors are raised. *prepare*: returns the query for ``sqlite`` or
    ``postgresql``."""
    def rows(database: Database) -> list[Any]:
        with database.read() as connection:
            return prepare(database.kind).all(connection, parameters)

    seconds = _seconds(timeout)
    deadline = time.monotonic() + seconds
    sent: dict[int, tuple[CellMapping, Database, Sent]] = {}
    others: list[tuple[CellMapping, Database]] = []
    try:
        for cell, database in cells:
            socket, answer = _send(database, prepare(database.kind), parameters)
            if answer is None:
                others.append((cell, database))
            else:
                sent[socket] = cell, database, answer
        if not sent:
            return scatter_gather_cells(cells, rows, timeout)
        pending = [(cell, _ask(database, rows, seconds)) for cell, database in others]
        answers = _receive(sent, deadline)
    finally:
        for _cell, _database, answer in sent.values():
            answer.close()
    answers |= {cell.id: _answer(cell, lambda wait=wait: wait(deadline)) for cell, wait in pending}  # type: ignore[misc]
    return {cell.id: answers[cell.id] for cell, _database in cells}


def _send(database: Database, query: PreparedQuery, parameters: Mapping[str, Any]) -> tuple[int, Sent | None]:
    """Send the query over an idle connection that is already open. Return (file descriptor of the connection's socket,
    generator that waits for the answer and returns the rows). Return ``(-1, None)`` if a thread must send the query
    instead: on SQLite, if no connection is open, or if the database hangs."""
    hangs = database.kind == "sqlite" or database.breaker.hangs
    connection = None if hangs else database.take_open_connection()
    if connection is not None:
        raw: Any = connection.connection.dbapi_connection
        answer = _sent_query(database, connection, query, parameters)
        # The database may just have closed the connection: a thread opens another one.
        with contextlib.suppress(StopIteration, SQLAlchemyError):
            next(answer)
            return raw.fileno(), answer
    return -1, None


def _sent_query(database: Database, connection: Connection, query: PreparedQuery,
                parameters: Mapping[str, Any]) -> Sent:
    """Send the query, yield once while the caller waits for the answer, and then return the rows. Return without a
    yield if the query cannot be sent. If the caller closes the generator before the answer has arrived, the connection
    is closed."""
    rows: list[Any] = []
    with database.breaker:
        try:
            receive = query.send(connection, parameters)
            if receive is not None:
                yield
                rows = receive()
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
    database.leave_open(connection)
    return rows


def _receive(sent: dict[int, tuple[CellMapping, Database, Sent]], deadline: float) -> dict[str, list[Any] | None]:
    """Wait for the answers to queries, and return the rows by cell id; ``None`` for a cell that does not answer before
    *deadline* (``time.monotonic()``). *sent*: (cell, database, generator that returns the rows), by file descriptor of
    the socket. The function removes each item of *sent* when it is done with the cell."""
    answers: dict[str, list[Any] | None] = {}
    poll = select.poll()
    for socket in sent:
        poll.register(socket, select.POLLIN)
    while sent:
        remaining = max(0.0, deadline - time.monotonic())
        ready = [socket for socket, _event in poll.poll(min(remaining, POLL_INTERVAL) * 1000)]
        # After a while without an answer, as ``wait`` of ``_ask``: other callers may wait in vain, too.
        late = [] if ready else [socket for socket, (_cell, database, _sent) in sent.items()
                                 if remaining <= POLL_INTERVAL or database.breaker.hangs]
        for socket in (*ready, *late):
            poll.unregister(socket)
            cell, database, answer = sent.pop(socket)
            finish = partial(_rows_of, answer, remaining) if ready else partial(_give_up, answer, database)
            answers[cell.id] = _answer(cell, finish)
    return answers


def _rows_of(answer: Sent, seconds: float) -> list[Any]:
    """Return the rows of a query whose answer has begun to arrive. *answer*: the generator of ``_sent_query``. Waits at
    most *seconds* for the remaining rows."""
    rows: list[Any] = []
    with statement_timeout(seconds, refused=False):
        try:
            next(answer)
        except StopIteration as end:
            rows = end.value
    return rows


def _give_up(answer: Sent, database: Database) -> list[Any]:
    """Close the connection of a database that did not answer in time, and raise ``OperationalError``. *answer*: the
    generator of ``_sent_query``."""
    database.breaker.late()
    answer.throw(hanging_database_error(database.name))
    return []


def rows_of_cells(store: Store, question: Select[Any], *, cell0: bool = False) -> list[Sequence[Row[Any]] | None]:
    """Execute the query *question* in each cell, and return a list with the rows of each cell; ``None`` for a cell that
    does not answer. *cell0*: whether to include cell0."""
    def rows(database: Database) -> Sequence[Row[Any]]:
        with database.read() as connection:
            return connection.execute(question).all()

    return list(scatter_gather(store, rows, cell0=cell0).values())


def _ask(database: Database, question: Callable[[Database], T], seconds: float) -> Callable[[float], T]:
    """Start *question* in a thread of *database*; its statements are limited to *seconds*. Return a function that waits
    for the result until a deadline (its argument, in ``time.monotonic()`` seconds) and raises an error if there is no
    result by then."""
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
                return future.result(min(remaining, POLL_INTERVAL))
            except Late:
                if in_vain:
                    raise
                if remaining <= POLL_INTERVAL or database.breaker.hangs:  # other callers wait without an answer, too
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
