# SPDX-License-Identifier: GPL-3.0-or-later
"""A server whose new host is in another cell: its rows go there, and the conductors there go on with the action.

The agents move the server as within a cell. When they have, one transaction notes the new host and that the rows leave;
there is no way back from then on. ``relocate`` copies the rows into the other cell with the action, which waits in the
queue there, switches the server's mapping, and removes the rows here. Whatever action of a server that leaves is taken
from the queue, ``relocate`` is what it does, so a conductor that dies anywhere is followed by one that goes on. The
database of a cell that is away is waited for, as long as it takes.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.retry import SELDOM
from magnetar_control.conductor.worker.work import Work, leased
from magnetar_control.store.servers import cell_moves, servers
from magnetar_control.store.store import Store

log = logging.getLogger(__name__)


def departure(work: Work, host: str) -> dict[str, Any]:
    """Columns of a server that is on *host* now: it leaves where that is in another cell."""
    cell = work.conductor.host(host)["cell_id"]
    if cell == work.conductor.cell.id:
        return {"host": host}
    return {"host": host, "leaving": cell, "cell_moves": work.server.cell_moves + 1}


def leaves(work: Work) -> bool:
    """Whether the server leaves the cell; the action goes on there then, and has nothing more to do here."""
    if work.server is None or not work.server.leaving:
        return False
    relocate(work)
    return True


def relocate(work: Work) -> None:
    """Bring the rows of a server that leaves to its new cell."""
    store, id = work.conductor.store, work.id
    try:
        work.flush()
        _bring(work, store, id)
    except DBAPIError as error:
        log.warning("server %s waits to go into another cell: %s", id, error.orig, extra={"server": id})
        work.put_back(SELDOM if work.action.attempts > 1 else 1.0)


def _bring(work: Work, store: Store, id: str) -> None:
    target = store.cell(work.server.leaving)
    with work.database.read() as connection:
        left = cell_moves.rows(connection, id)
    with leased(work.confirm_lease, target).write() as connection:
        if cell_moves.arrive(connection, left):
            target.ring(connection, servers.ACTIONS_BELL)
    with leased(work.confirm_lease, store.api).write() as connection:
        cell_moves.switch(connection, id, work.server.leaving)
    with work.database.write() as connection:
        work.confirm_lease(connection)
        cell_moves.forget(connection, id)
        work.database.ring(connection, servers.SERVERS_BELL)


def arrived(work: Work) -> None:
    """The action has come with its server from another cell, perhaps from a conductor that died before it had switched
    the mapping. To be called before anything is done here that others see."""
    with leased(work.confirm_lease, work.conductor.store.api).write() as connection:
        cell_moves.switch(connection, work.id, work.conductor.cell.id)
