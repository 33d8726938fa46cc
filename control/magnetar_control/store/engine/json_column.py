# SPDX-License-Identifier: GPL-3.0-or-later
"""A column type for JSON documents, which Python code reads and writes as objects."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Dialect, Text, TypeDecorator


class JsonColumn(TypeDecorator[Any]):
    """A column type for JSON text, decoded in each row and encoded in each statement. ``None`` is stored as SQL NULL.

    Use it only for tables that few requests read. Rows of servers and hosts use ``engine.rows.DocumentColumn`` instead,
    which decodes a document only when it is first used. To compare the stored text, ``type_coerce`` the column to
    ``Text``: otherwise SQLAlchemy encodes the compared value as JSON.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Override ``TypeDecorator.process_bind_param``: return the JSON text of a document."""
        return None if value is None else orjson.dumps(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Override ``TypeDecorator.process_result_value``: return the document of a JSON text."""
        return None if value is None else orjson.loads(value)
