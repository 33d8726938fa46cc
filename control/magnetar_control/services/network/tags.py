# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags: words that users give to resources, and by which lists find these (API reference, "Standard attributes tag
extension")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sqlalchemy import ColumnElement, Table, and_, false, not_, or_

from magnetar_control.store.engine.conditions import has_word
from magnetar_core.errors import InvalidField

#: Tags of one resource, and in one filter.
MOST = 50
#: What a filter asks for: all of its tags, one of them, and neither.
FILTERS = ("tags", "tags-any", "not-tags", "not-tags-any")


def filters(table: Table) -> Mapping[str, Callable[[Sequence[str]], ColumnElement[bool]]]:
    """The filters of lists of a *table* whose resources have tags; else none."""
    if "tags" not in table.c:
        return {}

    def condition(name: str, values: Sequence[str]) -> ColumnElement[bool]:
        words = list(dict.fromkeys(word for value in values for word in value.split(",")))
        if len(words) > MOST:
            raise InvalidField(name, f"can have {MOST} tags at most, and has {len(words)}")
        each = [has_word(table.c.tags, word) for word in words]
        found = or_(false(), *each) if name.endswith("any") else and_(*each)
        return not_(found) if name.startswith("not") else found

    return {name: partial(condition, name) for name in FILTERS}
