# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types for bodies and queries of the OpenStack APIs, which accept numbers and booleans as text too; the form of
times in these APIs."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from socket import AF_INET6, inet_ntop
from typing import Any

from magnetar_control.store.engine import regex
from magnetar_control.store.engine.conditions import COMPARE
from magnetar_control.store.engine.database import parse_moment
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field, Record
from magnetar_core.values import Integer, Value
from magnetar_core.versions import Range, Version


class Lenient(Version):
    """A version of an API that ignores unknown keys in request bodies instead of refusing them, such as Nova's ``/v2``.
    """


class Parsed(Value):
    """A validator that converts values with the function *parse*. If *parse* raises ``ValueError`` or ``KeyError``, the
    validator raises ``InvalidField`` with the text *rule*. *schema*: the JSON schema of the values."""

    def __init__(self, parse: Callable[[Any], Any], rule: str, **schema: Any) -> None:
        self.parse, self.rule, self.json = parse, rule, schema

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        try:
            return self.parse(value)
        except (KeyError, ValueError):
            raise InvalidField(path, self.rule, value) from None

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return self.json


class Truth(Parsed):
    """A validator of booleans. *true*, *false*: further values that an API accepts as true and as false. *any_case*:
    accept the further values in upper and lower case, and numbers such as 1 for "1"."""

    def __init__(self, true: Sequence[str], false: Sequence[str], any_case: bool = False) -> None:
        self.words, self.any_case = {**dict.fromkeys(true, True), **dict.fromkeys(false, False)}, any_case
        super().__init__(self._bool, "must be true or false", enum=[True, False, *self.words])

    def _bool(self, value: Any) -> bool:
        checked = str(value).lower() if self.any_case else value
        if not isinstance(value, bool) and (not isinstance(checked, str) or checked not in self.words):
            raise ValueError
        return value if isinstance(value, bool) else self.words[checked]


class Number(Integer):
    """A validator of whole numbers from *min* to *max*, also as text. It returns an int."""

    form: Any = ()  # digits look like text

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        digits = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value)
        return super().check(int(value) if digits else value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**super().schema(version), "type": ["integer", "string"], "pattern": "^-?[0-9]+$"}


class Decimal(Value):
    """A validator of numbers above 0, up to *max*, also as text. It returns a float."""

    def __init__(self, max: float) -> None:
        self.max = max

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,40}(\.[0-9]{1,40})?", value):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(path, "must be a number", value)
        if not 0 < value <= self.max:
            raise InvalidField(path, f"must be above 0, and {self.max:g} at most", value)
        return float(value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": self.max}


class Regex(Value):
    """A validator of regular expressions in the syntax that both SQLite and PostgreSQL support
    (``store.engine.regex``)."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        try:
            regex.compile_search(str(value))
        except regex.PatternRefused as error:
            raise InvalidField(path, f"must be a regular expression of {regex.KNOWN}: {error}", value) from None
        return str(value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "string", "format": "regex"}


class Anything(Value):
    """A validator that accepts any value, for fields that Nova does not check either."""


class OrEmpty(Value):
    """A validator that checks values with the validator *value*, after it has converted null to *empty*."""

    def __init__(self, value: Value, empty: Any) -> None:
        self.value, self.empty = value, empty

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return self.value.check(self.empty if value is None else value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"anyOf": [self.value.schema(version), {"type": "null"}]}


class Null(Value):
    """A validator that accepts only null."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value is not None:
            raise InvalidField(path, "must be null", value)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "null"}


class ByVersion(Value):
    """A validator that depends on the API version. *rows*: (first version, last version, validator) tuples."""

    def __init__(self, *rows: tuple[str | None, str | None, Value]) -> None:
        self.rows = [(Range(since, until), value) for since, until, value in rows]

    def at(self, version: Version | None) -> Value:
        """Return the validator for the API version *version*; for ``None``, the validator of the last row."""
        return next((value for span, value in self.rows if version is not None and span.holds(version)),
                    self.rows[-1][1])

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return self.at(version).check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return self.at(version).schema(version)


