# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of a database: created directly when the database is empty, otherwise changed by Alembic's migrations in
``migrations/{api,cell}``.

Migrations go forward only (0001, 0002, …), and all migrations of an upgrade are one transaction. Any process may
upgrade a database at any time: one process does it, the others wait and find nothing to do.
"""

from __future__ import annotations

import copy
import logging
import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from .quota_triggers import usage_triggers
from .schema_check import SchemaState, missing_names, refuse_mismatch
from .tables import API, CELL, OPTIONAL_INDEXES
from .timeouts import statement_timeout

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)
FOLDER = Path(__file__).parents[1] / "migrations"
#: Number of PostgreSQL's advisory lock for upgrades.
LOCK = 0x6D61676E65746172


def upgrade_schema(database: Database, metadata: MetaData) -> bool:
    """Upgrade the tables of *metadata* (``tables.API`` or ``tables.CELL``); return whether an upgrade was needed.

    Many processes may call this at the same time, and repeatedly. Raises ``SchemaMismatch`` for a database that this
    release can neither use nor upgrade, and leaves it as it was.
    """
    with database.read() as connection:
        state = read_schema_state(connection, database.name, metadata)
    if state.version is not None and not state.is_older:
        refuse_mismatch(state)
        return False
    # Waiting for another upgrade and changing a large table take time.
    with statement_timeout(math.inf), database.write() as connection:  # on SQLite this waits for other writers
        if database.kind == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
        state = read_schema_state(connection, database.name, metadata)
        refuse_mismatch(state)
        if not state.is_empty and not state.is_older:
            return False
        if state.is_empty:
            create_schema(connection, metadata)
        else:
            run_schema_migrations(connection, metadata)
            refuse_mismatch(read_schema_state(connection, database.name, metadata))
        log.info("database %s: tables of %s went from version %s to %s", database.name, state.kind,
                 state.version, state.newest)
    return True


def read_schema_state(connection: Connection, name: str, metadata: MetaData) -> SchemaState:
    """Return which tables of *metadata* a database has, and their schema version. *name*: the database's name, for
    messages. Executes two queries."""
    kind = database_kind(metadata)
    version, known = fetch_schema_version(connection, kind), schema_versions(kind)
    present, lacking = missing_names(connection, metadata)
    return SchemaState(name, kind, version, max(known), version in known, present, lacking)


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """Create all tables of *metadata* with their triggers. Uses a copy of *metadata*, because the original table
    objects would keep the data that SQLAlchemy computes for the creation."""
    add_services()
    copy.deepcopy(metadata).create_all(connection, checkfirst=False)
    create_triggers(connection, metadata)


def add_services() -> None:
    """Import the tables of the embedded services (identity, image, network, volume), which adds them to the
    ``MetaData`` object ``API``."""
    for service in ("identity", "image", "network", "volume"):
        import_module(f"magnetar_control.services.{service}.tables")


def is_compared(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
    """Return whether Alembic must compare this schema object with the database: true for everything except optional
    indexes, which only some databases have. Alembic calls this as ``include_object``."""
    return not (kind == "index" and name in OPTIONAL_INDEXES)


def create_schema(connection: Connection, metadata: MetaData) -> None:
    """Create the tables and record their schema version, as running the migrations would. This avoids importing
    Alembic, which takes half a second, and 4 MiB for as long as the process lives."""
    kind = database_kind(metadata)
    name = version_table(kind)
    create_tables(connection, metadata)
    made = Table(name, MetaData(), Column("version_num", String(32), nullable=False),
                 PrimaryKeyConstraint("version_num", name=f"{name}_pkc"))
    made.create(connection)
    connection.execute(insert(made).values(version_num=latest_schema_version(kind)))


def run_schema_migrations(connection: Connection, metadata: MetaData) -> None:
    """Run the schema migrations that the database does not have yet."""
    from alembic import command

    command.upgrade(alembic_config(connection, metadata), "head")
    create_triggers(connection, metadata)  # Alembic changes a table of SQLite by a copy, which has no triggers


def create_triggers(connection: Connection, metadata: MetaData) -> None:
    """Create or replace the triggers of the tables of *metadata*."""
    if metadata is CELL:
        for statement in usage_triggers(connection.dialect.name):
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def database_kind(metadata: MetaData) -> str:
    """Return which kind of database has the tables of *metadata*: ``api`` or ``cell``."""
    return "api" if metadata is API else "cell"


def schema_versions(kind: str) -> set[str]:
    """Return the schema versions that this release knows for a database of this *kind* (``api`` or ``cell``): one for
    each migration."""
    return {path.name.partition("_")[0] for path in (FOLDER / kind / "versions").glob("[0-9]*.py")}


def latest_schema_version(kind: str) -> str:
    """Return the schema version that this release needs in a database of this *kind* (``api`` or ``cell``)."""
    return max(schema_versions(kind))


def version_table(kind: str) -> str:
    """Return the name of the table that stores the schema version, by *kind* of database (``api`` or ``cell``). The
    names differ because one database may contain the tables of both kinds."""
    return f"alembic_version_{kind}"


def fetch_schema_version(connection: Connection, kind: str) -> str | None:
    """Return the schema version of a database; ``None`` if it has none. *kind*: ``api`` or ``cell``."""
    name = version_table(kind)
    if not inspect(connection).has_table(name):
        return None
    stored_version: str | None = connection.execute(text(f"SELECT version_num FROM {name}")).scalar()  # noqa: S608 - our name
    return stored_version


def alembic_config(connection: Connection | None, metadata: MetaData) -> Config:
    """Return the configuration for Alembic's commands on the tables of *metadata*. *connection*: the database; ``None``
    for commands that need none."""
    from alembic.config import Config

    kind = database_kind(metadata)
    made = Config(attributes={"connection": connection, "metadata": metadata, "version_table": version_table(kind)})
    for name, value in (("script_location", str(FOLDER)), ("path_separator", "newline"),
                        ("version_locations", str(FOLDER / kind / "versions"))):
        made.set_main_option(name, value.replace("%", "%%"))
    return made
