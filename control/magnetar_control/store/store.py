# SPDX-License-Identifier: GPL-3.0-or-later
"""All databases: the API database, cell0, and the cells that the API database lists."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.tables import cells, hosts, server_mappings
from magnetar_core.errors import InUse, NotFound

log = logging.getLogger(__name__)
#: The id of the cell of servers without a host.
CELL0 = "00000000-0000-0000-0000-000000000000"
#: Seconds for which the list of cells is cached.
FRESH = 5.0
#: Most servers whose database is remembered.
REMEMBERED = 20_000
#: What an operator must do after changing the database of a cell.
RESTART = "restart every API process, the conductors of the cell and those that schedule; until then they use the " \
          "one from before"


@dataclass(frozen=True)
class CellMapping:
    """The row of a cell in the API database."""

    id: str
    name: str
    database_url: str
    disabled: bool


class Store:
    """All databases of the cloud: the API database, cell0, and the databases of the cells, which are opened at first
    use."""

    def __init__(self, api: Database, pool: int = 16) -> None:
        self.api, self.pool = api, pool
        #: The kinds of engines of all open databases.
        self.kinds = frozenset((api.kind,))
        self._lock = threading.Lock()
        self._open: dict[str, Database] = {}
        #: The URLs of the opened cell databases, by cell; and the ids of cells whose row has another URL now.
        self._opened_by: dict[str, str] = {}
        self._moved: set[str] = set()
        self._cells: tuple[CellMapping, ...] = ()
        self._read_at = float("-inf")
        self._where: dict[str, Database] = {}

    def known_database(self, server_id: str) -> Database | None:
        """Return the cell database in which the server was last found; ``None`` if unknown. The server may have moved
        since then, so the caller may need another query."""
        return self._where.get(server_id)

    def remember_database(self, server_id: str, database: Database) -> None:
        """Remember that the server is in *database*, so that ``known_database`` returns it. Does nothing for cell0,
        because servers leave it soon."""
        if database is not self.cell0:
            if len(self._where) >= REMEMBERED:
                self._where.clear()
            self._where[server_id] = database

    def cells(self, fresh: bool = False) -> Sequence[CellMapping]:
        """Return all cells, including cell0, from a short-lived cache. *fresh*: read them from the database."""
        if fresh or time.monotonic() - self._read_at > FRESH:
            with self.api.read() as connection:
                rows = connection.execute(select(cells).order_by(cells.c.created_at, cells.c.id)).all()
            mappings = tuple(CellMapping(row.id, row.name, row.database_url, row.disabled) for row in rows)
            with self._lock:
                self._cells, self._read_at = mappings, time.monotonic()
            self._warn()
        return self._cells

    def _warn(self) -> None:
        """Log a warning for each cell whose database URL was changed after this process opened its database. The
        process keeps the old database until it is restarted, so that it never works in both databases."""
        moved = {cell.id: cell for cell in self._cells
                 if self._opened_by.get(cell.id, cell.database_url) != cell.database_url}
        for id in moved.keys() - self._moved:
            log.warning("cell %s has another database since this process has opened it: %s", moved[id].name, RESTART,
                        extra={"cell": moved[id].name})
        self._moved = set(moved)

    def cell(self, id: str) -> Database:
        """Return the database of the cell with this id. Raises ``NotFound``."""
        opened = self._open.get(id)
        if opened is not None:
            return opened
        for fresh in (False, True):
            for cell in self.cells(fresh):
                if cell.id == id:
                    return self._opened(cell)
        raise NotFound(f"There is no cell {id!r}; see `magnetar cell list`.", kind="cell", key=id)

    def find_cell(self, name: str) -> CellMapping:
        """Return the cell with this name or id. Raises ``NotFound``."""
        for cell in self.cells(fresh=True):
            if name in (cell.name, cell.id):
                return cell
        raise NotFound(f"There is no cell {name!r}; see `magnetar cell list`, or make it with `magnetar cell create`.",
                       kind="cell", key=name)

    @property
    def cell0(self) -> Database:
        """The database of cell0, which has the servers without a host."""
        return self.cell(CELL0)

    def databases(self) -> Sequence[tuple[CellMapping, Database]]:
        """Return all cells with their databases, cell0 first."""
        return [(cell, self._opened(cell)) for cell in sorted(self.cells(), key=lambda cell: cell.id != CELL0)]

    def _opened(self, cell: CellMapping) -> Database:
        with self._lock:
            if cell.id not in self._open:
                self._opened_by[cell.id] = cell.database_url
                self._open[cell.id] = Database(cell.database_url, cell.name, self.pool, self.api.limit)
                self.kinds |= {self._open[cell.id].kind}
            return self._open[cell.id]

    def opened_databases(self) -> list[Database]:
        """Return the databases that this process has opened, the API database first. Sends no query."""
        with self._lock:
            return [self.api, *self._open.values()]

    def add_cell(self, name: str, database_url: str, id: str | None = None) -> CellMapping:
        """Add a cell, or change the database URL of the existing cell *name*; return the cell. Does not create the
        tables: see ``schema.upgrade_schema``."""
        id = id or str(uuid.uuid4())
        if any((cell.name, cell.database_url) == (name, database_url) for cell in self.cells(fresh=True)):
            return self.find_cell(name)  # avoids a write, for which the disk may have no room
        try:
            with self.api.write() as connection:
                existing_id = connection.execute(select(cells.c.id).where(cells.c.name == name)).scalar()
                if existing_id is not None:
                    connection.execute(update(cells).where(cells.c.id == existing_id).values(
                        database_url=database_url, updated_at=utc_now()))
                else:
                    connection.execute(insert(cells).values(id=id, name=name, database_url=database_url,
                                                            disabled=False, created_at=utc_now()))
        except IntegrityError:  # another process has created it meanwhile
            pass
        return self.find_cell(name)

    def set_cell(self, name: str, disabled: bool) -> None:
        """Disable or enable a cell. Raises ``NotFound``."""
        cell = self.find_cell(name)
        with self.api.write() as connection:
            connection.execute(update(cells).where(cells.c.id == cell.id).values(disabled=disabled,
                                                                                 updated_at=utc_now()))
        self.cells(fresh=True)

    def remove_cell(self, name: str) -> None:
        """Remove a cell. Raises ``NotFound``, or ``InUse`` for cell0 and while the cell has hosts or servers."""
        cell = self.find_cell(name)
        with self.api.write() as connection:
            has = connection.execute(select(hosts.c.name).where(hosts.c.cell_id == cell.id)).first()
            mapped = connection.execute(select(server_mappings.c.server_id).where(
                server_mappings.c.cell_id == cell.id)).first()
            if cell.id == CELL0 or has or mapped:
                raise InUse(f"Cell {cell.name} cannot be removed: it has hosts or servers, or is cell0.")
            connection.execute(delete(cells).where(cells.c.id == cell.id))
        self.cells(fresh=True)

    def close(self) -> None:
        """Close all connections to all databases."""
        with self._lock:
            opened, self._open = list(self._open.values()), {}
        for database in (*opened, self.api):
            database.close()
