# SPDX-License-Identifier: GPL-3.0-or-later
"""API versions, and the ranges of versions that declarations are valid in (Nova microversions)."""

from __future__ import annotations

import re
from functools import total_ordering
from typing import Optional

_FORM = re.compile(r"^([1-9][0-9]*)\.(0|[1-9][0-9]*)$")


@total_ordering
class Version:
    """An API version ``major.minor``. Versions are compared by their numbers, so 2.10 is later than 2.9."""

    __slots__ = ("major", "minor")

    def __init__(self, text: str) -> None:
        match = _FORM.match(text)
        if not match:
            raise ValueError("%r is not a version of the form 2.1" % (text,))
        self.major, self.minor = int(match.group(1)), int(match.group(2))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and (self.major, self.minor) == (other.major, other.minor)

    def __lt__(self, other: Version) -> bool:
        return (self.major, self.minor) < (other.major, other.minor)

    def __hash__(self) -> int:
        return hash((self.major, self.minor))

    def __str__(self) -> str:
        return "%d.%d" % (self.major, self.minor)

    def __repr__(self) -> str:
        return "Version('%s')" % self


FIRST = Version("2.1")


class Range:
    """The API versions from *since* to *until*, both included. ``None``: no limit."""

    __slots__ = ("since", "until")

    def __init__(self, since: Optional[str] = None, until: Optional[str] = None) -> None:
        self.since = Version(since) if since else FIRST
        self.until = Version(until) if until else None
        if self.until is not None and self.until < self.since:
            raise ValueError("a range cannot end (%s) before it begins (%s)" % (self.until, self.since))

    def holds(self, version: Optional[Version]) -> bool:
        """Return whether *version* is in the range. ``None`` stands for the newest version, which is only in ranges
        without end.
        """
        if version is None:
            return self.until is None
        return self.since <= version and (self.until is None or version <= self.until)

    def overlaps(self, other: Range) -> bool:
        """Return whether at least one version is in this range and in *other*."""
        return (self.until is None or other.since <= self.until) and (
            other.until is None or self.since <= other.until
        )