class Address(Parsed):
    """A validator of IP addresses as text. *family*: 4 or 6; ``None``: both. It returns the address in the usual
    notation."""

    def __init__(self, family: int | None = None) -> None:
        super().__init__(self._text, f"must be an IP{f'v{family}' if family else ''} address",
                         type="string", format=f"ipv{family or 4}")
        self.family = family

    def _text(self, value: Any) -> str:
        address = ip_address(value if isinstance(value, str) else "")
        if self.family not in (None, address.version) or "%" in value:
            raise ValueError
        # Nova's form, which writes an embedded IPv4 address with dots (::ffff:192.0.2.1).
        return str(address) if address.version == 4 else inet_ntop(AF_INET6, address.packed)


class Time(Parsed):
    """A validator of ISO 8601 times. It returns the format of database columns: 2026-11-21T10:00:00.000000."""

    def __init__(self) -> None:
        super().__init__(_moment, "must be a moment such as 2026-11-21T10:00:00Z", type="string", format="date-time")


def _moment(value: Any) -> str:
    return parse_moment(str(value).replace(" ", "+", 1) if "T" in str(value) else str(value))


class Comparison(Time):
    """A validator of comparisons with a time, such as gt:2026-11-21T10:00:00Z. It returns (operator, time). The
    operators are the keys of ``store.engine.conditions.COMPARE``; the default is eq."""

    def check(self, value: Any, path: str, version: Version | None = None) -> tuple[str, str]:
        how, colon, moment = value.partition(":")
        if not colon or how not in COMPARE:
            how, moment = "eq", value
        return how, super().check(moment, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "string"}


class Id(Parsed):
    """A validator of uuids. Like Nova, it accepts upper and lower case, with or without hyphens; it returns lower case
    with hyphens."""

    def __init__(self) -> None:
        super().__init__(lambda value: str(uuid.UUID(value if isinstance(value, str) else "")), "must be a uuid",
                         type="string", format="uuid")


def build_record(fields: Mapping[str, Value], *required: str) -> Record:
    """Return a validator of a JSON object that accepts the keys of *fields* and no others. *fields*: the validator of
    each key. *required*: the keys that must be present.
    """
    return Record(**{name: Field(value, name, required=name in required, on="create")
                     for name, value in fields.items()})


class Wrapped(Value):
    """A validator of request bodies ``{key: …}``. The validator *value* checks the value of *key*. *more*: validators
    of further allowed keys. The result of the check is the value of *key* if *more* is empty, otherwise the whole
    object."""

    def __init__(self, key: str, value: Value, more: Mapping[str, Value] | None = None) -> None:
        self.key, self.value, self.more = key, value, dict(more or {})

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if not isinstance(value, dict):
            raise InvalidField("body", "must be an object", value)
        if self.key not in value:
            raise InvalidField(self.key, "is required")
        for name in () if isinstance(version, Lenient) else value:
            if name != self.key and name not in self.more:
                raise InvalidField(str(name)[:80], f"is not known here; the body has the key {self.key} only")
        inner = self.value.check(value[self.key], self.key, version)
        if not self.more:
            return inner
        return {self.key: inner, **{name: kind.check(value[name], name, version)
                                    for name, kind in self.more.items() if name in value}}

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"type": "object", "required": [self.key], "additionalProperties": False, "properties": {
            name: kind.schema(version) for name, kind in {self.key: self.value, **self.more}.items()}}


class OneKey(Value):
    """A validator of objects with exactly one key, which the validator *value* must also accept."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        checked = self.value.check(value, path or "body", version)
        if len(checked) != 1:
            raise InvalidField(path or "body", "must have exactly one key")
        return checked

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {**self.value.schema(version), "minProperties": 1, "maxProperties": 1}


def to_second(moment: str) -> str:
    """Convert *moment* from the format of database columns to the format of the APIs, and return it:
    2026-11-21T10:00:00.000000 becomes 2026-11-21T10:00:00Z."""
    return moment[:19] + "Z"
