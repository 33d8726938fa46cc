# SPDX-License-Identifier: GPL-3.0-or-later
"""The conductors of a cell and their heartbeats. A conductor that stops normally removes its row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, func, select

from magnetar_control.store.engine.database import INSERT, Database
from magnetar_control.store.engine.tables import conductors

#: Seconds after which the row of a dead conductor is removed, when another one of the same name is up: it was
#: restarted.
FORGOTTEN = 60.0


def write_conductor_heartbeat(database: Database, holder: str, name: str, version: str | None = None,
                              capabilities: Sequence[str] = ()) -> None:
    """Write the heartbeat of a conductor, and remove the rows of dead conductors with the same name. *holder*: the id
    of the conductor's process. *name*: of the conductor. *version*: its release. *capabilities*: names of features that
    it has and older releases may lack."""
    write_process_heartbeat(database, conductors, holder, name, version, capabilities, conductors.c.name == name)


def write_process_heartbeat(database: Database, table: Table, holder: str, name: str, version: str | None,
                            capabilities: Sequence[str], *removed: ColumnElement[bool]) -> None:
    """Write the heartbeat of a process into its row of *table*. *holder*: the id of the process. *name*, *version*: its
    name and release. *capabilities*: names of features that it has and older releases may lack. *removed*: SQL
    conditions for dead processes; rows that fulfil all of these are deleted if they had no heartbeat for ``FORGOTTEN``
    seconds."""
    values = {"name": name, "version": version, "capabilities": json.dumps(list(capabilities))}
    with database.write() as connection:
        query = INSERT[database.kind](table).values(
            holder=holder, started_at=database.clock(), seen_at=database.clock(), **values)
        connection.execute(query.on_conflict_do_update(
            index_elements=["holder"], set_={**values, "seen_at": query.excluded.seen_at}))
        connection.execute(delete(table).where(
            *removed, table.c.holder != holder, table.c.seen_at < database.clock(-FORGOTTEN)))


def remove_process_row(database: Database, table: Table, holder: str) -> None:
    """Remove the row of a process that stops from *table*. *holder*: the id of the process."""
    with database.write() as connection:
        connection.execute(delete(table).where(table.c.holder == holder))


def remove_conductor_row(database: Database, holder: str) -> None:
    """Remove the row of a conductor that stops. *holder*: the id of its process."""
    remove_process_row(database, conductors, holder)


def fetch_conductor_rows(connection: Connection) -> Sequence[Any]:
    """Return the name of each conductor and the time of its last heartbeat (``seen_at``), ordered by name."""
    return connection.execute(select(conductors.c.name, func.max(conductors.c.seen_at).label("seen_at")).group_by(
        conductors.c.name).order_by(conductors.c.name)).all()


def remove_conductors_named(connection: Connection, name: str) -> int:
    """Remove the rows of all conductors called *name*; return the number of removed rows. A running conductor inserts
    its row again with its next heartbeat."""
    return connection.execute(delete(conductors).where(conductors.c.name == name)).rowcount
