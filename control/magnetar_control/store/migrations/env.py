# SPDX-License-Identifier: GPL-3.0-or-later
"""Alembic's environment. The connection, the tables and the name of the version table come from ``schema``."""

from __future__ import annotations

from alembic import context

from magnetar_control.store.engine.schema import add_services, is_compared

add_services()
given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"],
                  version_table=given["version_table"], include_object=is_compared,
                  render_as_batch=given["connection"].dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
