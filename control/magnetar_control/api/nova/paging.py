# SPDX-License-Identifier: GPL-3.0-or-later
"""Paging of lists, and links to the next page."""

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
    """A validator of the query parameter ``limit``: a whole number, 0 or more, as text."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """Return the limit *value* as an int. *path*: the name of the parameter, for the error. Raises
        ``InvalidField``."""
        text = str(value)
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InvalidField(path, "must be a whole number, 0 or more", value)
        return int(text)


def paging_parameters(since: int = 1) -> dict[str, Query]:
    """Return the query parameters ``limit`` and ``marker`` of a list. *since*: the first minor version with pages."""
    return {"limit": Query(value=Limit(), since=since), "marker": Query(value=Anything(), since=since)}


def page_size(call: Call) -> int:
    """Return the number of items on the requested page: the limit in the query, but at most ``max_limit`` in the
    settings."""
    most: int = call.settings.max_limit
    requested_limit = call.query.get("limit")
    return most if requested_limit is None else min(requested_limit, most)


def next_link(call: Call, path: str, marker: str) -> list[dict[str, str]]:
    """Return ``[{"rel": "next", "href": …}]``, a link to *path* with the same query, except that the page begins after
    *marker*."""
    query_pairs: Iterable[tuple[str, str]] = [(name, value) for name, value in call.request.query if name != "marker"]
    query = urlencode([*query_pairs, ("marker", marker)], quote_via=quote)
    return [{"rel": "next", "href": f"{call.base}{path}?{query}"}]
