# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types: each checks a value and defines its JSON schema and its Ansible option type, in one place.

``check(value, path, version)`` returns the value in its normal form or raises ``InvalidField(path, rule)``.
``schema(version)`` is a JSON Schema (draft 2020-12). ``option()`` is the part of an Ansible argument spec.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from typing import Any, Optional, Union

from .errors import InvalidField
from .versions import Range, Version


class Value:
    """The base class of value types, which validate the values of fields. An instance of the base class accepts any
    JSON value.
    """

    #: Python types of the values.
    form: tuple[type, ...] = ()

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        return value

    def likeness(self, value: Any) -> int:
        """Return how closely *value* resembles this type: 0 for not at all, larger numbers for more. ``OneOf`` raises
        the error of the closest type.
        """
        return int(isinstance(value, self.form))

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {}

    def option(self) -> dict[str, Any]:
        return {"type": "raw"}


class Text(Value):
    """The value type of strings with *min* to *max* characters that match the regular expression *pattern* completely.
    *rule*: describes the pattern in error messages.
    """

    form = (str,)

    def __init__(self, min: int = 0, max: int = 255, pattern: Optional[str] = None, rule: Optional[str] = None) -> None:
        self.min, self.max, self.rule = min, max, rule
        self._pattern = pattern

    @functools.cached_property
    def pattern(self) -> Optional[re.Pattern[str]]:
        """Return the compiled pattern; ``None`` if there is none. It is compiled at first use, because a module needs
        only few of the patterns that it imports.
        """
        return re.compile(self._pattern) if self._pattern else None

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if not isinstance(value, str):
            raise InvalidField(path, "must be a string", value)
        if not self.min <= len(value) <= self.max:
            raise InvalidField(
                path, "must have %d to %d characters, and has %d" % (self.min, self.max, len(value)))
        if "\x00" in value:
            raise InvalidField(path, "must not contain a NUL character")
        if self.pattern and not self.pattern.fullmatch(value):
            raise InvalidField(path, self.rule or "must match %s" % self.pattern.pattern, value)
        return value

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": self.min, "maxLength": self.max}
        if self.pattern:
            schema["pattern"] = "^(?:%s)$" % self.pattern.pattern
        return schema

    def option(self) -> dict[str, Any]:
        return {"type": "str"}


class Uuid(Text):
    """The value type of UUIDs. The normal form is lower case with hyphens."""

    def __init__(self) -> None:
        super().__init__(
            32, 36, "[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}",
            "must be a UUID such as 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        digits: str = super().check(value, path, version).replace("-", "").lower()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": "string", "format": "uuid"}


class Mac(Text):
    """The value type of unicast MAC addresses. The normal form is lower case. 00:00:00:00:00:00 is refused."""

    def __init__(self) -> None:
        super().__init__(17, 17, "(?!00:00:00:00:00:00)[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}",
                         "must be a unicast MAC address such as 52:54:00:12:34:56")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if isinstance(value, int):
            raise InvalidField(path, "must be a MAC address in quotes: YAML reads 52:54:00:12:34:56 as a number", value)
        return super().check(value, path, version).lower()


class Base64(Text):
    """The value type of base64 strings. *max*: maximum number of characters of the encoded string."""

    def __init__(self, max: int) -> None:
        super().__init__(0, max)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        text = "".join(super().check(value, path, version).split())
        try:
            base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError, ValueError):
            raise InvalidField(path, "must be valid base64") from None
        return text

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.max, "contentEncoding": "base64"}


class Integer(Value):
    """The value type of whole numbers from *min* to *max*."""

    form = (int,)

    def __init__(self, min: int = 0, max: int = 2**31 - 1) -> None:
        self.min, self.max = min, max

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidField(path, "must be a whole number", value)
        if not self.min <= value <= self.max:
            raise InvalidField(path, "must be from %d to %d" % (self.min, self.max), value)
        return value

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.min, "maximum": self.max}

    def option(self) -> dict[str, Any]:
        return {"type": "int"}


class Boolean(Value):
    """The value type of booleans: true or false."""

    form = (bool,)

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if not isinstance(value, bool):
            raise InvalidField(path, "must be true or false", value)
        return value

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": "boolean"}

    def option(self) -> dict[str, Any]:
        return {"type": "bool"}


class Choice:
    """A value that ``Choices`` accepts in API versions from *since* to *until* (``None``: no limit)."""

    def __init__(self, text: str, since: Optional[str] = None, until: Optional[str] = None) -> None:
        self.word, self.range = text, Range(since, until)


