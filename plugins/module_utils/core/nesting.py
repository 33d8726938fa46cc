# SPDX-License-Identifier: GPL-3.0-or-later
"""How deep JSON documents may go: readers take more than writers, so what is kept could never be shown again."""

from __future__ import annotations

from typing import Any

from .errors import InvalidRequest

#: Objects and lists in each other. No document of the APIs has a tenth of it.
DEEPEST = 100


def check_nesting(document: Any, content: bytes) -> Any:
    """*document*, which was read from *content*. Raises ``InvalidRequest`` when it goes too deep."""
    if content.count(b"{") + content.count(b"[") > DEEPEST:
        level = [document]
        for _depth in range(DEEPEST):
            level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)
                     if isinstance(inner, (dict, list))]
        if level:
            raise InvalidRequest("The body is nested too deeply: it may have %d objects and lists in each other."
                                 % DEEPEST)
    return document
