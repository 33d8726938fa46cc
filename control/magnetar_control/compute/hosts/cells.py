# SPDX-License-Identifier: GPL-3.0-or-later
"""Cells: each a database with hosts and their servers. For administrators of the cloud."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from magnetar_control.compute.caller import Caller
from magnetar_control.store.engine import schema
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import CELL, hosts
from magnetar_control.store.store import CELL0, CellMapping
from magnetar_core.errors import Conflict, Forbidden


class CellHosts(NamedTuple):
    """A cell, and the number of its hosts."""

    cell: CellMapping
    hosts: int


def _check(caller: Caller) -> None:
    if not caller.is_admin:
        raise Forbidden("Cells are for administrators of the cloud.")


def list_cells(caller: Caller) -> list[CellHosts]:
    """Return all cells except cell0."""
    _check(caller)
    store = caller.cloud.store
    with store.api.read() as connection:
        rows = connection.execute(select(hosts.c.cell_id, func.count()).group_by(hosts.c.cell_id)).all()
    count: dict[str, int] = {row[0]: row[1] for row in rows}
    return [CellHosts(cell, int(count.get(cell.id, 0))) for cell in store.cells(fresh=True) if cell.id != CELL0]


def create_cell(caller: Caller, name: str, database_url: str, *, disabled: bool = False) -> None:
    """Create the tables in the database *database_url* of a new cell, and register the cell. *disabled*: the scheduler
    places no servers in the cell. Raises ``Conflict`` when the database does not answer."""
    update_cell(caller, name, database_url=database_url, disabled=disabled or None)


def _make_tables(url: str) -> None:
    try:
        with closing(Database(url, "new cell", 1)) as database:
            schema.upgrade_schema(database, CELL)
    except (SQLAlchemyError, ValueError, OSError) as error:
        raise Conflict(f"The database of the cell does not answer, or refuses ({type(error).__name__}). Check "
                       "database_url from the machine of the API; nothing was changed.") from None


def update_cell(caller: Caller, name: str, *, database_url: str | None = None, disabled: bool | None = None) -> None:
    """Change the cell *name*: set the URL of its database (no data is copied), and disable or enable it. Parameters
    that are ``None`` change nothing. Raises ``Conflict`` when the database does not answer."""
    _check(caller)
    if database_url is not None:
        _make_tables(database_url)
        caller.cloud.store.add_cell(name, database_url)
    if disabled is not None:
        caller.cloud.store.set_cell(name, disabled=disabled)


def delete_cell(caller: Caller, name: str) -> None:
    """Unregister the cell *name*. Its database is not deleted. Raises ``InUse`` while the cell has hosts or servers."""
    _check(caller)
    caller.cloud.store.remove_cell(name)
