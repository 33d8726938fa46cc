# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleted images: tables of the api database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make it so."""
    op.create_table(
        "deleted_images",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("deleted_at", sa.String(length=26), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
