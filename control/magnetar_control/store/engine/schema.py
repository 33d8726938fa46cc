# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of a database: made at once where there are none, else changed by Alembic's migrations in
``migrations/{api,cell}``.

Migrations go forward only (0001, 0002, …); all of an upgrade are one transaction. Any process may upgrade a database at
any time: one does it, the others wait and find nothing to do.
"""

from __future__ import annotations

import copy
import logging
import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    func,
    insert,
    inspect,
    select,
    text,
)

from .database import Database
from .tables import API
from .timeouts import statement_timeout

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parents[1] / "migrations"
#: Number of PostgreSQL's advisory lock for upgrades.
LOCK = 0x6D61676E65746172


def upgrade(database: Database, metadata: MetaData) -> bool:
    """Upgrade the tables of *metadata* (``tables.API`` or ``tables.CELL``); returns whether there was anything to do.

    May be called by many processes at once, and again.
    """
    kind = kind_of(metadata)
    with database.read() as connection:
        if version(connection, kind) == newest(kind):
            return False
    # Waiting for another upgrade, and changing a large table, takes time.
    with statement_timeout(math.inf), database.write() as connection:  # on SQLite this waits for other writers
        if database.kind == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        found = version(connection, kind)
        if found == newest(kind):
            return False
        if found is None:
            make(connection, metadata)
        else:
            migrate(connection, metadata)
        log.info("database %s: tables of %s went from version %s to %s", database.name, kind, found, newest(kind))
    return True


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """Make all tables of *metadata*: by a copy, since SQLAlchemy's tables keep what it works out for that."""
    add_services()
    copy.deepcopy(metadata).create_all(connection, checkfirst=False)


def add_services() -> None:
    """Have the embedded services add their tables to ``API``."""
    for service in ("identity", "image", "network", "volume"):
        import_module(f"magnetar_control.services.{service}.tables")


def make(connection: Connection, metadata: MetaData) -> None:
    """Make the tables and note their version, as the migrations would. Alembic is not needed for it: it takes half a
    second, and 4 MiB for as long as the process lives."""
    kind = kind_of(metadata)
    name = version_table(kind)
    create_tables(connection, metadata)
    made = Table(name, MetaData(), Column("version_num", String(32), nullable=False),
                 PrimaryKeyConstraint("version_num", name=f"{name}_pkc"))
    made.create(connection)
    connection.execute(insert(made).values(version_num=newest(kind)))


def migrate(connection: Connection, metadata: MetaData) -> None:
    """Run the migrations that a database lacks."""
    from alembic import command

    command.upgrade(config(connection, metadata), "head")


def kind_of(metadata: MetaData) -> str:
    """``api`` or ``cell``."""
    return "api" if metadata is API else "cell"


def newest(kind: str) -> str:
    """The version that this release wants."""
    return max(path.name.partition("_")[0] for path in (FOLDER / kind / "versions").glob("[0-9]*.py"))


def version_table(kind: str) -> str:
    """The table with a database's version; tables of both kinds may be in one database."""
    return f"alembic_version_{kind}"


def version(connection: Connection, kind: str) -> str | None:
    """The version that a database has; ``None`` for one without tables."""
    name = version_table(kind)
    if not inspect(connection).has_table(name):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {name}")).scalar()  # noqa: S608 - our name
    return found


def config(connection: Connection | None, metadata: MetaData) -> Config:
    """The configuration of Alembic's commands."""
    from alembic.config import Config

    kind = kind_of(metadata)
    made = Config(attributes={"connection": connection, "metadata": metadata, "version_table": version_table(kind)})
    for name, value in (("script_location", str(FOLDER)), ("path_separator", "newline"),
                        ("version_locations", str(FOLDER / kind / "versions"))):
        made.set_main_option(name, value.replace("%", "%%"))
    return made
