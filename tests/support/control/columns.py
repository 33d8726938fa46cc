# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of rows that tests write in short form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Table

from magnetar_control.store.engine.json_column import JsonColumn


def row_values(values: Mapping[str, Any], table: Table | None = None) -> dict[str, Any]:
    """Return *values* with JSON text for maps and lists, except in columns of *table* that encode documents."""
    encoding = {column.name for column in table.c if isinstance(column.type, JsonColumn)} if table is not None else ()
    return {name: orjson.dumps(value).decode() if isinstance(value, dict | list) and name not in encoding else value
            for name, value in values.items()}
