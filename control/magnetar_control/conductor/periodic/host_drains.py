# SPDX-License-Identifier: GPL-3.0-or-later
"""The work on drains: conductors queue an ordinary action for each server that can leave a drained host, a few at a
time, and save the results.

Each pass starts from the rows of the drain, of the servers and of their actions. So any conductor of the cell can
continue a drain, at any point. Servers that arrive later, such as one whose build had begun, are moved too."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from magnetar_control.compute.drains.server_moves import CANCELLED, COLD, LIVE, UNEXPLAINED, choose_move
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.actions import instance_actions
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import drains
from magnetar_control.store.hosts.drains import DRAINED, DRAINING, ENDING, MOVED, MOVING, STAYS, DrainedServer, DrainRow
from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import MagnetarError
from magnetar_core.power import BUILDING, RESIZED

log = logging.getLogger(__name__)
#: Seconds between two looks at the drains.
POLL_INTERVAL = 1.0
CONFIRM = "confirmResize"
DOWN = ("The agent of the host does not answer, so no server can be moved off it. Bring the host up; or, if it is off "
        "for sure, evacuate its servers.")


class DrainView(NamedTuple):
    """The drain of a host (moving all of its servers to other hosts), as read at the start of one periodic pass. The
    following fields are keyed by server uuid: *results*, the saved results; *here*, the servers on the drained host;
    *away*, servers with a result that are on another host; *actions*, the states of the actions that the drain has
    queued."""

    drain: DrainRow
    results: Mapping[str, DrainedServer]
    here: Mapping[str, ServerRow]
    away: Mapping[str, ServerRow]
    actions: Mapping[str, str]


def work_on_drains(conductor: Conductor) -> bool:
    """Take the next step of each drain in the conductor's cell, and return whether there are any drains. A drain moves
    all servers off a host. Drains run in parallel."""
    with conductor.store.api.read() as connection:
        rows = drains.fetch_cell_drains(connection, conductor.cell.id)
    for drain in rows:
        try:
            _advance_drain(conductor, drain)
        except (MagnetarError, DBAPIError, servers.Moved) as error:
            log.warning("drain of host %s: %s; it is tried again in %g s", drain.host, error, POLL_INTERVAL)
    return bool(rows)


def _advance_drain(conductor: Conductor, drain: DrainRow) -> None:
    """Take the next step of a drain: save the results of moves that have ended, queue further moves, and update the
    drain's state."""
    _note_results(conductor, _read_drain(conductor, drain))
    view = _read_drain(conductor, drain)
    moving = sum(result.state == MOVING for result in view.results.values())
    if drain.state == ENDING:
        if not moving:
            _forget_drain(conductor, drain)
        return
    candidates = [server for server in view.here.values() if _is_due(view, server)]
    slots = conductor.settings.drain_parallel_moves - moving
    up = conductor.is_up(drain.host)
    begun, waiting = _begin_moves(conductor, drain, candidates, slots if up and not conductor.settling() else 0)
    message = DOWN if waiting and not up else None
    state = DRAINING if moving + begun + waiting else DRAINED
    if (state, message) != (drain.state, drain.message):
        with conductor.store.api.write() as connection:
            drains.update_drain_row(connection, drain, state=state, message=message,
                                    finished_at=utc_now() if state == DRAINED else None)


def _read_drain(conductor: Conductor, drain: DrainRow) -> DrainView:
    with conductor.database.read() as connection:
        results = drains.fetch_drained_servers(connection, drain.host)
        requests = {id: result.request_id for id, result in results.items() if result.state == MOVING}
        # Before the servers: the server of an action that has ended is read as the action left it.
        action_states = instance_actions.fetch_action_states(connection, requests)
        here = servers.fetch_host_servers(connection, drain.host)
        away = servers.fetch_server_rows(connection, [id for id in results if id not in here])
        return DrainView(drain, results, here, away, action_states)


def _forget_drain(conductor: Conductor, drain: DrainRow) -> None:
    """Delete a drain that an administrator has ended. Its results are deleted first, so that a crash never leaves
    results without a drain."""
    with conductor.database.write() as connection:
        drains.remove_drained_servers(connection, drain.host)
    with conductor.store.api.write() as connection:
        drains.remove_drain_row(connection, drain.host, ENDING)


# Results


def _note_results(conductor: Conductor, view: DrainView) -> None:
    """Save the results that have changed: for moves that have ended, and for servers that other requests have moved or
    deleted."""
    gone, changed = [], {}
    for id, result in view.results.items():
        server = view.here.get(id) or view.away.get(id)
        if server is None or server.deleted_at or (result.state == MOVED and id in view.here):
            gone.append(id)
        elif result.state == MOVING and view.actions.get(id) not in ("queued", "running"):
            if id not in view.here and _begin_confirmation(conductor, view.drain, result, server):
                continue
            changed[id] = _result_of(view, server)
        elif result.state == STAYS and id not in view.here:
            changed[id] = _result_of(view, server)
    if not gone and not changed:
        return
    with conductor.database.write() as connection:
        drains.remove_drained_servers(connection, view.drain.host, gone)
        for id, values in changed.items():
            result = view.results[id]
            drains.upsert_drained_server(connection, view.drain.host, id, {
                "name": result.name, "round": view.drain.round, **values})


