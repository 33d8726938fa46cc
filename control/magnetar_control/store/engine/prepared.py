# SPDX-License-Identifier: GPL-3.0-or-later
"""Frequent queries, compiled once by SQLAlchemy and executed by the driver: SQLAlchemy's steps around a statement and
its rows take longer than SQLite's answer."""

from __future__ import annotations

import contextlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.sql.selectable import TextualSelect

#: A function that converts a driver's value to SQLAlchemy's; ``None`` if the value needs no conversion.
Processor = Callable[[Any], Any] | None


class PreparedQuery:
    """A SELECT that is compiled once, to be executed often without SQLAlchemy's overhead.

    All rows are read at once, as named tuples with the same values as SQLAlchemy's rows. Errors are SQLAlchemy's.
    Parameters of an execution must be single values. *values*: constant parameters, which may be lists. If an engine
    has event listeners, SQLAlchemy executes the query, because only SQLAlchemy calls the listeners.
    """

    def __init__(self, query: Select[Any] | TextualSelect, values: Mapping[str, Any] | None = None) -> None:
        self.query: Any = query
        self._values = values
        #: The compiled query by dialect.
        self._compiled: dict[str, _Compiled] = {}

    def all(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Return all rows of the query with these *parameters*. Raises the errors of ``Connection.execute``."""
        compiled = self._compiled_for(connection)
        if connection.engine._has_events:  # noqa: SLF001
            return list(map(compiled.make, connection.execute(self.query, parameters)))
        return compiled.fetch(connection, parameters)

    def _compiled_for(self, connection: Connection) -> _Compiled:
        compiled = self._compiled.get(connection.dialect.name)
        if compiled is None:
            compiled = self._compiled[connection.dialect.name] = _Compiled(self.query, connection.dialect, self._values)
        return compiled

    def send(self, connection: Connection, parameters: Mapping[str, Any]) -> Callable[[], list[Any]] | None:
        """Send the query to PostgreSQL; return a function that waits for the answer and returns all rows. Return
        ``None`` if the engine has event listeners, which are called only if SQLAlchemy executes the query. This method
        and the returned function raise the errors of ``Connection.execute``."""
        if connection.engine._has_events:  # noqa: SLF001
            return None
        return self._compiled_for(connection).send(connection, parameters)

    def first(self, connection: Connection, parameters: Mapping[str, Any]) -> Any | None:
        """Return the first row of the query with these *parameters*; ``None`` if there is no row. Raises the errors of
        ``Connection.execute``."""
        rows = self.all(connection, parameters)
        return rows[0] if rows else None


class _Compiled:
    """A query compiled for one SQL dialect. *fixed*: constant parameters of the query, by name."""

    def __init__(self, query: Any, dialect: Dialect, fixed: Mapping[str, Any] | None) -> None:
        compiled: Any = query.compile(dialect=dialect)
        #: Functions that convert values for the driver, by the names of parameters.
        self._binders: dict[str, Callable[[Any], Any]] = dict(compiled._bind_processors)  # noqa: SLF001
        self.text: str = compiled.string
        self._positions: Sequence[str] | None = compiled.positiontup
        params = compiled.params
        if fixed is not None:
            state = compiled.construct_expanded_state(fixed)  # each list in the text is as long as its values
            self.text, self._positions, params = state.statement, state.positiontup, state.parameters
            self._binders.update(state.processors)
        elif compiled.post_compile_params or compiled.literal_execute_params:
            raise ValueError("a prepared query has parameters that SQLAlchemy must convert")
        self._fixed: dict[str, Any] = {name: value for name, value in params.items() if value is not None}
        columns = list(compiled.statement.selected_columns)
        self.make: Callable[[Any], Any] = make_row_class(tuple(column.name for column in columns))._make
        self._errors: type[Exception] = dialect.loaded_dbapi.Error
        # PostgreSQL's driver returns Python's types itself.
        processors: list[Processor] = [column.type.dialect_impl(dialect).result_processor(dialect, None)
                                       for column in columns] if dialect.name == "sqlite" else []
        self._processors = [(at, processor) for at, processor in enumerate(processors) if processor is not None]

    def fetch(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Execute the query with *parameters* and return all rows. Raises the errors of ``Connection.execute``."""
        raw: Any = connection.connection.dbapi_connection
        values = self._values(parameters)
        with self._errors_of(connection, values):
            rows = _fetch_all(raw.execute(self.text, values))
        return list(map(self.make, map(self._converted, rows) if self._processors else rows))

    def send(self, connection: Connection, parameters: Mapping[str, Any]) -> Callable[[], list[Any]]:
        """Send the query to PostgreSQL; return a function that waits for the answer and returns all rows. This method
        and the returned function raise the errors of ``Connection.execute``."""
        raw: Any = connection.connection.dbapi_connection
        values = self._values(parameters)
        with self._errors_of(connection, values):
            cursor = raw.send(self.text, values)

        def receive() -> list[Any]:
            with self._errors_of(connection, values):
                raw.receive()
                rows = _fetch_all(cursor)
            return list(map(self.make, rows))

        return receive

    def _values(self, parameters: Mapping[str, Any]) -> Any:
        """Return *parameters* and the query's constant values in the form that the driver expects."""
        values = {**self._fixed, **parameters} if self._fixed else parameters
        if self._binders:
            values = {**values, **{name: bind(values[name]) for name, bind in self._binders.items()
                                if name in values}}
        return values if self._positions is None else [values[name] for name in self._positions]

    @contextlib.contextmanager
    def _errors_of(self, connection: Connection, values: Any) -> Iterator[None]:
        """Convert the driver's errors in the ``with`` block to SQLAlchemy's, as ``Connection.execute`` does. *values*:
        the parameters that the error shows."""
        try:
            yield
        except self._errors as error:
            connection._handle_dbapi_exception(error, self.text, values, None, None)  # noqa: SLF001

    def _converted(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for at, processor in self._processors:
            values[at] = processor(values[at])
        return values


def _fetch_all(cursor: Any) -> list[Any]:
    try:
        rows: list[Any] = cursor.fetchall()
        return rows
    finally:
        cursor.close()


@lru_cache(maxsize=200)
def make_row_class(columns: tuple[str, ...]) -> Any:
    """Return a class of named tuples with the fields *columns*, and the attribute ``_mapping`` of SQLAlchemy's rows.
    Reading a field takes a fifth of the time that SQLAlchemy's rows take."""
    return _add_mapping(namedtuple("columns", columns))  # noqa: PYI024 - its fields are not known before


def _add_mapping(row_class: Any) -> Any:
    row_class._mapping = property(row_class._asdict)  # noqa: SLF001 - SQLAlchemy has it
    return row_class
