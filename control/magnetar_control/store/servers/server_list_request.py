# SPDX-License-Identifier: GPL-3.0-or-later
"""The request for a list of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NEWEST_FIRST = (("created_at", True), ("id", True))


@dataclass(kw_only=True)
class ServerListRequest:
    """A request for a page of servers.

    *limit*: number of servers. *sort*: (column, descending). *marker*: uuid of the last server on the previous page.
    *project*: only servers of this project; ``None``: of all projects. The project is always the caller's, unless
    *all_projects* is set, which needs a permission.

    Filters: *equal*: required values by column. *matching*: (column, regular expression). *addresses*: regular
    expression by IP version (4 or 6). *tags*: (tags, whether all must match, whether to negate). *statuses*: status
    values of Nova's API, such as ACTIVE; a server must have one of them, so an empty list matches none. *locked*:
    whether locked. *zone*: an availability zone, whose hosts are *zone_hosts*. *since*, *before*: bounds of the last
    change. *deleted*: whether to list only deleted servers.

    *soft_deleted*: whether to list soft-deleted servers; ``None``: only if *deleted*, *since* or *before* is set, or
    *statuses* or *equal* ask for soft-deleted servers.
    """

    limit: int
    sort: Sequence[tuple[str, bool]] = NEWEST_FIRST
    marker: str | None = None
    all_projects: bool = False
    project: str | None = None
    equal: dict[str, Any] = field(default_factory=dict)
    matching: list[tuple[str, str]] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    tags: list[tuple[Sequence[str], bool, bool]] = field(default_factory=list)
    statuses: Sequence[str] | None = None
    locked: bool | None = None
    zone: str | None = None
    zone_hosts: Sequence[str] = ()
    since: str | None = None
    before: str | None = None
    deleted: bool = False
    soft_deleted: bool | None = None
