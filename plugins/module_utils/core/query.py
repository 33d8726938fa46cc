# SPDX-License-Identifier: GPL-3.0-or-later
"""Parsers of the query parameters of ``/v1``, the same for agents and clouds."""

from __future__ import annotations

import json
from typing import Any, Callable, Collection, Container, Iterable, Mapping, Optional, Sequence

from .errors import InvalidField, InvalidRequest
from .values import Boolean, Choices, Integer, Nullable, Text, Value


def read_boolean(name: str, text: str) -> bool:
    """Parse *text*, ``true`` or ``false``, and return the boolean. Raises ``InvalidField`` for the query parameter
    *name*.
    """
    if text not in ("true", "false"):
        raise InvalidField(name, "must be true or false", text)
    return text == "true"


def read_seconds(name: str, text: str) -> float:
    """Parse *text*, a number of seconds from 0 to 86400, and return it. Raises ``InvalidField`` for the query parameter
    *name*.
    """
    try:
        span = float(text)
    except ValueError:
        span = -1.0
    if not 0 <= span <= 86400:
        raise InvalidField(name, "must be a number of seconds from 0 to 86400", text)
    return span


def read_number(name: str, text: str) -> int:
    """Parse *text*, a whole number, and return it. Raises ``InvalidField`` for the query parameter *name*."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidField(name, "must be a whole number", text)
    return int(text)


def read_words(_name: str, text: str) -> list[str]:
    """Return the items of *text*, which are separated by commas. Empty items are omitted."""
    return [part.strip() for part in text.split(",") if part.strip()]


def read_text(_name: str, text: str) -> str:
    """Return *text* unchanged: the parser of query parameters that are strings."""
    return text


def filter_reader(value: Value) -> Optional[Callable[[str, str], Any]]:
    """Return the parser of a query parameter that filters a list by a field of the type *value*. The parser is a
    function with the parameters (name, text). Return ``None`` for lists and objects, because filters do not support
    them.

    For ``Choices``, the parameter may have several values separated by commas, and the field must have one of them.
    """
    if isinstance(value, Nullable):
        return filter_reader(value.value)
    if isinstance(value, Choices):
        return lambda name, text: [value.check(choice, name) for choice in read_words(name, text) or [text]]
    for kind, read in ((Boolean, read_boolean), (Integer, read_number), (Text, read_text)):
        if isinstance(value, kind):
            return read
    return None


def filter_texts(value: Any) -> list[str]:
    """Return *value*, the result of a parser that ``filter_reader`` returned, as a list of the accepted strings for
    ``fits_filters``.
    """
    return [_text(alternative) for alternative in (value if isinstance(value, list) else [value])]


def fits_filters(shown: Mapping[str, Any], filters: Mapping[str, Container[str]]) -> bool:
    """Return whether the resource with the fields *shown* matches all *filters*. *filters*: for each field name, the
    accepted values as strings.
    """
    return all(matches_one_text(shown.get(name), accepted) for name, accepted in filters.items())


def matches_one_text(value: Any, accepted: Container[str]) -> bool:
    """Return whether *value*, converted to a string, is in *accepted*. For a mapping with ``id`` and ``name``, one of
    these must be in *accepted*.
    """
    return any(text in accepted for text in _names(value))


def _names(value: Any) -> tuple[str, ...]:
    return (_text(value.get("id")), _text(value.get("name"))) if isinstance(value, dict) else (_text(value),)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_parameters(pairs: Iterable[tuple[str, str]], readers: Mapping[str, Callable[[str, str], Any]],
                    shown: Optional[int] = None) -> dict[str, Any]:
    """Parse the query parameters *pairs* (name, text), and return their values by name. Raises ``InvalidRequest`` for
    an unknown or repeated parameter, and ``InvalidField`` for an invalid value.

    *readers*: by parameter name, the function that parses it. *shown*: how many characters of an unknown name the error
    shows (``None``: all).
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in readers:
            raise InvalidRequest("%s is not a parameter of this route; known are: %s." % (
                name[:shown], ", ".join(readers) or "none"), field=name[:shown])
        if name in values:
            raise InvalidRequest("%s is given more than once." % name, field=name)
        values[name] = readers[name](name, text)
    return values


#: Maximum number of sort keys of a list.
SORTS = 10
#: Maximum number of resources in one answer.
LIMIT = 10000
#: Parameters of every list, in addition to filters.
PAGE: Mapping[str, Callable[[str, str], Any]] = {"fields": read_words, "limit": read_number, "marker": read_text,
                                                 "sort": read_words}
#: Parameters of an ensure.
PARAMETERS: Mapping[str, Callable[[str, str], Any]] = {
    "dry_run": read_boolean, "wait": read_seconds, "on_immutable": read_text, "merge": read_words,
    "allow_reboot": read_boolean,
    "preserve_ephemeral": read_boolean, "revision": read_text}


def check_sort(parameter: str, keys: Sequence[Any]) -> None:
    """Raise ``InvalidField`` for *parameter* if the sort *keys* have duplicates, or are more than ``SORTS``."""
    if len(keys) > SORTS or len(set(keys)) < len(keys):
        raise InvalidField(parameter, "must name %d keys at most, and each of them once" % SORTS)


def paginate_resources(resource_type: str, field_names: Collection[str], resources: list[dict[str, Any]],
                       fields: Optional[Sequence[str]] = None,
                       limit: Optional[int] = None, marker: Optional[str] = None,
                       sort: Optional[Sequence[str]] = None) -> list[dict[str, Any]]:
    """Return one page of *resources*: at most *limit* resources in the order of *sort*, starting after the resource
    with the id or name *marker*, and with only the *fields*. A key of *sort* with the prefix ``-`` sorts in descending
    order; resources without a value are last. *resource_type*, *field_names*: the resource type and its fields. Raises
    ``InvalidField``.
    """
    for parameter, names in (("sort", [key.lstrip("-") for key in sort or ()]), ("fields", fields or ())):
        for name in names:
            if name not in field_names:
                raise InvalidField(parameter, "%s has no field %s; it has %s"
                                   % (resource_type, name[:80], ", ".join(field_names)))
    check_sort("sort", [key.lstrip("-") for key in sort or ()])
    for key in reversed(sort or ()):
        name = key.lstrip("-")
        have = [resource for resource in resources if resource.get(name) is not None]
        have.sort(key=lambda resource, name=name: _rank(resource[name]), reverse=key.startswith("-"))  # type: ignore[misc]
        resources = have + [resource for resource in resources if resource.get(name) is None]
    if marker is not None:
        at = next((at for at, resource in enumerate(resources) if marker in (resource.get("id"), resource.get("name"))),
                  None)
        if at is None:
            raise InvalidField("marker", "must be the id of a resource of the list", marker)
        resources = resources[at + 1:]
    resources = resources[:min(LIMIT, LIMIT if limit is None else limit)]
    return resources if fields is None else [{name: resource.get(name) for name in fields} for resource in resources]


def _rank(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else json.dumps(value, sort_keys=True)
