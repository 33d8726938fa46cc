# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types of the OpenStack APIs' bodies and queries that the core's do not have: they take numbers and truth as
text too."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from magnetar_control.store import regex
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field, Record
from magnetar_core.values import Value
from magnetar_core.versions import Range, Version


class Truth(Value):
    """true or false, or one of the words that a protocol takes for them. *any_case*: in any case, and as numbers."""

    def __init__(self, true: Sequence[str], false: Sequence[str], any_case: bool = False) -> None:
        self.words, self.any_case = {**dict.fromkeys(true, True), **dict.fromkeys(false, False)}, any_case

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """A bool."""
        if isinstance(value, bool):
            return value
        word = str(value).lower() if self.any_case else value
        if not isinstance(word, str) or word not in self.words:
            raise InvalidField(path, "must be true or false", value)
        return self.words[word]

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """The words."""
        return {"enum": [True, False, *self.words]}


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


class Decimal(Value):
    """A number above 0, or text of one, up to *max*."""

    def __init__(self, max: float) -> None:
        self.max = max

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """A float."""
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,40}(\.[0-9]{1,40})?", value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(path, "must be a number", value)
        if not 0 < value <= self.max:
            raise InvalidField(path, f"must be above 0, and {self.max:g} at most", value)
        return float(value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """Both forms."""
        return {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": self.max}


class Pattern(Value):
    """A regular expression of what both databases know (``store.regex``)."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The text."""
        try:
            regex.search(str(value))
        except regex.Refused as error:
            raise InvalidField(path, f"must be a regular expression of {regex.KNOWN}: {error}", value) from None
        return str(value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """A string with a format."""
        return {"type": "string", "format": "regex"}


class Anything(Value):
    """Anything: what Nova does not look at."""


class OrEmpty(Value):
    """*value*, or null, which is *empty*."""

    def __init__(self, value: Value, empty: Any) -> None:
        self.value, self.empty = value, empty

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """As the value does."""
        return self.value.check(self.empty if value is None else value, path, version)


class Null(Value):
    """null."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """None."""
        if value is not None:
            raise InvalidField(path, "must be null", value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """null."""
        return {"type": "null"}


class ByVersion(Value):
    """One value type or another, by version: (since, until, type) rows."""

    def __init__(self, *rows: tuple[str | None, str | None, Value]) -> None:
        self.rows = [(Range(since, until), value) for since, until, value in rows]

    def at(self, version: Version | None) -> Value:
        """The type at *version*; the last one when none is given."""
        for span, value in self.rows:
            if version is not None and span.holds(version):
                return value
        return self.rows[-1][1]

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """As the type of the version does."""
        return self.at(version).check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """As the type of the version does."""
        return self.at(version).schema(version)


class Address(Value):
    """An IP address of *family* 4 or 6, or either; empty text for none where *empty*."""

    def __init__(self, family: int | None = None, empty: bool = False) -> None:
        self.family, self.empty = family, empty

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The address as text; ``None`` for empty text."""
        if self.empty and value == "":
            return None
        try:
            found = ip_address(value if isinstance(value, str) else "")
        except ValueError:
            found = None
        if found is None or (self.family and found.version != self.family):
            raise InvalidField(path, f"must be an IP{f'v{self.family}' if self.family else ''} address", value)
        return str(value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """A string with a format."""
        return {"type": "string", "format": f"ipv{self.family or 4}"}


class Time(Value):
    """An ISO 8601 moment; normal form is that of the tables."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """Text such as 2026-11-21T10:00:00.000000."""
        try:
            found = datetime.fromisoformat(str(value).replace(" ", "+", 1) if "T" in str(value) else str(value))
            if found.tzinfo is not None:
                found = found.astimezone(UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):  # OverflowError: in UTC it is beyond the calendar
            raise InvalidField(path, "must be a moment such as 2026-11-21T10:00:00Z", value) from None
        return found.isoformat(timespec="microseconds")

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """A string with a format."""
        return {"type": "string", "format": "date-time"}


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


def record(fields: Mapping[str, Field | Value], *required: str) -> Record:
    """An object with these keys and no others; *required* ones must be there."""
    made = {}
    for name, value in fields.items():
        made[name] = value if isinstance(value, Field) else Field(value, name, required=name in required, on="create")
    return Record(**made)


class Wrapped(Value):
    """A body ``{key: value}`` and nothing else, but for *more* keys."""

    def __init__(self, key: str, value: Value, more: Mapping[str, Value] | None = None) -> None:
        self.key, self.value, self.more = key, value, dict(more or {})

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The inner value; with *more*, the whole object."""
        if not isinstance(value, dict):
            raise InvalidField("body", "must be an object", value)
        if self.key not in value:
            raise InvalidField(self.key, "is required")
        for name in value:
            if name != self.key and name not in self.more:
                raise InvalidField(str(name)[:80], f"is not known here; the body has the key {self.key} only")
        inner = self.value.check(value[self.key], self.key, version)
        if not self.more:
            return inner
        return {self.key: inner, **{name: kind.check(value[name], name, version)
                                    for name, kind in self.more.items() if name in value}}

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """The whole object."""
        return {"type": "object", "required": [self.key], "additionalProperties": False, "properties": {
            self.key: self.value.schema(version), **{name: kind.schema(version) for name, kind in self.more.items()}}}


class OneKey(Value):
    """An object as *value* takes it, with exactly one key."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The object."""
        checked = self.value.check(value, path or "body", version)
        if len(checked) != 1:
            raise InvalidField(path or "body", "must have exactly one key")
        return checked

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        """With the count."""
        return {**self.value.schema(version), "minProperties": 1, "maxProperties": 1}
