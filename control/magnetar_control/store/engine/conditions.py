# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter conditions that lists of several services share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import BindParameter, ColumnElement, and_, false, func, literal, or_, tuple_

from . import regex

#: Operators of filters by time.
COMPARE: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "eq": operator.eq, "neq": operator.ne, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
#: The parts of ``regex.parse_wildcards`` in SQL patterns, unless they are characters without a special meaning.
GLOB = {regex.ANY_TEXT: "*", regex.ANY_CHAR: "?", "*": "[*]", "?": "[?]", "[": "[[]"}
LIKE = {regex.ANY_TEXT: "%", regex.ANY_CHAR: "_", "%": "\\%", "_": "\\_", "\\": "\\\\"}
#: Columns, and whether each sorts descending.
Order = Sequence[tuple[Any, bool]]


def has_word(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """Return the SQL condition that the JSON list of strings in *column* contains *text*."""
    return _has(column, "[", orjson.dumps(text).decode())


def has_pair(column: ColumnElement[Any], name: str, value: str) -> ColumnElement[bool]:
    """Return the SQL condition that the JSON object in *column* maps the key *name* to the string *value*."""
    return _has(column, "{", orjson.dumps({name: value}).decode()[1:-1])


def _has(column: ColumnElement[Any], opening: str, item: str) -> ColumnElement[bool]:
    # LIKE ignores case. Every item follows the opening bracket or a comma; after a backslash the same characters would
    # be the end of a text that contains a quotation mark.
    return or_(*(func.replace(column, sign + item, "") != column for sign in (opening, ",")))


def match_pattern(kind: str, column: ColumnElement[Any], pattern: str) -> ColumnElement[bool]:
    """Return the SQL condition that the regular expression *pattern* matches somewhere in *column*. *kind*: ``sqlite``
    or ``postgresql``. Where possible, the condition tests a LIKE or GLOB pattern, which is faster, before the regular
    expression, or instead of it."""
    parts = regex.parse_wildcards(pattern)
    if parts is not None:
        return match_wildcards(kind, column, parts)
    outline, matches = regex.outline_wildcards(pattern), column.regexp_match(pattern)
    return matches if outline is None else and_(match_wildcards(kind, column, outline), matches)


def match_wildcards(kind: str, column: ColumnElement[Any], parts: Sequence[str]) -> ColumnElement[bool]:
    """Return the SQL condition (LIKE or GLOB) that the whole text in *column* matches a wildcard pattern. *kind*:
    ``sqlite`` or ``postgresql``. *parts*: the pattern, as ``regex.parse_wildcards`` returns it."""
    if kind == "sqlite":
        return column.op("GLOB", is_comparison=True)("".join(GLOB.get(part, part) for part in parts))
    return column.like("".join(LIKE.get(part, part) for part in parts), escape="\\")


def order_column(column: Any, descending: bool, *, nullable: bool) -> Any:
    """Return the ORDER BY expression for *column*, with nulls first in ascending order and last in descending order. A
    column that is not *nullable* gets no NULLS clause: with such a clause, PostgreSQL would not use the column's index.
    """
    ordered = column.desc() if descending else column.asc()
    if not nullable:
        return ordered
    return ordered.nulls_last() if descending else ordered.nulls_first()


def keyset_condition(order: Order, values: Sequence[Any], *, nulls: bool = False) -> ColumnElement[bool]:
    """Return the SQL condition for rows after a given row, for keyset pagination. *order*: columns and whether each is
    descending; the last column must be unique. *values*: the given row's values of these columns, or bind parameters
    for them. *nulls*: whether columns may be null; null counts as less than all other values.

    Without nulls, and if all columns have the same direction, the condition compares row values, so that the database
    finds the first row in an index. With different directions, the database can use an index of the first column.
    """
    known = not nulls and all(value is not None for value in values)
    if known and len({down for _column, down in order}) == 1:
        place = tuple_(*(value if isinstance(value, BindParameter) else literal(value, column.type)
                         for (column, _down), value in zip(order, values, strict=True)))
        row = tuple_(*(column for column, _down in order))
        return row < place if order[0][1] else row > place
    condition: ColumnElement[bool] = false()
    for (column, down), value in reversed(list(zip(order, values, strict=True))):
        if value is None:
            further, same = false() if down else column.is_not(None), column.is_(None)
        else:
            further, same = column < value if down else column > value, column == value
            further = or_(further, column.is_(None)) if nulls and down else further
        condition = or_(further, and_(same, condition))
    if known:
        (column, down), value = order[0], values[0]
        condition = and_(column <= value if down else column >= value, condition)
    return condition
