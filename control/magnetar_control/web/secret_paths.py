# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths as they stand in logs: without the secrets that some of Nova's have."""

from __future__ import annotations

import re
from urllib.parse import unquote

#: What comes after these words is a secret.
_SECRET = re.compile("(os-console-auth-tokens/).+")


def without_secrets(path: str) -> str:
    """Return a path for logs."""
    if "%" in path and _SECRET.search(plain := unquote(path)):
        path = plain
    return _SECRET.sub(r"\1***", path)
