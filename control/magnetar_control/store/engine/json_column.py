# SPDX-License-Identifier: GPL-3.0-or-later
"""A type of columns whose documents are read and written as Python's objects."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Dialect, Text, TypeDecorator


class JsonColumn(TypeDecorator[Any]):
    """A column with JSON text, decoded in each row and encoded in each statement; ``None`` is null.

    For tables that few requests read. Servers' and hosts' rows decode at the first use instead (``rows.py``), and their
    lists pass the text through. Comparisons with another expression of SQL need the text: ``type_coerce`` to ``Text``.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Return the JSON text of a document."""
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Return the document of JSON text."""
        return None if value is None else orjson.loads(value)
