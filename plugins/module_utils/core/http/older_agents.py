# SPDX-License-Identifier: GPL-3.0-or-later
"""Retries for agents of the previous release: if such an agent refuses a document because of a field that it does not
know, the field is left out, provided that its value requests nothing.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from ..document import Document
from ..errors import InvalidField, MagnetarError, NotSupported, error_from_dict
from ..fields import UNKNOWN, Field, Record
from ..kinds import BY_NOUN
from ..values import ListOf, MapOf, Nullable, OneOf, Value

#: A part of a field's path: a name, or the index of a list.
Part = Union[str, int]
#: The most fields that are left out of one document.
MOST = 50


def send_without_unknown_fields(resource_type: str, want: Document, error: MagnetarError,
                                send: Callable[[Document], Document],
                                agent: str) -> Document:
    """Repeat a request without the fields that an agent of an older release does not know, and return the answer.
    *resource_type*, *want*: the resource type and the desired fields. *error*: the refusal of the first request.
    *send*: a function that sends a document and returns the answer. *agent*: the agent, for messages. Raises
    ``NotSupported`` if the value of such a field is neither empty nor its default. Raises *error* if the refusal has
    another reason."""
    for _time in range(MOST):
        shorter = without_unknown_field(resource_type, want, error, agent)
        if shorter is None:
            raise error
        want = shorter
        try:
            return send(want)
        except InvalidField as next_error:
            error = next_error
    raise error


def send_items_without_unknown_fields(resource_type: str, items: Sequence[Document], answer: Document,
                                      send: Callable[[Sequence[Document]], Document], agent: str) -> Document:
    """Repeat those *items* of a batch request that an agent refused because of an unknown field, without this field.
    Return *answer*, the answer of the first request, with the new results. Other parameters: as in
    ``send_without_unknown_fields``.
    """
    items, results = list(items), list(answer["results"])
    for _time in range(MOST):
        again = []
        for at, result in enumerate(results):
            shorter = _shorter_item(resource_type, items[at], result, agent)
            if shorter is not None:
                items[at] = shorter
                again.append(at)
        if not again:
            break
        for at, result in zip(again, send([items[at] for at in again])["results"]):
            results[at] = result
    return dict(answer, results=results)


def _shorter_item(resource_type: str, item: Document, result: Document, agent: str) -> Optional[Document]:
    """Return a copy of the batch *item* without the field that the agent refused as unknown in *result*, or ``None`` if
    the agent refused no field as unknown. If the field has a value that cannot be omitted, return ``None`` and replace
    the error in *result*.
    """
    if "error" not in result or not item.get("want"):
        return None
    try:
        want = without_unknown_field(resource_type, item["want"], error_from_dict(result["error"]), agent)
    except NotSupported as error:
        result["error"] = error.as_dict()
        return None
    return None if want is None else dict(item, want=want)


def without_unknown_field(resource_type: str, want: Document, error: MagnetarError, agent: str) -> Optional[Document]:
    """Return a copy of *want*, the desired fields, without the field that the agent refused as unknown with *error*.
    Return ``None`` if *error* has another reason, or this release does not know the field either. *agent*: the agent,
    for messages. Raises ``NotSupported`` if the value of the field is neither empty nor its default."""
    path = str(error.details.get("field") or "")
    if not str(error.details.get("rule") or "").startswith(UNKNOWN):
        return None
    parts = split_path(path)
    field = find_field(resource_type, parts)
    found, value = _value_at(want, parts)
    if field is None or not found:
        return None
    if value not in (None, [], {}, "") and value != field.default:
        raise NotSupported(
            "%s: the agent %s is of an earlier release, which does not know this field. Upgrade that agent, or choose "
            "another host." % (path, agent), field=path, endpoint=agent) from error
    shorter: Document = _without(want, parts)
    return shorter


def split_path(path: str) -> list[Part]:
    """Split the *path* of a field in an error: ``nics[0].mac`` into ``["nics", 0, "mac"]``."""
    return [int(index) if index else name for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]


def find_field(resource_type: str, parts: list[Part]) -> Optional[Field]:
    """Return the declaration of the field at the path *parts* (the result of ``split_path``) of the resource type
    *resource_type*; ``None`` if there is no such field.
    """
    kind = BY_NOUN.get(resource_type)
    if kind is None or not parts:
        return None
    field = next((one for one in kind.fields if one.name == parts[0]), None)
    for part in parts[1:]:
        if field is None:
            return None
        field = _field_of_value(field.value, part)
    return field


def _field_of_value(value: Value, part: Part) -> Optional[Field]:
    """Return the declaration of the field or item *part* (a name or an index) inside values of the type *value*;
    ``None`` if values of this type have no such field or item. Items of a list or map have no declaration, so a new
    ``Field`` of the item's type is returned.
    """
    if isinstance(value, Nullable):
        return _field_of_value(value.value, part)
    if isinstance(value, OneOf):
        return next(filter(None, (_field_of_value(choice, part) for choice in value.values)), None)
    if isinstance(value, Record):
        return next((one for one in value.fields if one.name == part), None)
    if isinstance(value, ListOf) and isinstance(part, int):
        return Field(value.item, "item")
    if isinstance(value, MapOf):
        return Field(value.value, "item")
    return None


def _value_at(document: Any, parts: list[Part]) -> tuple[bool, Any]:
    """Return whether *document* has a value at the path *parts* (the result of ``split_path``), and this value."""
    for part in parts:
        try:
            document = document[part]
        except (KeyError, IndexError, TypeError):
            return False, None
    return True, document


def _without(document: Any, parts: list[Part]) -> Any:
    """Return a copy of *document* without the field at the path *parts*. Only the objects along the path are copied."""
    first, rest = parts[0], parts[1:]
    if isinstance(document, Mapping):
        if not rest:
            return {name: value for name, value in document.items() if name != first}
        return dict(document, **{str(first): _without(document[str(first)], rest)})
    items = list(document)
    items[int(first)] = _without(items[int(first)], rest)
    return items
