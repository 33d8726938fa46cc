# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of an extra spec's text with what a host or a pool of volumes has."""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Dict, Optional

#: Compared as numbers; "=" means at least (spec row DIS-05).
NUMBERS: Dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le}
#: Compared as text.
TEXTS: Dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq, "s!=": operator.ne, "s>=": operator.ge, "s>": operator.gt, "s<=": operator.le,
    "s<": operator.lt}


def finite(text: str) -> Optional[float]:
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
