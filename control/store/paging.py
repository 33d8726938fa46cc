# SPDX-License-Identifier: GPL-3.0-or-later
"""Keyset pagination: pages stay right while rows come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, or_

#: A column (never null) and whether it sorts descending.
Order = Sequence[tuple[Any, bool]]


def beyond(order: Order, values: Sequence[Any]) -> ColumnElement[bool]:
    """The condition of rows after the one with *values* in *order*, whose last column is unique."""
    found: ColumnElement[bool] = false()
    for (column, down), value in reversed(list(zip(order, values, strict=True))):
        found = or_(column < value if down else column > value, and_(column == value, found))
    return found