class Choices(Value):
    """The value type of strings that must be one of *choices*: strings, or ``Choice`` objects."""

    def __init__(self, *choices: Union[str, Choice]) -> None:
        self.choices = tuple(c if isinstance(c, Choice) else Choice(c) for c in choices)

    def words(self, version: Optional[Version] = None) -> list[str]:
        """Return the strings that are accepted in the API version *version* (``None``: the newest), in their declared
        order.
        """
        return [c.word for c in self.choices if c.range.holds(version)]

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        words = self.words(version)
        if value not in words:
            raise InvalidField(path, "must be one of %s" % ", ".join(words), value)
        return value

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"enum": self.words(version)}

    def option(self) -> dict[str, Any]:
        return {"type": "str", "choices": self.words()}


class Nullable(Value):
    """A value type that accepts null and everything that *value*, another value type, accepts."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        return None if value is None else self.value.check(value, path, version)

    def likeness(self, value: Any) -> int:
        return self.value.likeness(value)

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"anyOf": [self.value.schema(version), {"type": "null"}]}

    def option(self) -> dict[str, Any]:
        return self.value.option()


class ListOf(Value):
    """The value type of lists with at most *max* items of the value type *item*. *unique*: duplicates are removed, and
    the list is sorted.
    """

    form = (list, tuple)

    def __init__(self, item: Value, max: int = 100, unique: bool = False) -> None:
        self.item, self.max, self.unique = item, max, unique

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if not isinstance(value, (list, tuple)):
            raise InvalidField(path, "must be a list", value)
        if len(value) > self.max:
            raise InvalidField(path, "must have at most %d items, and has %d" % (self.max, len(value)))
        items = [self.item.check(item, "%s[%d]" % (path, at), version) for at, item in enumerate(value)]
        return sorted(set(items)) if self.unique else items

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        schema = {"type": "array", "items": self.item.schema(version), "maxItems": self.max}
        return dict(schema, uniqueItems=True) if self.unique else schema

    def option(self) -> dict[str, Any]:
        inner = self.item.option()
        option = {"type": "list", "elements": inner.pop("type")}
        option.update(inner)
        return option


class MapOf(Value):
    """The value type of objects with arbitrary keys, at most *max*. *key*, *value*: the value types of keys and values.
    """

    form = (dict,)

    def __init__(self, key: Value, value: Value, max: int = 128) -> None:
        self.key, self.value, self.max = key, value, max

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if not isinstance(value, dict):
            raise InvalidField(path, "must be a mapping of keys to values", value)
        if len(value) > self.max:
            raise InvalidField(path, "must have at most %d keys, and has %d" % (self.max, len(value)))
        return {
            self.key.check(key, "%s key" % path, version):
            self.value.check(item, "%s.%s" % (path, str(key)[:40]), version)
            for key, item in value.items()
        }

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"type": "object", "propertyNames": self.key.schema(version), "maxProperties": self.max,
                "additionalProperties": self.value.schema(version)}

    def option(self) -> dict[str, Any]:
        return {"type": "dict"}


def _either(rules: list[str]) -> str:
    """Combine the error texts *rules* into one: "must be A" and "must be B" into "must be A or B"."""
    alike = all(rule.startswith("must be ") for rule in rules)
    first, *further_rules = dict.fromkeys(rules)
    return " or ".join([first] + [rule[len("must be "):] if alike else rule for rule in further_rules])


class OneOf(Value):
    """The value type of values that one of several types accepts. The first type that accepts a value counts. If none
    does, the error comes from the type that resembles the value most; errors of equally similar types are combined.
    """

    def __init__(self, *values: Value) -> None:
        self.values = values

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        refused: list[tuple[int, InvalidField]] = []
        for choice in self.values:
            try:
                return choice.check(value, path, version)
            except InvalidField as error:
                refused.append((choice.likeness(value), error))
        nearest = max(likeness for likeness, _error in refused)
        likest = [error for likeness, error in refused if likeness == nearest]
        inside = [error for error in likest if error.details["field"] != path]
        if inside or len(likest) == 1:
            raise (inside or likest)[-1]
        raise InvalidField(path, _either([error.details["rule"] for error in likest]), value)

    def likeness(self, value: Any) -> int:
        return max(choice.likeness(value) for choice in self.values)

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"anyOf": [choice.schema(version) for choice in self.values]}

    def option(self) -> dict[str, Any]:
        return {"type": "raw"}


class Const(Value):
    """The value type that accepts only the given *value*."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        if value != self.value or isinstance(value, bool) != isinstance(self.value, bool):
            raise InvalidField(path, "must be %r" % (self.value,), value)
        return value

    def schema(self, version: Optional[Version] = None) -> dict[str, Any]:
        return {"const": self.value}
