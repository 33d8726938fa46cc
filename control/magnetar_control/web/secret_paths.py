# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of request paths in logs: without the secrets that some of Nova's paths contain."""

from __future__ import annotations

import re
from urllib.parse import unquote

#: The rest of the path after these words is a secret.
_SECRET = re.compile("(os-console-auth-tokens/).+")


def without_secrets(path: str) -> str:
    """Return a URL *path* for logs, with ``***`` in place of secrets in it."""
    if "%" not in path and "console" not in path:
        return path
    if "%" in path and _SECRET.search(plain := unquote(path)):
        path = plain
    return _SECRET.sub(r"\1***", path)
