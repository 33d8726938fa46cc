# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags: words that users give to resources, and by which lists find these (API reference, "Standard attributes tag
extension")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import orjson
from sqlalchemy import ColumnElement, Table, and_, false, func, not_, or_

from magnetar_core.errors import InvalidField

#: Tags of one resource, and in one filter.
MOST = 50
#: What a filter asks for: all of its tags, one of them, and neither.
FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")


def filters(table: Table) -> Mapping[str, Callable[[Sequence[str]], ColumnElement[bool]]]:
    """The filters of lists of a *table* whose resources have tags; else none."""
    if "tags" not in table.c:
        return {}

    def has(tag: str) -> ColumnElement[bool]:
        quoted = orjson.dumps(tag).decode()  # as the list of them is kept; LIKE would not mind upper and lower case
        # After "[" or ",", as each begins: behind a backslash it is the end of one that has a quotation mark in it.
        return or_(*(func.replace(table.c.tags, sign + quoted, "") != table.c.tags for sign in "[,"))

    def condition(name: str, values: Sequence[str]) -> ColumnElement[bool]:
        words = list(dict.fromkeys(word for value in values for word in value.split(",")))
        if len(words) > MOST:
            raise InvalidField(name, f"can have {MOST} tags at most, and has {len(words)}")
        each = [has(word) for word in words]
        found = or_(false(), *each) if name.endswith("any") else and_(*each)
        return not_(found) if name.startswith("not") else found

    return {name: partial(condition, name) for name in FILTERS}
