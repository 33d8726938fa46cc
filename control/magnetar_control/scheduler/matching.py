# SPDX-License-Identifier: GPL-3.0-or-later
"""The evaluation of the scheduler hint ``query`` (JsonFilter) for a host."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import orjson

QUERY: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def query_holds(texts: Sequence[str], figure: Callable[[str], Any]) -> bool:
    """Return whether all JSON expressions *texts* of the scheduler hint ``query`` are true, such as ``[">=",
    "$free_ram_mb", 1024]`` or ``["and", [...], [...]]``. *figure*: returns the value of ``$name`` for a name. A
    malformed expression is false."""
    try:
        return all(_holds(orjson.loads(text), figure) for text in texts)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return False


def _holds(expression: Any, figure: Callable[[str], Any]) -> bool:
    verb, *terms = expression
    if verb == "and":
        return all(_holds(term, figure) for term in terms)
    if verb == "or":
        return any(_holds(term, figure) for term in terms)
    if verb == "not":
        return not any(_holds(term, figure) for term in terms)
    first, *operands = [figure(term[1:]) if isinstance(term, str) and term.startswith("$") else term for term in terms]
    if first is None or not operands:
        return False
    if verb == "in":
        return first in operands
    return all(QUERY[verb](first, other) for other in operands)
