# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendor data: a JSON object that an operator provides to guests, limited in size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Maximum size of vendor data in bytes.
MOST = 256 * 1024
#: Maximum number of keys in vendor data.
KEYS = 1024


def read_vendor_data(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file *path*, which an operator provides for guests. Raises ``ValueError`` with the
    reason, without quoting the content.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except OSError as error:
        raise ValueError("%s cannot be read: %s" % (path, error.strerror)) from None
    try:
        return parse_vendor_data(content)
    except ValueError as error:
        raise ValueError("%s: %s" % (path, error)) from None


def parse_vendor_data(content: bytes) -> dict[str, Any]:
    """Parse *content*, vendor data for guests, and return the JSON object. Raises ``ValueError`` with the reason,
    without quoting the content.
    """
    if len(content) > MOST:
        raise ValueError("has more than %d KiB" % (MOST // 1024))
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    if isinstance(document, dict) and len(document) <= KEYS:
        return document
    raise ValueError("is not a JSON object of at most %d keys" % KEYS)
