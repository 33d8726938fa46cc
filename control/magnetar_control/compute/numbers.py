# SPDX-License-Identifier: GPL-3.0-or-later
"""Ids that are whole numbers, as paths have them."""

from __future__ import annotations

import re

from magnetar_core.errors import InvalidField

#: No id is larger: it is the largest number of a column.
MOST = 2**31 - 1


def number_of(text: str, what: str) -> int:
    """Return the number that *text* is, also one that no id can be, which then is not found (404), as in Nova.

    Raise ``InvalidField`` for what is no whole number. *what*: whose id it is.
    """
    if not re.fullmatch(r"[+-]?[0-9]{1,80}", text, re.ASCII):
        raise InvalidField("id", f"must be a whole number, the id of {what}", text)
    return int(text)
