# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags: words that users attach to resources, and filters of lists by tags (API reference, "Standard attributes tag
extension")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, false, not_, or_

from magnetar_control.store.engine.conditions import has_word
from magnetar_core.errors import InvalidField

#: Maximum number of tags of one resource, and of tags in one filter.
MOST = 50
#: Filters that ask for all of the tags, for one of them, and for the opposite of either.
FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")


def tags_of(row: Mapping[Any, Any]) -> list[str]:
    """Return the tags of the resource *row*; an empty list if resources of its type cannot have tags."""
    tags: list[str] = row.get("tags") or []
    return tags


def tag_filters(table: Table) -> Mapping[str, Callable[[Sequence[str]], ColumnElement[bool]]]:
    """Return the list filters by tags for *table*: {name of the filter, such as tags-any: function from the requested
    values to an SQL condition}. Empty if resources in this table cannot have tags."""
    if "tags" not in table.c:
        return {}

    def condition(name: str, values: Sequence[str]) -> ColumnElement[bool]:
        tags = list(dict.fromkeys(tag for value in values for tag in value.split(",")))
        if len(tags) > MOST:
            raise InvalidField(name, f"can have {MOST} tags at most, and has {len(tags)}")
        each = [has_word(table.c.tags, tag) for tag in tags]
        match = or_(false(), *each) if name.endswith("any") else and_(*each)
        return not_(match) if name.startswith("not") else match

    return {name: partial(condition, name) for name in FILTERS}
