# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types that the core's do not have: the Compute API and what it keeps in images take numbers and truth as text
too."""

from __future__ import annotations

import re
import uuid
from typing import Any

from magnetar_core.errors import InvalidField
from magnetar_core.values import ListOf, MapOf, Text, Value
from magnetar_core.versions import Version

TRUE = ("True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes")
FALSE = ("False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no")


class Truth(Value):
    """true or false, or one of the words that Nova takes for them."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """A bool."""
        if isinstance(value, bool):
            return value
        if value in TRUE:
            return True
        if value in FALSE:
            return False
        raise InvalidField(path, "must be true or false", value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """The words."""
        return {"enum": [True, False, *TRUE, *FALSE]}


class Number(Value):
    """A whole number, or text of digits, from *min* to *max*."""

    def __init__(self, min: int = 0, max: int = 2**31 - 1) -> None:
        self.min, self.max = min, max

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """An int."""
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidField(path, "must be a whole number", value)
        if not self.min <= value <= self.max:
            raise InvalidField(path, f"must be from {self.min} to {self.max}", value)
        return value

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """Both forms."""
        return {"type": ["integer", "string"], "pattern": "^-?[0-9]+$", "minimum": self.min, "maximum": self.max}


class Anything(Value):
    """Anything: what Nova does not look at."""


class Id(Value):
    """A uuid as Nova takes it: any case, hyphens or none; kept as it was given, in lower case with hyphens."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The uuid."""
        try:
            if not isinstance(value, str):
                raise ValueError  # noqa: TRY004 - one answer for both
            return str(uuid.UUID(value))
        except ValueError:
            raise InvalidField(path, "must be a uuid", value) from None

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """A string with a format."""
        return {"type": "string", "format": "uuid"}


KEY = Text(1, 255, r"[a-zA-Z0-9\-_:. ]{1,255}", "may have letters, digits, blanks and - _ : . only")
METADATA = MapOf(KEY, Text(0, 255), 100000)
TAG = Text(1, 60, r"[^,/]*", "must have 1 to 60 characters, without comma and slash")
TAGS = ListOf(TAG, 50, unique=True)
