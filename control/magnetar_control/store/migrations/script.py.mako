# SPDX-License-Identifier: GPL-3.0-or-later
"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Apply the changes."""
    ${upgrades}
