# SPDX-License-Identifier: GPL-3.0-or-later
"""A server whose new host is in another cell: its rows move there, and the conductors there continue the action.

The agents move the server as within a cell. Then one transaction saves the new host and marks the server as leaving,
which cannot be undone. ``relocate_rows`` copies the rows (the action then waits in the queue of the other cell),
switches the server's mapping, and removes the rows in this cell. If this conductor dies before that is done, another
one takes an action of the leaving server from the queue, and runs ``relocate_rows`` instead of the action's flow. While
the database of a cell is away, ``relocate_rows`` is repeated without limit.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.retry import SELDOM
from magnetar_control.conductor.worker.work import RunningAction, leased_database
from magnetar_control.store.servers import cell_moves, servers
from magnetar_control.store.store import Store

log = logging.getLogger(__name__)


def host_and_cell_columns(work: RunningAction, host: str) -> dict[str, Any]:
    """Return the columns of the server's row to save once the server is on *host*. If *host* is in another cell, these
    columns also mark the row as leaving this cell: ``relocate_rows`` must then move the server's rows to the other
    cell's database."""
    cell = work.conductor.host(host).cell_id
    if cell == work.conductor.cell.id:
        return {"host": host}
    return {"host": host, "leaving": cell, "cell_moves": work.server.cell_moves + 1}


def relocate_if_leaving(work: RunningAction) -> bool:
    """If the server's row is marked as leaving this cell, call ``relocate_rows`` and return ``True``: conductors of the
    other cell then continue the action. Otherwise return ``False``.
    """
    if work.server is None or not work.server.leaving:
        return False
    relocate_rows(work)
    return True


def relocate_rows(work: RunningAction) -> None:
    """Move the database rows of a server to the cell of its new host, after the server has moved to a host of another
    cell. If a database does not answer, put the action back into the queue for another attempt."""
    store, id = work.conductor.store, work.id
    try:
        work.flush()
        _copy_to_target_cell(work, store, id)
    except DBAPIError as error:
        log.warning("server %s waits to go into another cell: %s", id, error.orig, extra={"server": id})
        work.put_back(SELDOM if work.action.attempts > 1 else 1.0)


def _copy_to_target_cell(work: RunningAction, store: Store, id: str) -> None:
    target_cell = str(work.server.leaving)
    target = store.cell(target_cell)
    with work.database.read() as connection:
        rows = cell_moves.fetch_moving_rows(connection, id)
    with leased_database(work.confirm_lease, target).write() as connection:
        if cell_moves.insert_moving_rows(connection, rows):
            target.notify(connection, servers.ACTIONS_CHANGED)
    with leased_database(work.confirm_lease, store.api).write() as connection:
        cell_moves.switch_server_mapping(connection, id, target_cell)
    with work.database.write() as connection:
        work.confirm_lease(connection)
        cell_moves.remove_moved_rows(connection, id)
        work.database.notify(connection, servers.SERVERS_CHANGED)


def map_to_this_cell(work: RunningAction) -> None:
    """Map the server to this cell in the API database. The server may still be mapped to its former cell: that cell's
    conductor may have crashed after it copied the action to this cell and before it switched the mapping. Call this
    function before the action makes any change that others can see."""
    with leased_database(work.confirm_lease, work.conductor.store.api).write() as connection:
        cell_moves.switch_server_mapping(connection, work.id, work.conductor.cell.id)
