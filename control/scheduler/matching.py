# SPDX-License-Identifier: GPL-3.0-or-later
"""How texts of extra specs, and expressions of the hint query, are compared with what a host has."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import orjson

#: Compared as numbers; "=" means at least (spec row DIS-05).
NUMBERS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le}
#: Compared as text.
TEXTS: dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq, "s!=": operator.ne, "s>=": operator.ge, "s>": operator.gt, "s<=": operator.le,
    "s<": operator.lt}
QUERY: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def finite(text: str) -> float | None:
    """The number that *text* says; ``None`` where it is no finite one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def matches(value: Any, text: str) -> bool:
    """Whether a host's *value* (text, number, list of texts) is as *text* of an extra spec asks (spec row FIL-10)."""
    first, _space, rest = text.strip().partition(" ")
    rest = rest.strip()
    if first in NUMBERS:
        try:
            return NUMBERS[first](float(value), float(rest))
        except (TypeError, ValueError):
            return False
    if first in TEXTS:
        return TEXTS[first](str(value), rest)
    held = value if isinstance(value, (list, tuple, dict)) else str(value)
    if first == "<in>":
        return rest in held
    if first == "<all-in>":
        return all(word in held for word in rest.split())
    if first == "<or>":
        return str(value) in [word.strip() for word in rest.split("<or>")]
    return str(value) == text.strip()


def query(texts: Sequence[str], figure: Callable[[str], Any]) -> bool:
    """Whether all JSON expressions hold, such as ``[">=", "$free_ram_mb", 1024]`` or ``["and", [...], [...]]``;
    ``figure`` returns the value of ``$name``. Malformed ones do not hold."""
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
    first, *others = [figure(term[1:]) if isinstance(term, str) and term.startswith("$") else term for term in terms]
    if first is None or not others:
        return False
    if verb == "in":
        return first in others
    return all(QUERY[verb](first, other) for other in others)
