# SPDX-License-Identifier: GPL-3.0-or-later
"""The limit of nesting in JSON documents. Python's reader accepts deeper documents than its writer, so a stored
document could otherwise become unreadable.
"""

from __future__ import annotations

from typing import Any

from .errors import InvalidRequest

#: Maximum depth of nested objects and lists, more than ten times that of any document of the APIs.
DEEPEST = 100


def check_nesting(document: Any, content: bytes) -> Any:
    """Raise ``InvalidRequest`` if the JSON *document* has more than ``DEEPEST`` levels; otherwise return it. *content*:
    the bytes of the document, before it was parsed.
    """
    if content.count(b"{") + content.count(b"[") > DEEPEST:
        level = [document]
        for _depth in range(DEEPEST):
            level = [inner for container in level for inner in (container.values() if isinstance(container, dict)
                                                                else container)
                     if isinstance(inner, (dict, list))]
        if level:
            raise InvalidRequest("The body is nested too deeply: it may have %d objects and lists in each other."
                                 % DEEPEST)
    return document
