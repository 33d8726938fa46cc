# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists page by page, and links to the next one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, urlencode

from magnetar_control.api.values import Anything
from magnetar_core.errors import InvalidField
from magnetar_core.values import Value
from magnetar_core.versions import Version

from .operation import Call, Query


class Limit(Value):
    """Text of a number of items, 0 or more."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """An int."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InvalidField(path, "must be a whole number, 0 or more", value)
        return int(text)


def pages(since: int = 1) -> dict[str, Query]:
    """The parameters of a list that is paged *since* a version."""
    return {"limit": Query(value=Limit(), since=since), "marker": Query(value=Anything(), since=since)}


def size(call: Call) -> int:
    """How many items the answer may have."""
    most: int = call.settings.max_limit
    given = call.query.get("limit")
    return most if given is None else min(given, most)


def next_link(call: Call, path: str, marker: str) -> list[dict[str, str]]:
    """``[{"rel": "next", "href": …}]``: the same question from *marker* on."""
    kept: Iterable[tuple[str, str]] = [(name, value) for name, value in call.request.query if name != "marker"]
    query = urlencode([*kept, ("marker", marker)], quote_via=quote)
    return [{"rel": "next", "href": f"{call.base}{path}?{query}"}]
