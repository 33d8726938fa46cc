# SPDX-License-Identifier: GPL-3.0-or-later
"""The query of a list: filters, sorting, pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from magnetar_control.api.values import Number
from magnetar_control.services import Document
from magnetar_control.services.volume.listing import VolumeListing
from magnetar_control.web import Request

from .values import SIZE, TRUTH, is_set

#: Most rows of a page.
MOST = 1000
COUNT = Number(0, 999_999_999)
#: Filters that are no text.
TYPES = {"bootable": TRUTH, "multiattach": TRUTH, "size": SIZE}


def listing(request: Request, columns: Sequence[str], **more: str) -> VolumeListing:
    """What the list is asked for; filters are *columns*. What is no filter is not looked at, as in Cinder. *more*:
    parameters that count where the query has none of them."""
    given = {**more, **dict(request.query)}
    filters = {name: TYPES[name].check(given[name], name) if name in TYPES else given[name]
               for name in columns if name in given}
    return VolumeListing(
        filters=filters, named=given.get("name~"), everywhere=is_set(request, "all_tenants"),
        project_id=given.get("project_id"), sort=_sort(given), marker=given.get("marker"),
        limit=min(COUNT.check(given.get("limit", MOST), "limit"), MOST),
        offset=COUNT.check(given.get("offset", 0), "offset"),
        count=request.extra["version"] >= (3, 45) and is_set(request, "with_count"))


def _sort(given: dict[str, str]) -> list[tuple[str, bool]]:
    words = [word for word in given.get("sort", "").split(",") if word] or [
        f"{given.get('sort_key', 'created_at')}:{given.get('sort_dir', 'desc')}"]
    return [(name, direction != "asc") for name, _colon, direction in (word.partition(":") for word in words)]


def page(request: Request, plural: str, shown: list[Document], limit: int | None, count: int | None = None) -> Document:
    """The answer of a list, with a link to the next page where this one is full."""
    found: Document = {plural: shown}
    if shown and len(shown) == limit:
        query: list[tuple[str, Any]] = [one for one in request.query if one[0] not in ("marker", "offset")]
        query.append(("marker", shown[-1]["id"]))
        found[f"{plural}_links"] = [
            {"rel": "next", "href": f"{request.base}{request.path}?{urlencode(query)}"}]
    return found if count is None else {**found, "count": count}
