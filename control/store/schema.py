# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of a database are as this version wants them."""

from __future__ import annotations

from sqlalchemy import MetaData

from .database import Database


def upgrade(database: Database, metadata: MetaData) -> None:
    """Make what is missing."""
    metadata.create_all(database.engine)
