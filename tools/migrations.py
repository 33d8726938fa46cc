# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes migrations of the control plane's databases: the changes of the tables since the previous migrations. It
needs the development environment.

    python tools/migrations.py NUMBER NAME
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing

from alembic import command
from sqlalchemy import MetaData

from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import API, CELL


def write_migration(metadata: MetaData, number: str, name: str) -> None:
    """Write the migration of the databases with the tables *metadata*; it replaces an existing one with this number and
    name.
    """
    path = schema.FOLDER / schema.database_kind(metadata) / "versions" / f"{number}_{name}.py"
    path.unlink(missing_ok=True)
    with (tempfile.TemporaryDirectory() as folder, closing(Database(f"sqlite:///{folder}/a.db")) as database,
          database.write() as connection):
        if number != "0001":
            schema.run_schema_migrations(connection, metadata)
        command.revision(schema.alembic_config(connection, metadata), name, autogenerate=True, rev_id=number)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    for each in (API, CELL):
        write_migration(each, *sys.argv[1:])
