# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparison of the text of an extra spec with a value of a host or of a volume pool."""

from __future__ import annotations

import math
import operator
from typing import Any, Callable, Dict, Optional

#: Operators on numbers; "=" means at least, as in Nova.
NUMBERS: Dict[str, Callable[[float, float], bool]] = {
    "=": operator.ge, "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le}
#: Operators on texts.
TEXTS: Dict[str, Callable[[str, str], bool]] = {
    "s==": operator.eq, "s!=": operator.ne, "s>=": operator.ge, "s>": operator.gt, "s<=": operator.le,
    "s<": operator.lt}


def parse_finite(text: str) -> Optional[float]:
    """Return the number in *text*; ``None`` if *text* is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def matches_extra_spec(value: Any, text: str) -> bool:
    """Return whether *value*, a property of a host or of a volume pool, satisfies *text*, the value of an extra spec
    such as ``>= 4`` or ``<in> ssd``. *value*: a string, a number or a list of strings.
    """
    first, _space, operand = text.strip().partition(" ")
    operand = operand.strip()
    if first in NUMBERS:
        try:
            return NUMBERS[first](float(value), float(operand))
        except (TypeError, ValueError):
            return False
    if first in TEXTS:
        return TEXTS[first](str(value), operand)
    host_value = value if isinstance(value, (list, tuple, dict)) else str(value)
    if first == "<in>":
        return operand in host_value
    if first == "<all-in>":
        return all(required in host_value for required in operand.split())
    if first == "<or>":
        return str(value) in [alternative.strip() for alternative in operand.split("<or>")]
    return str(value) == text.strip()
