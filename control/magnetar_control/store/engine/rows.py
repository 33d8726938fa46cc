# SPDX-License-Identifier: GPL-3.0-or-later
"""Rows of tables as typed objects, whose JSON documents are decoded at their first use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import get_annotations
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

import orjson
from sqlalchemy import ColumnElement, Row, Select, Table, select

from .prepared import make_row_class

T = TypeVar("T")


class DocumentColumn(Generic[T]):
    """A descriptor for a column with JSON text. Reading the attribute decodes the text; null is ``None``. *column*: the
    name of the column, if it differs from the attribute's name. *cached*: whether the row caches the decoded document;
    false for large documents of rows that stay in memory."""

    def __init__(self, column: str = "", *, cached: bool = True) -> None:
        self.column, self.cached = column, cached

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name, self.column = name, self.column or name

    @overload
    def __get__(self, row: None, owner: type) -> Self: ...

    @overload
    def __get__(self, row: StoredRow, owner: type) -> T: ...

    def __get__(self, row: StoredRow | None, owner: type) -> Any:
        """Return the decoded document. With ``cached``, also store the document in the row's ``__dict__``, where Python
        finds it next time without calling this method."""
        if row is None:
            return self
        text = getattr(row.stored, self.column)
        document = None if text is None else orjson.loads(text)
        if self.cached:
            row.__dict__[self.name] = document
        return document


def annotated_columns(row_class: type) -> list[str]:
    """Return the names of the columns that *row_class* itself annotates, without those of its base classes."""
    return [name for name, kind in get_annotations(row_class).items() if not kind.startswith("ClassVar")]


class StoredRow:
    """A read-only row of a table. It may have only some of the table's columns; reading a missing column raises
    ``AttributeError``.

    A subclass annotates the plain columns, and has a ``DocumentColumn`` for each JSON column. ``stored``: the row as
    the database returned it, with JSON text in place of documents.
    """

    __slots__ = ("__dict__", "stored")

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def __init_subclass__(cls) -> None:
        """Add a property for each annotated column. The property uses ``attrgetter``, which runs no Python code."""
        for name in annotated_columns(cls):
            setattr(cls, name, property(attrgetter(f"stored.{name}")))

    @classmethod
    def optional(cls, stored: Row[Any] | None) -> Self | None:
        """Return *stored* as a row of this class; ``None`` for ``None``."""
        return None if stored is None else cls(stored)

    @classmethod
    def several(cls, rows: Iterable[Row[Any]]) -> list[Self]:
        """Return the *rows* of a query's result as rows of this class."""
        return list(map(cls, rows))

    @classmethod
    def of_values(cls, values: Mapping[Any, Any]) -> Self:
        """Return a row of these column values (by column name) that was not read from the database, for example before
        it is inserted."""
        return cls(SimpleNamespace(**values))

    def undecoded(self) -> Self:
        """Return a copy of the row without its cached documents. Loops over all servers of a cloud use this to save
        memory."""
        return type(self)(self.stored)

    def column_values(self) -> dict[str, Any]:
        """Return all columns by name; JSON columns as text."""
        return {**self.stored._mapping}  # noqa: SLF001 - SQLAlchemy's name

    def changed_columns(self, **values: Any) -> Self:
        """Return a copy of the row with other *values* of some columns; values of JSON columns must be JSON text."""
        return self.of_values({**self.column_values(), **values})


class SelectedRow(StoredRow):
    """A row that has all columns of its class, because ``selection`` builds the query. A query with fewer columns needs
    a separate class, and a query with more columns a subclass.

    ``stored`` is a named tuple: reading its attributes takes a fifth of the time that SQLAlchemy's rows take.
    """

    __slots__ = ()
    #: The names of the columns, those of the base class first.
    columns: ClassVar[tuple[str, ...]] = ()
    #: The values of columns for which ``of_values`` gets none.
    defaults: ClassVar[Mapping[str, Any]] = {}
    _tuple: ClassVar[Any]

    def __init__(self, stored: Iterable[Any]) -> None:
        self.stored = self._tuple._make(stored)

    def __init_subclass__(cls) -> None:
        """Add a property for each annotated column, and create the named tuple class with all columns."""
        super().__init_subclass__()
        documents = (value.column for value in vars(cls).values() if isinstance(value, DocumentColumn))
        cls.columns = (*cls.columns, *annotated_columns(cls), *documents)
        cls._tuple = make_row_class(cls.columns)

    @classmethod
    def selection(cls, table: Table, **others: ColumnElement[Any]) -> Select[Any]:
        """Return the query for all rows of *table* with the columns of this class. *others*: SQL expressions for
        columns that are not in *table*."""
        return select(*(others[name].label(name) if name in others else table.c[name] for name in cls.columns))

    @classmethod
    def of_values(cls, values: Mapping[Any, Any]) -> Self:
        """Return a row of these column values (by column name) that was not read from the database. Missing columns
        have their default, or ``None``."""
        return cls(values.get(name, cls.defaults.get(name)) for name in cls.columns)

    def changed_columns(self, **values: Any) -> Self:
        """Return a copy of the row with other *values* of some columns; values of JSON columns must be JSON text."""
        return type(self)(self.stored._replace(**values))

    def column_values(self) -> dict[str, Any]:
        """Return all columns by name; JSON columns as text."""
        values: dict[str, Any] = self.stored._asdict()
        return values
