# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of a database are as this version wants them: Alembic's migrations, in folders ``migrations/{api,cell}``.

Migrations go forward only, one after another (0001, 0002, …), each in the transaction of all. Any process may bring a
database up to date at any time: one does it, the others wait and find nothing to do.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, MetaData, func, inspect, select, text

from .database import Database
from .tables import API
from .timeouts import statement_timeout

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parent / "migrations"
#: Of PostgreSQL's advisory locks, for the time of an upgrade; any number that nobody else takes.
LOCK = 0x6D61676E65746172


def upgrade(database: Database, metadata: MetaData) -> bool:
    """Bring the tables of *metadata* (``tables.API`` or ``tables.CELL``) up to date; whether there was anything to do.

    May be called by many at once, and again."""
    kind = kind_of(metadata)
    with database.read() as connection:
        if version(connection, kind) == newest(kind):
            return False
    # To wait for another who does it, and to change a large table, takes its time.
    with statement_timeout(math.inf), database.write() as connection:  # on SQLite this waits for other writers
        if database.kind == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        found = version(connection, kind)
        if found == newest(kind):
            return False
        from alembic import command

        command.upgrade(config(connection, metadata), "head")
        log.info("database %s: tables of %s went from version %s to %s", database.name, kind, found, newest(kind))
    return True


def kind_of(metadata: MetaData) -> str:
    """``api`` or ``cell``."""
    return "api" if metadata is API else "cell"


def newest(kind: str) -> str:
    """The version that this release wants."""
    return max(path.name.partition("_")[0] for path in (FOLDER / kind / "versions").glob("[0-9]*.py"))


def version_table(kind: str) -> str:
    """Where a database keeps its version; tables of both kinds may be in one database."""
    return f"alembic_version_{kind}"


def version(connection: Connection, kind: str) -> str | None:
    """The version that a database has; ``None`` for one without tables."""
    name = version_table(kind)
    if not inspect(connection).has_table(name):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {name}")).scalar()  # noqa: S608 - our name
    return found


def config(connection: Connection | None, metadata: MetaData) -> Config:
    """What Alembic's commands take."""
    from alembic.config import Config

    kind = kind_of(metadata)
    made = Config(attributes={"connection": connection, "metadata": metadata, "version_table": version_table(kind)})
    for name, value in (("script_location", str(FOLDER)), ("path_separator", "newline"),
                        ("version_locations", str(FOLDER / kind / "versions"))):
        made.set_main_option(name, value.replace("%", "%%"))
    return made