def _result_of(view: DrainView, server: ServerRow) -> dict[str, Any]:
    """Return the new columns of the result for *server*, whose move has ended: state, target and message."""
    if server.id not in view.here:
        return {"state": MOVED, "target": server.host, "message": None}
    has_failed = view.actions.get(server.id) == "failed"
    return {"state": STAYS, "target": None,
            "message": server.fault_line(UNEXPLAINED) if has_failed else CANCELLED}


def _begin_confirmation(conductor: Conductor, drain: DrainRow, result: DrainedServer, server: ServerRow) -> bool:
    """Queue the confirmation of *server*'s cold migration, which releases the claims on the drained host. Return
    ``False`` when there is no cold migration to confirm."""
    if result.action not in (COLD, CONFIRM) or server.vm_state != RESIZED:
        return False
    database = conductor.database
    with database.write() as connection:
        migration = migrations.fetch_unconfirmed_migration(connection, server.id)
        if migration is None or migration.source != drain.host or not migrations.update_migration_row(
                connection, migration.uuid, expected_status="finished", status="confirming"):
            return False
        if not _queue_action(connection, drain, server, CONFIRM):
            migrations.update_migration_row(connection, migration.uuid, status="finished")
        database.notify(connection, servers.ACTIONS_CHANGED)
    return True


# Moves


def _is_due(view: DrainView, server: ServerRow) -> bool:
    """Return whether a server on the drained host must be moved: it has no result yet, or it could not be moved in an
    earlier round of the drain. Each new request to drain the host begins a new round."""
    result = view.results.get(server.id)
    return result is None or (result.state == STAYS and result.round < view.drain.round)


def _begin_moves(conductor: Conductor, drain: DrainRow, candidates: Sequence[ServerRow], slots: int) -> tuple[int, int]:
    """Queue moves of at most *slots* of the servers *candidates*, beginning with those that have the most memory. Save
    a result for candidates that cannot be moved. Return (number of queued moves, number of candidates that still wait).
    """
    if slots <= 0 or not candidates:
        return 0, len(candidates)
    host_volumes = conductor.services.volume.stored_on(drain.host)
    begun = waiting = 0
    for server in sorted(candidates, key=lambda server: -int(server.flavor["ram"])):
        if server.task_state or server.vm_state == BUILDING:
            waiting += 1
            continue
        choice = choose_move(server, host_volumes)
        if choice.action is None:
            with conductor.database.write() as connection:
                drains.upsert_drained_server(connection, drain.host, server.id, {
                    "name": server.name, "state": STAYS, "action": None, "request_id": None, "target": None,
                    "message": choice.reason, "round": drain.round})
        elif begun < slots and _begin_move(conductor, drain, server, choice.action):
            begun += 1
        else:
            waiting += 1
    return begun, waiting


def _begin_move(conductor: Conductor, drain: DrainRow, server: ServerRow, key: str) -> bool:
    """Queue the action *key* that moves *server* off the host. Return ``False`` when the server has changed since it
    was read."""
    migration_id = str(uuid.uuid4())
    args = {"host": None, "migration": migration_id} if key == LIVE else {"host": None} if key == COLD else {}
    with conductor.database.write() as connection:
        if not _queue_action(connection, drain, server, key, args):
            return False
        if key == LIVE:
            migrations.insert_migration_row(connection, server, migration_id, user_id=drain.user_id or server.user_id,
                                            type=migrations.LIVE, status="queued")
        conductor.database.notify(connection, servers.ACTIONS_CHANGED)
    log.info("drain of host %s: %s of server %s", drain.host, key, server.id, extra={"request_id": drain.request_id})
    return True


def _queue_action(connection: Connection, drain: DrainRow, server: ServerRow, key: str,
                  args: Mapping[str, Any] | None = None) -> bool:
    """Queue the action *key* with *args* for *server*, as a request of the user who began the drain, and save the
    drain's result for the server. Return ``False`` when the server's state no longer allows the action."""
    request_id = f"req-{uuid.uuid4()}"
    if not servers.request_server_action(connection, server, key, request_id, drain.user_id or server.user_id,
                                         drain.project_id or server.project_id, args):
        return False
    drains.upsert_drained_server(connection, drain.host, server.id, {
        "name": server.name, "state": MOVING, "action": key, "request_id": request_id, "target": None, "message": None,
        "round": drain.round})
    return True
