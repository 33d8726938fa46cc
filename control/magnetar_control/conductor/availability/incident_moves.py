# SPDX-License-Identifier: GPL-3.0-or-later
"""Evacuations of an incident: ordinary actions that are queued for the servers of a fenced host, by priority and a few
at a time, and their results.

The transaction that queues an evacuation also saves it as the server's state in the incident, so a conductor that
begins after a crash queues none twice."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection

from magnetar_control.compute.availability.ha_policy import ALWAYS, NEVER, server_ha_policy
from magnetar_control.conductor.flows.server_evacuate import volume_lost
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.actions import actions, instance_actions
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import incidents
from magnetar_control.store.hosts.incidents import (
    DONE,
    LOST,
    MOVED,
    MOVING,
    REMAINS,
    WAITING,
    IncidentRow,
    IncidentServer,
)
from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_control.store.servers.servers import DELETING, SOFT_DELETING
from magnetar_core.adoption import refused_for_adopted
from magnetar_core.power import BUILDING

from .incident_changes import change_incident

log = logging.getLogger(__name__)
EVACUATE = "evacuate"
#: Seconds until a server with the policy always is evacuated again: the first pause, which doubles, and the longest.
PAUSE, LONGEST = 10.0, 600.0
BY_POLICY = "Its policy is never."
UNFENCED = "The host was unfenced before this server was evacuated."
DELETED = "It was deleted meanwhile."
UNKNOWN = "Its evacuation failed; its server actions tell more."


class IncidentView(NamedTuple):
    """An incident (a failed host) and its servers, as read at the start of one periodic pass. *rows*: the incident's
    servers, ordered by evacuation priority. The following fields are keyed by server uuid: *here*, the servers that are
    still on the failed host; *away*, servers of the incident that are on another host now; *actions*, the states of the
    evacuations that the incident has queued."""

    incident: IncidentRow
    rows: Sequence[IncidentServer]
    here: Mapping[str, ServerRow]
    away: Mapping[str, ServerRow]
    actions: Mapping[str, str]


def move_incident_servers(conductor: Conductor, incident: IncidentRow, *, is_fenced: bool) -> None:
    """Save the results of ended evacuations, queue further evacuations, and complete the incident when no server is
    left to evacuate. *is_fenced*: whether the host is still fenced; if false, no further evacuation is queued."""
    view = _read_incident(conductor, incident)
    for change in (_add_servers, _note_results):
        if change(conductor, view):
            view = _read_incident(conductor, incident)
    if is_fenced:
        _begin_evacuations(conductor, view)
    else:
        _give_up_waiting(conductor, view)
    with conductor.database.read() as connection:
        rows = _fetch_servers(connection, incident)
    if any(row.state in (WAITING, MOVING) for row in rows):
        return
    counts = {name: sum(row.state == state for row in rows)
              for name, state in (("moved", MOVED), ("failed", LOST), ("remaining", REMAINS))}
    change_incident(conductor, incident, DONE, f"Of {len(rows)} servers of host {incident.host}, {counts['moved']} "
                    f"were evacuated, {counts['failed']} could not be, and {counts['remaining']} remain.", **counts)


def _fetch_servers(connection: Connection, incident: IncidentRow) -> Sequence[IncidentServer]:
    return incidents.fetch_incident_servers(connection, [incident.id]).get(incident.id, [])


def _read_incident(conductor: Conductor, incident: IncidentRow) -> IncidentView:
    with conductor.database.read() as connection:
        rows = _fetch_servers(connection, incident)
        requests = {row.server_id: row.request_id for row in rows if row.state == MOVING}
        # Before the servers: the server of an action that has ended is read as the action left it.
        action_states = instance_actions.fetch_action_states(connection, requests)
        here = servers.fetch_host_servers(connection, str(incident.host))
        away = servers.fetch_server_rows(connection, [row.server_id for row in rows if row.server_id not in here])
        return IncidentView(incident, rows, here, away, action_states)


def _add_servers(conductor: Conductor, view: IncidentView) -> bool:
    """Add the servers on the failed host that are not yet part of the incident, each with its evacuation policy. Return
    whether any were added. Log a warning for each malformed policy."""
    known = {row.server_id for row in view.rows}
    new = []
    for server in view.here.values():
        if server.id in known:
            continue
        policy = server_ha_policy(conductor.settings, server)
        for problem in policy.problems:
            log.warning("server %s: %s, so it is ignored", server.id, problem, extra={"server": server.id})
        remains = policy.policy == NEVER
        new.append({"incident_id": view.incident.id, "server_id": server.id, "name": server.name,
                    "policy": policy.policy, "priority": policy.priority, "attempts": 0,
                    "state": REMAINS if remains else WAITING, "message": BY_POLICY if remains else None})
    if new:
        with conductor.database.write() as connection:
            incidents.insert_incident_servers(connection, new)
    return bool(new)


# Results


def _note_results(conductor: Conductor, view: IncidentView) -> bool:
    """Save the results of evacuations that have ended, and of servers that other requests have moved or deleted. Return
    whether any result was saved."""
    changed = [(row, columns) for row in view.rows if (columns := _new_result(view, row))]
    if changed:
        with conductor.database.write() as connection:
            for row, columns in changed:
                incidents.update_incident_server(connection, row, **columns)
    return bool(changed)


def _new_result(view: IncidentView, row: IncidentServer) -> dict[str, Any] | None:
    """Return the columns to save for *row*, a server of the incident, if the result of its evacuation has changed;
    otherwise ``None``."""
    if row.state == MOVED or (row.state == MOVING and view.actions.get(row.server_id) in ("queued", "running")):
        return None
    server = view.here.get(row.server_id)
    if server is None:
        away = view.away.get(row.server_id)
        if away is None or away.deleted_at:
            return None if row.message == DELETED else {"state": REMAINS, "target": None, "message": DELETED}
        return {"state": MOVED, "target": away.host, "message": None}
    if row.state != MOVING:
        return None
    has_failed = view.actions.get(row.server_id) == "failed"
    return _failed_attempt(row, server.fault_line(UNKNOWN) if has_failed else UNKNOWN)


def _failed_attempt(row: IncidentServer, reason: str) -> dict[str, Any]:
    """Return the new columns of a server (a row of ``incident_servers``) whose evacuation has failed for *reason*. A
    server with the policy ``always`` is tried again after a pause that doubles each time; other servers are not tried
    again."""
    if row.policy != ALWAYS:
        return {"state": LOST, "message": reason}
    pause = min(PAUSE * 2 ** max(row.attempts - 1, 0), LONGEST)
    return {"state": WAITING, "message": reason, "not_before": utc_now(pause)}


def _give_up_waiting(conductor: Conductor, view: IncidentView) -> None:
    with conductor.database.write() as connection:
        for row in view.rows:
            if row.state == WAITING:
                incidents.update_incident_server(connection, row, state=LOST, message=UNFENCED)


# Evacuations


def _begin_evacuations(conductor: Conductor, view: IncidentView) -> None:
    """Queue evacuations for waiting servers whose retry pause is over, up to the setting
    ``availability_parallel_moves`` at a time. Servers that are being built or deleted are skipped."""
    places = conductor.settings.availability_parallel_moves - sum(row.state == MOVING for row in view.rows)
    now = utc_now()
    due = [row for row in view.rows if row.state == WAITING and (row.not_before or "") <= now]
    if places <= 0 or not due or conductor.settling():
        return
    host_volumes = conductor.services.volume.stored_on(str(view.incident.host))
    for row in due:
        server = view.here.get(row.server_id)
        if server is None or server.vm_state == BUILDING or server.task_state in (DELETING, SOFT_DELETING):
            continue
        if places <= 0:
            return
        places -= _begin_evacuation(conductor, view.incident, row, server, host_volumes)


def _begin_evacuation(conductor: Conductor, incident: IncidentRow, row: IncidentServer, server: ServerRow,
                      host_volumes: Collection[str]) -> bool:
    """Queue the evacuation of *server*, and return whether it was queued. *host_volumes*: uuids of the volumes that are
    stored on the failed host.

    If the server cannot be evacuated, save the reason in *row*, the server's row in ``incident_servers``. If the server
    or the incident has changed since it was read, change nothing; the next pass tries again.
    """
    lost_volume = next((volume["volume_id"] for volume in server.volumes if volume["volume_id"] in host_volumes), None)
    with conductor.database.write() as connection:
        if not incidents.is_server_unchanged(connection, incident, row):
            return False
        current = servers.fetch_server_row(connection, server.id, lock=True)
        if current is None or current.host != incident.host:
            return False
        if lost_volume is not None:  # to try again would not help
            reason = volume_lost(lost_volume, str(incident.host)).message
            incidents.update_incident_server(connection, row, state=LOST, message=reason)
            return False
        if servers.is_adopted_server(current):
            reason = refused_for_adopted(current.name, "evacuation").message
            incidents.update_incident_server(connection, row, state=LOST, message=reason)
            return False
        if not servers.action_is_allowed(current, EVACUATE):
            failed = _failed_attempt(row, f"It is in vm_state {current.vm_state}, in which no server can be evacuated. "
                                     "Reset its state to error, and evacuate it.")
            incidents.update_incident_server(connection, row, attempts=row.attempts + 1, **failed)
            return False
        if not _queue_evacuation(connection, row, current):
            return False
        conductor.database.notify(connection, servers.ACTIONS_CHANGED)
    log.warning("incident %s: server %s is evacuated from host %s", incident.id, server.id, incident.host,
                extra={"server": server.id, "host": incident.host})
    return True


def _queue_evacuation(connection: Connection, row: IncidentServer, server: ServerRow) -> bool:
    """Queue an evacuation as a request of the server's user. Return ``False``, and change nothing, while another
    evacuation of the server is queued or runs."""
    migration_id, request_id = str(uuid.uuid4()), f"req-{uuid.uuid4()}"
    if not servers.request_server_action(
            connection, server, EVACUATE, request_id, server.user_id, server.project_id,
            {"migration": migration_id, "host": None, "forced": False, "stopped": False}):
        return False
    migrations.insert_migration_row(connection, server, migration_id, user_id=server.user_id,
                                    type=migrations.EVACUATION, status="accepted", target=None)
    actions.clear_action_delays(connection, server.id)
    incidents.update_incident_server(connection, row, state=MOVING, attempts=row.attempts + 1, request_id=request_id,
                                     not_before=None, message=None)
    return True
