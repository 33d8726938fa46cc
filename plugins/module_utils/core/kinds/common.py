# SPDX-License-Identifier: GPL-3.0-or-later
"""Values and fields that several kinds share."""

from __future__ import annotations

from typing import Any, Optional

from ..fields import FIXED, READ, Field, Kind
from ..values import Nullable, Text, Uuid
from ..versions import Version

#: Nova's rule for names: 1 to 255 printable characters, no blank at either end.
PRINTABLE = (r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?",
             "must be printable text without a blank at the beginning or the end")
NAME = Text(1, 255, *PRINTABLE)
#: A name, or a uuid, of another resource.
REFERENCE = Text(1, 255)
DESCRIPTION = Text(0, 255)
NONE = "none"
#: A tag of a server, or of one of its devices.
TAG = Text(1, 60, r"[^,/\x00-\x1f\x7f]+", "must not contain a comma, a slash or control characters")
TIME = Text(20, 20)
#: The id of a request.
REQUEST = Text(1, 128, r"[\w.-]+", "may have letters, digits and . _ - only")


class OrNone(Nullable):
    """A value type that accepts null, the string ``none`` (which also means null), and everything that the value type
    *value* accepts.
    """

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        return super().check(None if value == NONE else value, path, version)


class Resource(Kind):
    """The fields that all stored resources have: identity, and the times of creation and change."""

    id = Field(Uuid(), "The uuid; generated when the resource is created, unless given.", on=FIXED,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The name.", required=True, sample="web1")
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="", sample="for the shop")
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(TIME, "When it was last changed, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
