# SPDX-License-Identifier: GPL-3.0-or-later
"""The periodic work on incidents: notice hosts that have died, and fence them; then ``incident_moves`` evacuates their
servers.

Each pass starts from the rows of the incidents, so any conductor of the cell can continue an incident, at any point.
The state of each step is written before the step, and only the conductor that wrote the state does the step. The rules
are in docs/explanation/automatic-evacuation.md."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import fencings, incidents, services
from magnetar_control.store.hosts.fencings import FencingRow
from magnetar_control.store.hosts.incidents import (
    BLOCKED,
    CELL_KEY,
    CLOSED,
    EVACUATING,
    FAILED,
    FENCING,
    NOTICED,
    RETURNED,
    IncidentRow,
)
from magnetar_control.store.servers.servers import Moved
from magnetar_core.errors import Conflict, MagnetarError, abbreviate_names

from .incident_changes import change_incident, open_incident
from .incident_moves import move_incident_servers
from .silent_hosts import CellSilence, read_cell_silence
from .witnesses import ask_witnesses

log = logging.getLogger(__name__)
#: Seconds between two looks at the hosts; seconds until witnesses are asked about a host again.
POLL_INTERVAL, ASK_AGAIN = 2.0, 10.0
NO_DEVICE = ("Host {host} is silent, and has no power device in the setting fencing, so nothing was done. Switch it "
             "off by hand, and run `magnetar host fence {host} --confirmed`: then its servers are evacuated.")


class AvailabilityWatch:
    """The periodic check for failed hosts in a conductor's cell. After the start or a pause of this process, the
    conductor may not have received the heartbeats of all hosts yet. So for the first ``availability_silence`` seconds,
    only evacuations from hosts that are already fenced are continued."""

    def __init__(self, conductor: Conductor) -> None:
        self.conductor = conductor
        self._began_at = self._looked_at = float("-inf")

    def check_hosts(self) -> None:
        """Run one pass over the hosts and incidents of the cell. Do nothing if the settings disable automatic
        evacuation."""
        settings, now = self.conductor.settings, time.monotonic()
        if not settings.availability_enabled:
            return
        if now - self._looked_at > settings.availability_silence / 2:
            self._began_at = now
        self._looked_at = now
        if now - self._began_at < settings.availability_silence:
            continue_evacuations(self.conductor)
            return
        work_on_incidents(self.conductor)
        self._looked_at = time.monotonic()  # a fence agent may take minutes


def work_on_incidents(conductor: Conductor) -> None:
    """Open incidents for the hosts of the conductor's cell that send no heartbeats, and take the next step of each open
    incident. The evacuations of several incidents run in parallel."""
    silence = read_cell_silence(conductor)
    with conductor.database.read() as connection:
        opened = incidents.fetch_open_incidents(connection)
    if not silence.silent and not opened:
        return
    open_keys = {incident.open_key: incident for incident in opened}
    _watch_quorum(conductor, silence, open_keys.get(CELL_KEY))
    for host in sorted(silence.silent - open_keys.keys()) if silence.has_quorum else ():
        if incident := open_incident(conductor, host, NOTICED, f"Host {host} is silent."):
            opened.append(incident)
    _take_steps(conductor, opened, silence)


def continue_evacuations(conductor: Conductor) -> None:
    """Continue the evacuations of incidents in the conductor's cell whose host is already fenced. No other incident is
    changed."""
    with conductor.database.read() as connection:
        opened = incidents.fetch_open_incidents(connection)
    _take_steps(conductor, [incident for incident in opened if incident.state == EVACUATING],
                CellSilence(frozenset(), 0))


def _take_steps(conductor: Conductor, opened: Sequence[IncidentRow], silence: CellSilence) -> None:
    for incident in opened:
        if incident.host is None:
            continue
        try:
            STEPS[incident.state](conductor, incident, silence)
        except (MagnetarError, DBAPIError, Moved) as error:
            log.warning("incident %s of host %s: %s; it is tried again", incident.id, incident.host, error)


def _watch_quorum(conductor: Conductor, silence: CellSilence, incident: IncidentRow | None) -> None:
    """Open an incident of the whole cell if at most half of the cell's hosts send heartbeats, and end this incident
    when more than half do. *incident*: the open incident of the cell; ``None`` if there is none."""
    if silence.has_quorum:
        if incident is not None:
            change_incident(conductor, incident, RETURNED, "More than half of the hosts are heard again.")
    elif incident is None:
        names = sorted(silence.silent)
        open_incident(conductor, None, BLOCKED, f"{len(names)} of {silence.watched} hosts of cell "
                      f"{conductor.cell.name} are silent ({abbreviate_names(names)}), so the fault may be the network "
                      "of the conductors, and nothing is done. Check that network; if the hosts are dead, fence and "
                      "evacuate them by hand.")


# Before the fence


def _advance_noticed(conductor: Conductor, incident: IncidentRow, silence: CellSilence) -> None:
    """Begin to fence a host that sends no heartbeats. Do nothing while the host can still be reached over the network,
    while no other host can check whether it can be reached, or while too few hosts of the cell send heartbeats. End the
    incident if the host returns or an operator takes over; set it to failed if the host has no fencing device."""
    if _update_waiting_incident(conductor, incident, silence) or not silence.has_quorum:
        return
    host = str(incident.host)
    if (incident.checked_at or "") > utc_now(-ASK_AGAIN):
        return
    if host not in HostFencing(conductor.store, conductor.settings).devices:
        change_incident(conductor, incident, FAILED, NO_DEVICE.format(host=host))
        return
    report = ask_witnesses(conductor, host)
    if report.seen_by or not report.peers:
        why = f"{report.seen_by} reaches it over the network, so it may be alive" if report.seen_by else \
            "no other host can tell whether it is alive"
        change_incident(conductor, incident, NOTICED, f"Host {host} is silent, but {why}. Nothing is done until this "
                        "changes.", checked_at=utc_now())
        return
    _decide_fencing(conductor, incident, silence)


def _decide_fencing(conductor: Conductor, incident: IncidentRow, silence: CellSilence) -> None:
    """Save that the host must be fenced, and fence it. Instead, set the incident to blocked (it then waits for an
    operator) if ``availability_max_hosts`` hosts were fenced within the last ``availability_window`` seconds."""
    settings, host = conductor.settings, incident.host
    with conductor.database.write() as connection:
        incidents.fetch_open_incidents(connection, lock=True)  # another conductor may decide about another host
        recent = incidents.count_recent_fencings(connection, utc_now(-settings.availability_window))
        is_allowed = recent < settings.availability_max_hosts
        changed = incidents.update_incident_row(
            connection, incident, state=FENCING, message=f"Host {host} is being fenced.", fencing_at=utc_now(),
        ) if is_allowed else incidents.update_incident_row(
            connection, incident, state=BLOCKED, message=f"{recent} hosts were fenced within "
            f"{settings.availability_window:g} seconds (availability_max_hosts), so nothing is done about host {host}. "
            "Find out why hosts die. Then close this incident, and the host is fenced; or fence it by hand.")
        if changed is None:
            return
        conductor.notifications.add_incident(connection, changed, "incident.fence.start" if is_allowed else
                                             "incident.error", conductor.name, conductor.cell.name)
    log.warning("incident %s: %s", changed.id, changed.message, extra={"host": host})
    if is_allowed:
        _advance_fencing(conductor, changed, silence)


def _advance_stuck(conductor: Conductor, incident: IncidentRow, silence: CellSilence) -> None:
    """Take the next step of an incident that waits for an operator: end it when its host returns, and begin the
    evacuations when the host was fenced by hand."""
    _update_waiting_incident(conductor, incident, silence)


def _update_waiting_incident(conductor: Conductor, incident: IncidentRow, silence: CellSilence) -> bool:
    """Change the state of an incident that no longer has a reason to wait for an operator, and return whether the state
    was changed. If the host was fenced by hand, evacuations begin. If the host sends heartbeats again, or an operator
    has disabled it or forced it down, the incident ends."""
    host = str(incident.host)
    if _is_fenced(conductor, host):
        _begin_evacuation(conductor, incident)
        return True
    if host in silence.silent:
        return False
    database = conductor.database
    with database.read() as connection:
        is_heard = services.is_host_heard(database, connection, host, conductor.settings.availability_silence)
    if is_heard:
        change_incident(conductor, incident, RETURNED, f"Host {host} is heard again. No server was moved.")
    else:
        change_incident(conductor, incident, CLOSED, f"An operator has changed host {host}, so nothing more is done.")
    return True


# The fence


def _advance_fencing(conductor: Conductor, incident: IncidentRow, silence: CellSilence) -> None:
    """Fence the host of the incident, and begin to evacuate its servers when the host is certainly off. Do nothing
    while another process fences or unfences the host."""
    host, since = str(incident.host), str(incident.fencing_at)
    fencing, database = _fetch_fencing(conductor, host), conductor.database
    with database.read() as connection:
        is_heard = services.is_host_heard(database, connection, host, conductor.settings.host_down_after)
    if fencing is None or fencing.requested_at < since:  # the fence agent has not been run yet
        if is_heard:
            change_incident(conductor, incident, RETURNED, f"Host {host} is heard again. No server was moved.")
        if is_heard or not silence.has_quorum:
            return
    try:
        is_settled = HostFencing(conductor.store, conductor.settings).confirm_fenced(
            host, f"incident {incident.id}", since, answers=is_heard)
    except Conflict:  # another process was faster
        return
    except MagnetarError as error:
        change_incident(conductor, incident, FAILED, f"The fencing of host {host} has failed, so no server was moved: "
                        f"{error.message} When it is off for certain, run `magnetar host fence {host} --confirmed`: "
                        "then its servers are evacuated.")
        return
    if is_settled and _is_fenced(conductor, host):
        _begin_evacuation(conductor, incident)
    elif is_settled:  # its power device was removed from the settings meanwhile
        change_incident(conductor, incident, FAILED, NO_DEVICE.format(host=host))


def _begin_evacuation(conductor: Conductor, incident: IncidentRow) -> None:
    changed = change_incident(conductor, incident, EVACUATING, f"Host {incident.host} is off for certain.",
                              fenced_at=utc_now())
    if changed is not None:
        move_incident_servers(conductor, changed, is_fenced=True)


def _advance_evacuating(conductor: Conductor, incident: IncidentRow, _silence: CellSilence) -> None:
    move_incident_servers(conductor, incident, is_fenced=_is_fenced(conductor, str(incident.host)))


def _fetch_fencing(conductor: Conductor, host: str) -> FencingRow | None:
    with conductor.store.api.read() as connection:
        return fencings.fetch_fencing_row(connection, host)


def _is_fenced(conductor: Conductor, host: str) -> bool:
    """Return whether a host is fenced: its last fencing succeeded, and it was not unfenced since."""
    fencing = _fetch_fencing(conductor, host)
    return fencing is not None and fencing.state == fencings.FENCED and fencing.holds_host


STEPS: Mapping[str, Callable[[Conductor, IncidentRow, CellSilence], Any]] = {
    NOTICED: _advance_noticed, BLOCKED: _advance_stuck, FAILED: _advance_stuck, FENCING: _advance_fencing,
    EVACUATING: _advance_evacuating}
