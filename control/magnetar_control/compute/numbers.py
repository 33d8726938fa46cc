# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsing of ids in URL paths that are whole numbers."""

from __future__ import annotations

import re

from magnetar_core.errors import InvalidField

#: The largest id: the largest number of a column.
MOST = 2**31 - 1


def parse_number_id(text: str, resource_type: str) -> int:
    """Return the id *text* of a request as an integer. It may be larger than an integer of the database; such an id
    leads to "not found" (404), as in Nova. Raises ``InvalidField`` when *text* is not a number. *resource_type*: for
    the error message."""
    if not re.fullmatch(r"[+-]?[0-9]{1,80}", text, re.ASCII):
        raise InvalidField("id", f"must be a whole number, the id of {resource_type}", text)
    return int(text)
