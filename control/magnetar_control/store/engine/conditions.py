# SPDX-License-Identifier: GPL-3.0-or-later
"""Conditions by which lists of several services are filtered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from sqlalchemy import ColumnElement, func, or_

#: Operators of filters by moments.
COMPARE: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "eq": operator.eq, "neq": operator.ne, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def has_word(column: ColumnElement[Any], word: str) -> ColumnElement[bool]:
    """Whether the list of texts that the column has as JSON holds the *word*."""
    return _has(column, "[", orjson.dumps(word).decode())


def has_pair(column: ColumnElement[Any], name: str, value: str) -> ColumnElement[bool]:
    """Whether the object of texts that the column has as JSON holds *name* with that *value*."""
    return _has(column, "{", orjson.dumps({name: value}).decode()[1:-1])


def _has(column: ColumnElement[Any], opening: str, item: str) -> ColumnElement[bool]:
    # LIKE would not mind upper and lower case. After its opening or ",", as each item begins: behind a backslash it is
    # the end of a text that has a quotation mark in it.
    return or_(*(func.replace(column, sign + item, "") != column for sign in (opening, ",")))
