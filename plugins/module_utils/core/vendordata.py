# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendor data: what an operator has guests told (MD-60). A JSON object, of bounded size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Bytes of it.
MOST = 256 * 1024
#: Keys of the object.
KEYS = 1024


def read(path: Path) -> dict[str, Any]:
    """The object in the file *path*. Raises ``ValueError`` that says what is wrong, without what is in it."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except OSError as error:
        raise ValueError("%s cannot be read: %s" % (path, error.strerror)) from None
    try:
        return parsed(content)
    except ValueError as error:
        raise ValueError("%s: %s" % (path, error)) from None


def parsed(content: bytes) -> dict[str, Any]:
    """The object that *content* is. Raises ``ValueError`` that says what is wrong, without what is in it."""
    if len(content) > MOST:
        raise ValueError("has more than %d KiB" % (MOST // 1024))
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if isinstance(found, dict) and len(found) <= KEYS:
        return found
    raise ValueError("is not a JSON object of at most %d keys" % KEYS)
