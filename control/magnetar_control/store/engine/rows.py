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
    """An attribute of a row that decodes a column with JSON text at its first use; null is ``None``. *column*: the name
    of the column, if the attribute has another one. *kept*: whether to keep the decoded document; false for large
    documents of rows that stay in memory."""

    def __init__(self, column: str = "", *, kept: bool = True) -> None:
        self.column, self.kept = column, kept

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name, self.column = name, self.column or name

    @overload
    def __get__(self, row: None, owner: type) -> Self: ...

    @overload
    def __get__(self, row: StoredRow, owner: type) -> T: ...

    def __get__(self, row: StoredRow | None, owner: type) -> Any:
        """Return the document, and keep it in the row's ``__dict__``, where Python finds it next time."""
        if row is None:
            return self
        text = getattr(row.stored, self.column)
        document = None if text is None else orjson.loads(text)
        if self.kept:
            row.__dict__[self.name] = document
        return document


def annotated_columns(row_class: type) -> list[str]:
    """Return the columns that a class of rows annotates itself, without the columns of its base classes."""
    return [name for name, kind in get_annotations(row_class).items() if not kind.startswith("ClassVar")]


class StoredRow:
    """A row of a table, read-only. It may have only some of the table's columns; reading another one raises
    ``AttributeError``.

    A subclass annotates the columns that are not decoded, and has a ``DocumentColumn`` for each JSON column.
    ``stored``: the row from the database, whose documents are still text, for code that passes the text through.
    """

    __slots__ = ("__dict__", "stored")

    def __init__(self, stored: Any) -> None:
        self.stored = stored

    def __init_subclass__(cls) -> None:
        """Make a property of each annotated column, by ``attrgetter``: reading it runs no Python code."""
        for name in annotated_columns(cls):
            setattr(cls, name, property(attrgetter(f"stored.{name}")))

    @classmethod
    def optional(cls, stored: Row[Any] | None) -> Self | None:
        """Return the typed row of *stored*; ``None`` for ``None``."""
        return None if stored is None else cls(stored)

    @classmethod
    def several(cls, rows: Iterable[Row[Any]]) -> list[Self]:
        """Return the typed rows of a result."""
        return list(map(cls, rows))

    @classmethod
    def of_values(cls, values: Mapping[Any, Any]) -> Self:
        """Return a row of column values that are not in a table, because they are not written yet or were removed."""
        return cls(SimpleNamespace(**values))

    def undecoded(self) -> Self:
        """Return a copy without the decoded documents, which a row keeps in memory as long as it exists. For loops over
        all servers of a cloud."""
        return type(self)(self.stored)

    def column_values(self) -> dict[str, Any]:
        """Return all columns by name; documents as JSON text."""
        return {**self.stored._mapping}  # noqa: SLF001 - SQLAlchemy's name

    def changed_columns(self, **values: Any) -> Self:
        """Return a copy with *values* in place of the old values of these columns; documents are passed as JSON
        text."""
        return self.of_values({**self.column_values(), **values})


class SelectedRow(StoredRow):
    """A row with all columns of its class. ``selection`` builds the query of the class, so no column is ever missing. A
    query of fewer columns needs a class of its own, and a query of more columns a subclass.

    ``stored`` is a named tuple, whose attributes take a fifth of the time of SQLAlchemy's.
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
        """Make a property of each column, and the named tuple of all columns."""
        super().__init_subclass__()
        documents = (value.column for value in vars(cls).values() if isinstance(value, DocumentColumn))
        cls.columns = (*cls.columns, *annotated_columns(cls), *documents)
        cls._tuple = make_row_class(cls.columns)

    @classmethod
    def selection(cls, table: Table, **others: ColumnElement[Any]) -> Select[Any]:
        """Return the query of all rows of *table*. *others*: the expressions of columns that are not in *table*."""
        return select(*(others[name].label(name) if name in others else table.c[name] for name in cls.columns))

    @classmethod
    def of_values(cls, values: Mapping[Any, Any]) -> Self:
        """Return a row of column values that are not in a table. Columns without a value have their default, or
        ``None``."""
        return cls(values.get(name, cls.defaults.get(name)) for name in cls.columns)

    def changed_columns(self, **values: Any) -> Self:
        """Return a copy with *values* in place of the old values of these columns; documents are passed as JSON
        text."""
        return type(self)(self.stored._replace(**values))

    def column_values(self) -> dict[str, Any]:
        """Return all columns by name; documents as JSON text."""
        values: dict[str, Any] = self.stored._asdict()
        return values
