# SPDX-License-Identifier: GPL-3.0-or-later
"""Alembic's environment. The connection, the tables and the name of the version table come from ``schema``."""

from __future__ import annotations

from typing import Any

from alembic import context

from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.schema import add_services, is_compared


def _render_type(kind: str, item: Any, _context: Any) -> str | bool:
    """Return Python source for a column's type in a generated migration: ``sa.Text()`` for a ``JsonColumn``; ``False``
    for other types, which Alembic renders itself. Alembic calls this as ``render_item``."""
    return "sa.Text()" if kind == "type" and isinstance(item, JsonColumn) else False


add_services()
given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"],
                  version_table=given["version_table"], include_object=is_compared, render_item=_render_type,
                  render_as_batch=given["connection"].dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
