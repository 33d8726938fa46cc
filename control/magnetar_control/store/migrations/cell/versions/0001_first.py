# SPDX-License-Identifier: GPL-3.0-or-later
"""The first revision of a cell database. It creates the tables that ``store.engine.tables`` declares now; the release
of 0.2.0 will write them out here (see docs/contributing.md, "Changing a table")."""

from __future__ import annotations

from alembic import op

from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import CELL

revision, down_revision = "0001", None


def upgrade() -> None:
    """Create the tables."""
    create_tables(op.get_bind(), CELL)
