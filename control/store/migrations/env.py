# SPDX-License-Identifier: GPL-3.0-or-later
"""Alembic's environment: the connection, the tables and the version table's name come from ``schema``."""

from __future__ import annotations

from importlib import import_module

from alembic import context

for service in ("identity", "image", "network", "volume"):  # embedded services add their tables to API
    import_module(f"magnetar_control.services.{service}.tables")
given = context.config.attributes
context.configure(connection=given["connection"], target_metadata=given["metadata"],
                  version_table=given["version_table"], render_as_batch=given["connection"].dialect.name == "sqlite")
with context.begin_transaction():
    context.run_migrations()
