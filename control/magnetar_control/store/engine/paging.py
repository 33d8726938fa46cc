# SPDX-License-Identifier: GPL-3.0-or-later
"""Keyset pagination: pages stay right while rows come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_

#: A column, and whether it sorts descending.
Order = Sequence[tuple[Any, bool]]


def beyond(order: Order, values: Sequence[Any], *, nulls: bool = False) -> ColumnElement[bool]:
    """The condition of rows after the one with *values* in *order*, whose last column is unique. *nulls*: columns may
    be null, which sorts first."""
    found: ColumnElement[bool] = false()
    for (column, down), value in reversed(list(zip(order, values, strict=True))):
        if value is None:
            further, same = false() if down else column.is_not(None), column.is_(None)
        else:
            further, same = column < value if down else column > value, column == value
            further = or_(further, column.is_(None)) if nulls and down else further
        found = or_(further, and_(same, found))
    return found
