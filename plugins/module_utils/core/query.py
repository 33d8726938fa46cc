# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters of query strings of ``/v1``, which agents and clouds read alike: a function for each reads its text."""

from __future__ import annotations

import json
from typing import Any, Callable, Collection, Container, Iterable, Mapping, Optional, Sequence

from .errors import InvalidField, InvalidRequest
from .values import Boolean, Choices, Integer, Nullable, Text, Value


def boolean(name: str, text: str) -> bool:
    """true or false."""
    if text not in ("true", "false"):
        raise InvalidField(name, "must be true or false", text)
    return text == "true"


def seconds(name: str, text: str) -> float:
    """A time span."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 86400:
        raise InvalidField(name, "must be a number of seconds from 0 to 86400", text)
    return found


def number(name: str, text: str) -> int:
    """A whole number."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidField(name, "must be a whole number", text)
    return int(text)


def words(_name: str, text: str) -> list[str]:
    """A list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def plain(_name: str, text: str) -> str:
    """The text itself."""
    return text


def reader(value: Value) -> Optional[Callable[[str, str], Any]]:
    """How a filter on a field of type *value* is read; ``None`` for lists and objects, which cannot be filtered by.

    Of choices, some are read: words with commas between them, of which the field is to have one.
    """
    if isinstance(value, Nullable):
        return reader(value.value)
    if isinstance(value, Choices):
        return lambda name, text: [value.check(word, name) for word in words(name, text) or [text]]
    for kind, read in ((Boolean, boolean), (Integer, number), (Text, plain)):
        if isinstance(value, kind):
            return read
    return None


def texts(value: Any) -> list[str]:
    """What a filter says that ``reader`` has read, as ``fits`` takes it."""
    return [_text(one) for one in (value if isinstance(value, list) else [value])]


def fits(shown: Mapping[str, Any], filters: Mapping[str, Container[str]]) -> bool:
    """Whether each field of *filters* (its name to the texts of which it is to have one) does."""
    return all(one_of(shown.get(name), wanted) for name, wanted in filters.items())


def one_of(value: Any, wanted: Container[str]) -> bool:
    """Whether the text of *value* is *wanted*; a reference has those of its uuid and of its name."""
    return any(one in wanted for one in _names(value))


def _names(value: Any) -> tuple[str, ...]:
    return (_text(value.get("id")), _text(value.get("name"))) if isinstance(value, dict) else (_text(value),)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parameters(given: Iterable[tuple[str, str]], known: Mapping[str, Callable[[str, str], Any]],
               shown: Optional[int] = None) -> dict[str, Any]:
    """The parameters *given*, each read by its function of *known*. Others, and repeated ones, are refused.

    *shown*: how many characters of an unknown name are said.
    """
    found: dict[str, Any] = {}
    for name, text in given:
        if name not in known:
            raise InvalidRequest("%s is not a parameter of this route; known are: %s." % (
                name[:shown], ", ".join(known) or "none"), field=name[:shown])
        if name in found:
            raise InvalidRequest("%s is given more than once." % name, field=name)
        found[name] = known[name](name, text)
    return found


#: Most keys by which a list is sorted.
SORTS = 10
#: Most resources that one list answer holds.
LIMIT = 10000
#: Parameters of every list, besides filters.
PAGE: Mapping[str, Callable[[str, str], Any]] = {"fields": words, "limit": number, "marker": plain, "sort": words}
#: Parameters of an ensure.
PARAMETERS: Mapping[str, Callable[[str, str], Any]] = {
    "dry_run": boolean, "wait": seconds, "on_immutable": plain, "merge": words, "allow_reboot": boolean,
    "preserve_ephemeral": boolean}


def check_sort(parameter: str, keys: Sequence[Any]) -> None:
    """Raises ``InvalidField`` where a list is to be sorted by one key twice, or by more than ``SORTS`` of them."""
    if len(keys) > SORTS or len(set(keys)) < len(keys):
        raise InvalidField(parameter, "must name %d keys at most, and each of them once" % SORTS)


def paged(noun: str, known: Collection[str], found: list[dict[str, Any]], fields: Optional[Sequence[str]] = None,
          limit: Optional[int] = None, marker: Optional[str] = None,
          sort: Optional[Sequence[str]] = None) -> list[dict[str, Any]]:
    """What a list with these parameters (``PAGE``) shows of the resources *found*, whose fields are *known*: *limit* of
    those that follow the one with the id (or name) *marker*. A key of *sort* with ``-`` before it goes downwards; what
    has no value is last."""
    for parameter, names in (("sort", [key.lstrip("-") for key in sort or ()]), ("fields", fields or ())):
        for name in names:
            if name not in known:
                raise InvalidField(parameter, "%s has no field %s; it has %s" % (noun, name[:80], ", ".join(known)))
    check_sort("sort", [key.lstrip("-") for key in sort or ()])
    for key in reversed(sort or ()):
        name = key.lstrip("-")
        have = [one for one in found if one.get(name) is not None]
        have.sort(key=lambda one, name=name: _rank(one[name]), reverse=key.startswith("-"))  # type: ignore[misc]
        found = have + [one for one in found if one.get(name) is None]
    if marker is not None:
        at = next((at for at, one in enumerate(found) if marker in (one.get("id"), one.get("name"))), None)
        if at is None:
            raise InvalidField("marker", "must be the id of a resource of the list", marker)
        found = found[at + 1:]
    found = found[:min(LIMIT, LIMIT if limit is None else limit)]
    return found if fields is None else [{name: one.get(name) for name in fields} for one in found]


def _rank(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else json.dumps(value, sort_keys=True)
