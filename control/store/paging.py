# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages by key: what follows a row in an order, however many rows come and go before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_

#: A column (never null) and whether it goes downwards.
Order = Sequence[tuple[Any, bool]]


def beyond(order: Order, values: Sequence[Any]) -> ColumnElement[bool]:
    """The condition of rows that come after the one with these *values* in *order*, whose last column tells rows
    apart."""
    found: ColumnElement[bool] = false()
    for (column, down), value in reversed(list(zip(order, values, strict=True))):
        found = or_(column < value if down else column > value, and_(column == value, found))
    return found
