# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a database has the tables and columns that this release uses, whatever version it says it has."""

from __future__ import annotations

import dataclasses
from typing import Any

from sqlalchemy import Connection, MetaData, text

from magnetar_core.errors import MagnetarError, abbreviate_names

#: Returns (table, column) of all tables of a database.
COLUMNS = {
    "sqlite": "SELECT master.name, info.name FROM sqlite_master master, pragma_table_info(master.name) info "
              "WHERE master.type = 'table'",
    "postgresql": "SELECT class.relname, attribute.attname FROM pg_class class "
                  "JOIN pg_attribute attribute ON attribute.attrelid = class.oid "
                  "WHERE class.relnamespace = current_schema()::regnamespace AND class.relkind IN ('r', 'p') "
                  "AND attribute.attnum > 0 AND NOT attribute.attisdropped",
}
RESTORE = ("Restore a backup of the release that made it, or use an empty database; docs/howto/"
           "back-up-and-restore-a-cloud.md says how.")


class SchemaMismatch(MagnetarError):
    """The error for a database that does not have the tables that this release uses."""

    code = "schema-mismatch"
    status = 500


@dataclasses.dataclass(frozen=True)
class SchemaState:
    """The tables of a database, compared with this release. *kind*: ``api`` or ``cell``. *version*: the schema version
    in the database, or ``None``. *newest*: the version that this release needs. *known*: whether this release has a
    migration with the database's version. *present*: how many of the tables exist. *lacking*: missing tables, and
    missing columns as ``table.column``."""

    database: str
    kind: str
    version: str | None
    newest: str
    known: bool
    present: int
    lacking: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the database is new: it has neither tables nor a schema version."""
        return self.version is None and not self.present

    @property
    def is_older(self) -> bool:
        """Whether the schema version of the tables is older than this release needs, and migrations of this release can
        upgrade the tables."""
        return self.known and self.version != self.newest

    @property
    def is_newer(self) -> bool:
        """Whether a later release has upgraded the tables. This release can still use them if nothing is missing."""
        return self.version is not None and self.version.isdecimal() and self.version > self.newest

    def mismatch(self) -> str:
        """Return a message for operators: why this release cannot use the database, and what to do. Empty when this
        release can use or upgrade it."""
        if self.is_empty or self.is_older:
            return ""
        name = f"The database {self.database}"
        lacks = f"lacks {abbreviate_names(self.lacking)}"
        if self.version is None:
            return (f"{name} has tables of the {self.kind} database but no version of them: an upgrade was not "
                    f"completed, or it was copied while it changed. {RESTORE}")
        if not self.known and not self.is_newer:
            return f"{name} has tables of version {self.version!r}, which no release has: another program made it. " \
                   f"{RESTORE}"
        if self.lacking and self.is_newer:
            return (f"{name} has tables of version {self.version} of a newer release, and {lacks}; this release needs "
                    f"version {self.newest}. Run the newer release.")
        if self.lacking:
            return (f"{name} says that its tables have version {self.version}, but {lacks}: a version before the "
                    f"release made it, or it was changed by hand. {RESTORE}")
        return ""


def missing_names(connection: Connection, metadata: MetaData) -> tuple[int, tuple[str, ...]]:
    """Return how many tables of *metadata* a database has, and the names of missing tables and columns
    (``table.column``). Executes one query."""
    columns: dict[str, set[str]] = {}
    for table, column in connection.execute(text(COLUMNS[connection.dialect.name])):
        columns.setdefault(table, set()).add(column)
    lacking: list[str] = []
    for table in metadata.tables.values():
        if table.name not in columns:
            lacking.append(table.name)
        else:
            lacking += [f"{table.name}.{column.name}" for column in table.columns
                        if column.name not in columns[table.name]]
    return sum(table.name in columns for table in metadata.tables.values()), tuple(lacking)


def refuse_mismatch(state: SchemaState) -> None:
    """Raise ``SchemaMismatch`` if this release can neither use nor upgrade the database."""
    if message := state.mismatch():
        raise SchemaMismatch(message, **schema_details(state))


def schema_details(state: SchemaState) -> dict[str, Any]:
    """Return the fields of the error response for a ``SchemaMismatch``."""
    return {"database": state.database, "version": state.version, "needed": state.newest,
            "lacking": list(state.lacking)}
